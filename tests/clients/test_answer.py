"""Answers: parsed, checked, and turned back."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from clients.answer import Answer
from clients.errors import BadAnswer

#: As the server writes it: one face with landmarks and a crop, one without.
TEXT = (
    '{"model":{"name":"centerface","version":"1.0","weights":"w","engine":"ort","precision":"fp32"},'
    '"image":{"width":64,"height":48},"canvas":"480x640","scale":1.25,'
    '"faces":[{"box":[1.5,2.0,11.25,22.0],"score":0.75,"landmarks":{"right_eye":[3.0,4.0],"left_eye":[5.0,6.0],'
    '"nose":[7.0,8.0],"mouth_right":[9.0,10.0],"mouth_left":[11.0,12.5]},"crop":"/9j/AA=="},'
    '{"box":[0.0,0.0,4.0,5.0],"score":0.5,"landmarks":null,"crop":null}],'
    '"timing_ms":{"decode":3.42,"network":41.9},"batch_size":2}'
)


@pytest.fixture
def value() -> dict[str, Any]:
    return dict(json.loads(TEXT))


def test_every_value(value: dict[str, Any]) -> None:
    answer = Answer.parse(value)
    assert (answer.model.name, answer.model.version, answer.model.weights) == ("centerface", "1.0", "w")
    assert (answer.model.engine, answer.model.precision) == ("ort", "fp32")
    assert (answer.width, answer.height, answer.canvas, answer.scale) == (64, 48, "480x640", 1.25)
    assert (answer.timing_ms, answer.batch_size) == ({"decode": 3.42, "network": 41.9}, 2)
    first, second = answer.faces
    assert (first.box, first.score, first.crop) == ((1.5, 2.0, 11.25, 22.0), 0.75, b"\xff\xd8\xff\x00")
    assert first.landmarks is not None
    assert first.landmarks["mouth_left"] == (11.0, 12.5)
    assert (second.box, second.score, second.landmarks, second.crop) == ((0.0, 0.0, 4.0, 5.0), 0.5, None, None)


def test_arrays(value: dict[str, Any]) -> None:
    answer = Answer.parse(value)
    assert [array.dtype for array in (answer.boxes, answer.scores, answer.landmarks)] == [np.float32] * 3
    np.testing.assert_array_equal(answer.boxes, [[1.5, 2, 11.25, 22], [0, 0, 4, 5]])
    np.testing.assert_array_equal(answer.scores, [0.75, 0.5])
    points = [[[3, 4], [5, 6], [7, 8], [9, 10], [11, 12.5]], [[np.nan] * 2] * 5]
    np.testing.assert_array_equal(answer.landmarks, points)


def test_arrays_of_no_face(value: dict[str, Any]) -> None:
    answer = Answer.parse({**value, "faces": []})
    assert (answer.boxes.shape, answer.scores.shape, answer.landmarks.shape) == ((0, 4), (0,), (0, 5, 2))


@pytest.mark.parametrize("crops", [True, False])
def test_back_to_the_same_bytes(value: dict[str, Any], crops: bool) -> None:
    if not crops:
        for face in value["faces"]:
            del face["crop"]
    text = json.dumps(value, separators=(",", ":"))
    assert json.dumps(Answer.parse(value).to_json(), separators=(",", ":")) == text
    assert crops == (text == TEXT)


def test_equal_and_sent_between_processes(value: dict[str, Any]) -> None:
    answer = Answer.parse(value)
    assert pickle.loads(pickle.dumps(answer)) == answer
    assert Answer.parse({**value, "batch_size": 3}) != answer


def test_a_later_servers_keys_are_no_fault(value: dict[str, Any]) -> None:
    assert Answer.parse({**value, "new": 1}) == Answer.parse(value)


@pytest.mark.parametrize(
    ("path", "wrong", "message"),
    [
        (["model"], "centerface", "model of the answer is 'centerface': expected an object"),
        (["model", "engine"], 1, r"model\.engine of the answer is 1: expected text"),
        (["image", "width"], 0, r"image\.width of the answer is 0: expected a whole number, 1 or more"),
        (["image", "height"], 48.0, r"image\.height of the answer is 48\.0"),
        (["scale"], True, "scale of the answer is True: expected a finite number"),
        (["scale"], float("nan"), "scale of the answer is nan"),
        (["scale"], 10**400, r"scale of the answer is 10{59}\.\.\.: expected a finite number"),
        (["faces", 0, "box"], [0, 0, 1, 10**400], r"faces\[0\]\.box of the answer is 10{59}"),
        (["timing_ms", "decode"], -(10**400), r"timing_ms\.decode of the answer is -10{58}"),
        (["faces"], {}, "faces of the answer is {}: expected a list"),
        (["faces", 0], None, r"faces\[0\] of the answer is None: expected an object"),
        (["faces", 1, "box"], [1, 2, 3], r"faces\[1\]\.box of the answer is \[1, 2, 3\]: expected 4 numbers"),
        (["faces", 0, "box"], [9, 2, 3, 4], r"expected x1 <= x2 and y1 <= y2"),
        (["faces", 0, "score"], 1.5, r"faces\[0\]\.score of the answer is 1\.5: expected 0\.\.1"),
        (["faces", 0, "landmarks"], {"nose": [1, 2]}, r"expected the keys right_eye, left_eye"),
        (["faces", 0, "landmarks", "nose"], [1, "2"], r"landmarks\.nose of the answer is '2'"),
        (["faces", 0, "crop"], "?", r"faces\[0\]\.crop of the answer is no base64 text"),
        (["timing_ms", "decode"], None, r"timing_ms\.decode of the answer is None"),
        (["batch_size"], "2", "batch_size of the answer is '2'"),
    ],
)
def test_what_is_not_of_the_contract_is_named(
    value: dict[str, Any], path: list[str | int], wrong: object, message: str
) -> None:
    changed: Any = copy.deepcopy(value)
    holder = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = wrong
    with pytest.raises(BadAnswer, match=message):
        Answer.parse(changed)


@pytest.mark.parametrize("key", json.loads(TEXT))
def test_every_key_is_needed(value: dict[str, Any], key: str) -> None:
    del value[key]
    with pytest.raises(BadAnswer, match=f"the answer has no '{key}'"):
        Answer.parse(value)


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_no_object_at_all(value: object) -> None:
    with pytest.raises(BadAnswer, match="expected an object"):
        Answer.parse(value)
