from __future__ import annotations

import base64
import dataclasses
import io
import json
import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handler import loader
from handler import pipeline as module
from handler.config import Limits, Settings
from handler.detectors.centerface import CenterFace
from handler.geometry import Uint8
from handler.image import decode
from handler.pipeline import Pipeline
from handler.request import Request
from handler.response import ModelInfo, Response
from tests.handler.fake import BUG, CPU, POISON, FakeDetector, grey
from tests.support import saved

MODEL = ModelInfo("fake", "1.0", "none", "ort", "fp32")


@pytest.fixture
def fake() -> FakeDetector:
    return FakeDetector()


def pipeline(detector: FakeDetector, **changes: Any) -> Pipeline:
    settings = dataclasses.replace(detector.settings, **changes)
    detector.settings = settings
    return Pipeline(detector, settings, MODEL)


def picture(level: int, height: int = 60, width: int = 90) -> bytes:
    return saved(Image.fromarray(grey(height, width, level)), "PNG")


def request(level: int, name: str = "", **headers: str) -> Request:
    return Request({"body": picture(level)}, {f"X-Face-{key}": value for key, value in headers.items()}, name)


def body(response: Response) -> Any:
    return json.loads(response.body)


def outcome(content: Any) -> Any:
    """The grey level that the fake detector's score tells, or the error's type."""
    return content["error"]["type"] if "error" in content else [round(face["score"] * 255) for face in content["faces"]]


def outcomes(responses: list[Response]) -> list[Any]:
    return [outcome(body(response)) for response in responses]


def test_each_request_is_answered_in_its_place(fake: FakeDetector) -> None:
    responses = pipeline(fake, engine_batch=4).answer([request(level) for level in (10, 20, 30)])
    assert outcomes(responses) == [[10], [20], [30]]
    assert [response.status for response in responses] == [200, 200, 200]
    assert [body(response)["batch_size"] for response in responses] == [3, 3, 3]
    assert fake.batches == [[10, 20, 30]]


def test_no_requests_no_responses(fake: FakeDetector) -> None:
    assert pipeline(fake).answer([]) == []


def test_good_and_bad_requests_do_not_meet(fake: FakeDetector) -> None:
    def base64_of(level: int) -> str:
        return base64.b64encode(picture(level)).decode()

    json_headers = {"Content-Type": "application/json"}
    requests = [
        request(10),
        Request({"body": b"no picture"}, {}),
        request(20, Treshold="1"),
        request(POISON),
        Request({"body": {"images": [base64_of(30), "?", base64_of(POISON), base64_of(40)]}}, json_headers),
        Request({"body": [1]}, json_headers),
        Request({}, {}),
        request(50, Max_Faces="0"),
        request(60),
    ]
    responses = pipeline(fake, engine_batch=8).answer(requests)
    statuses = [200, 400, 400, 500, 200, 400, 400, 400, 200]
    assert [response.status for response in responses] == statuses
    listed = [outcome(each) for each in body(responses.pop(4))["results"]]
    assert listed == [[30], "invalid_image", "engine", [40]]
    assert outcomes(responses) == [
        [10],
        "invalid_image",
        "invalid_option",
        "engine",
        "invalid_request",
        "invalid_request",
        "invalid_option",
        [60],
    ]


@pytest.mark.parametrize("size", [1, 8])
def test_a_fault_of_the_program_in_the_detector_costs_its_image_alone(
    fake: FakeDetector, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [request(10, "first"), request(BUG, "second"), request(20, "third")]
    with caplog.at_level(logging.ERROR, "mogface"):
        responses = pipeline(fake, engine_batch=size).answer(requests)
    assert outcomes(responses) == [[10], "internal", [20]]
    assert "second" in body(responses[1])["error"]["message"]
    assert "nobody thought of" not in responses[1].body.decode()
    faults = [record for record in caplog.records if record.exc_info]
    assert "nobody thought of" in str(faults[-1].exc_info[1])  # type: ignore[index]
    assert json.loads(faults[-1].getMessage()) == {"event": "fault", "request": "second"}


@pytest.mark.parametrize("step", ["parse", "decode", "encode"])
def test_a_fault_of_the_program_anywhere_costs_its_request_alone(
    fake: FakeDetector, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    where = loader if step == "decode" else module
    original, calls = getattr(where, step), iter(range(3))
    lock = threading.Lock()
    guilty = [request(10, "a"), request(20, "b"), request(30, "c")]

    def second_fails(*args: Any) -> Any:
        with lock:
            call = next(calls)
        if call == 1:
            raise ZeroDivisionError("nobody thought of it")
        return original(*args)

    monkeypatch.setattr(where, step, second_fails)
    # One decoder, so that calls are in order.
    with caplog.at_level(logging.ERROR, "mogface"):
        responses = pipeline(fake, decode_threads=1).answer(guilty)
    assert outcomes(responses) == [[10], "internal", [30]]
    assert body(responses[1])["error"]["message"] == "a fault of the server, logged under request b"
    (record,) = caplog.records
    assert json.loads(record.getMessage()) == {"event": "fault", "request": "b"}
    assert record.exc_info is not None


def test_a_fault_in_preparing_costs_its_image_alone(fake: FakeDetector, monkeypatch: pytest.MonkeyPatch) -> None:
    original = fake.prepare

    def prepare(image: Image.Image, *args: Any) -> Any:
        if image.getpixel((0, 0)) == (20, 20, 20):
            raise MemoryError
        return original(image, *args)

    monkeypatch.setattr(fake, "prepare", prepare)
    assert outcomes(pipeline(fake).answer([request(10), request(20), request(30)])) == [[10], "internal", [30]]


def test_images_past_the_deadline_answer_that_they_may_be_sent_again(fake: FakeDetector) -> None:
    now = pipeline(fake, deadline_s=1e-9).answer([request(10), Request({"body": 7}, {})])
    # Neither decoded nor run; what is wrong with a request's form is told all the same.
    assert [response.status for response in now] == [503, 400]
    assert outcomes(now) == ["deadline", "invalid_image"]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_answers_are_the_same_whether_decoding_overlaps_the_network_or_not(
    overlap: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    seen: list[int] = []
    network = threading.Event()

    def held(*args: Any) -> Any:
        """The fifth picture is decoded only once the network has begun, where it may."""
        found = decode(*args)
        if found.array[0, 0, 0] == 50 and overlap:
            assert network.wait(60)
        decoded.append(1)
        return found

    def begun() -> None:
        seen.append(len(decoded))
        network.set()

    monkeypatch.setattr(loader, "decode", held)
    fake = FakeDetector()
    fake.before = begun
    fake.settings = dataclasses.replace(fake.settings, engine_batch=size, decode_threads=2)
    given = Pipeline(fake, fake.settings, MODEL, overlap=overlap)
    levels = [10, 20, POISON, 30, 50, BUG, 60]
    # Of another canvas: which images run together is decided by their order alone.
    requests = [*map(request, levels), Request({"body": picture(70, 90, 60)}, {}), request(80)]
    assert outcomes(given.answer(requests)) == [[10], [20], "engine", [30], [50], "internal", [60], [70], [80]]
    assert fake.batches[0] == [10, 20][:size]
    assert (seen[0] < len(requests)) == overlap


def test_an_answer_over_the_limit_costs_its_request_alone(fake: FakeDetector) -> None:
    texts = [base64.b64encode(picture(level)).decode() for level in (10, 20, 30)]
    several = Request({"body": {"images": texts}}, {"Content-Type": "application/json"})
    one, three = pipeline(fake).answer([request(40), several])
    limit = Limits(response_bytes=(len(one.body) + len(three.body)) // 2)
    responses = pipeline(fake, limits=limit).answer([request(40), several, request(50)])
    assert [response.status for response in responses] == [200, 413, 200]
    assert outcomes(responses) == [[40], "too_large", [50]]


def test_limits_of_one_image_hold_for_it_alone(fake: FakeDetector) -> None:
    large = Request({"body": picture(20, 100, 100)}, {})
    responses = pipeline(fake, limits=Limits(pixels=9_999)).answer([request(10), large])
    assert outcomes(responses) == [[10], "too_large"]


def test_an_annotated_picture_is_an_answer_beside_others(fake: FakeDetector) -> None:
    shown, told = pipeline(fake).answer([request(10, Output="image"), request(20)])
    assert (shown.status, shown.content_type, shown.faces) == (200, "image/png", 1)
    with Image.open(io.BytesIO(shown.body)) as drawn:
        assert drawn.size == (90, 60)
        assert drawn.getpixel((1, 30)) == (0, 230, 90)
        assert drawn.getpixel((45, 30)) == (10, 10, 10)
    assert outcome(body(told)) == [20]


def test_a_line_is_logged_for_each_request_with_nothing_of_its_image(
    fake: FakeDetector, caplog: pytest.LogCaptureFixture
) -> None:
    text = base64.b64encode(picture(10)).decode()
    secret = Request({"body": {"images": [text, "c2VjcmV0"]}}, {"content-type": "application/json"}, "id-2")
    with caplog.at_level(logging.INFO, "mogface"):
        responses = pipeline(fake).answer([request(10, "id-1"), secret, Request({"body": b"secret"}, {}, "id-3")])
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert all(line.pop("ms") > 0 for line in lines)
    shared = {"event": "request", "batch_size": 3}
    sizes = [len(response.body) for response in responses]
    assert lines == [
        {**shared, "request": "id-1", "status": 200, "images": 1, "faces": 1, "bytes": sizes[0]},
        {**shared, "request": "id-2", "status": 200, "images": 2, "faces": 1, "bytes": sizes[1]},
        {
            **shared,
            "request": "id-3",
            "status": 400,
            "images": 1,
            "faces": 0,
            "bytes": sizes[2],
            "error": "invalid_image",
        },
    ]
    assert "secret" not in caplog.text
    assert text[:20] not in caplog.text


def test_no_line_is_logged_where_the_archive_says_so(fake: FakeDetector, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mogface"):
        pipeline(fake, log_requests=False).answer([request(10)])
    assert caplog.records == []


# --- with the real embedded detector ---


@pytest.fixture(scope="module")
def real(centerface: CenterFace, centerface_settings: Settings) -> Pipeline:
    return Pipeline(centerface, centerface_settings, MODEL)


def mixed(astronaut: Uint8) -> list[Request]:
    """Of different sizes, options and worth."""
    face = Image.fromarray(astronaut[:256, 100:356])

    def sent(width: int, height: int, format: str = "PNG", **headers: str) -> Request:
        resized = face.resize((width, height))
        return Request({"body": saved(resized, format)}, {f"X-Face-{key}": value for key, value in headers.items()})

    texts = [base64.b64encode(saved(face.resize(size), "JPEG")).decode() for size in ((200, 200), (90, 150))]
    return [
        sent(256, 256),
        Request({"body": b"nothing to see"}, {}),
        sent(300, 200, "JPEG", Landmarks="false"),
        sent(120, 250, "WEBP", Nms_Threshold="1", Score_Threshold="0.2"),
        sent(256, 256, Canvas="320x320"),
        sent(128, 128, Canvas="native"),
        sent(256, 256, Crops="true"),
        sent(256, 256, Score_Threshold="1"),
        sent(256, 256, Output="modelscope"),
        Request({"body": {"images": [texts[0], "?", texts[1]]}}, {"content-type": "application/json"}),
        sent(256, 256, Max_Faces="1", Order="size", Nms_Threshold="0.9"),
        sent(256, 256, Nonsense="1"),
    ]


def assert_same(together: Any, alone: Any) -> None:
    """Equal but for times and batch sizes, numbers within 1e-5."""
    if isinstance(together, dict):
        assert set(together) == set(alone)
        for key in set(together) - {"timing_ms", "batch_size"}:
            assert_same(together[key], alone[key])
    elif isinstance(together, list):
        assert len(together) == len(alone)
        for first, second in zip(together, alone, strict=True):
            assert_same(first, second)
    elif isinstance(together, float):
        assert abs(together - alone) <= 1e-5 * max(1.0, abs(alone))
    else:
        assert together == alone


def test_every_request_is_answered_as_if_alone(real: Pipeline, astronaut: Uint8) -> None:
    requests = mixed(astronaut)
    together = real.answer(requests)
    assert [response.status for response in together] == [200, 400, *[200] * 9, 400]
    for request, response in zip(requests, together, strict=True):
        (alone,) = real.answer([request])
        assert response.status == alone.status
        assert_same(body(response), body(alone))


def test_options_hold_for_their_own_request_alone(real: Pipeline, astronaut: Uint8) -> None:
    answers = [body(response) for response in real.answer(mixed(astronaut))]
    plain, _, no_landmarks, many, other_canvas, native, crops, none, modelscope, several, *_ = answers
    assert len(plain["faces"]) == 1
    assert plain["faces"][0]["landmarks"] is not None
    assert no_landmarks["faces"][0]["landmarks"] is None
    assert len(many["faces"]) > 1
    assert (plain["canvas"], other_canvas["canvas"], native["canvas"]) == ("256x256", "320x320", "128x128")
    assert "crop" in crops["faces"][0]
    assert "crop" not in plain["faces"][0]
    assert none["faces"] == []
    assert len(modelscope["scores"]) == 1
    assert [len(each.get("faces", [])) for each in several["results"]] == [1, 0, 1]
    np.testing.assert_allclose(plain["faces"][0]["box"], np.array([181, 58, 270, 178]) - [100, 0, 100, 0], atol=12)


def test_overlapping_changes_no_digit(centerface: CenterFace, centerface_settings: Settings, astronaut: Uint8) -> None:
    """In batches of four: the same images go together, in the same order."""
    told = []
    for overlap in (False, True):
        responses = Pipeline(centerface, centerface_settings, MODEL, overlap=overlap).answer(mixed(astronaut) * 2)
        told.append([re.sub(rb'"timing_ms":{[^}]*}', b"", response.body) for response in responses])
    assert sum(b'"faces":[{' in each for each in told[0]) >= 12
    assert told[0] == told[1]


def test_answers_name_the_model_that_was_loaded(centerface_folder: Path, centerface_settings: Settings) -> None:
    loaded = Pipeline.load(centerface_folder, centerface_settings, "faces", "2.1", CPU)
    (response,) = loaded.answer([request(10)])
    assert body(response)["model"] == {
        "name": "faces",
        "version": "2.1",
        "weights": "none",
        "engine": "ort",
        "precision": "fp32",
    }
