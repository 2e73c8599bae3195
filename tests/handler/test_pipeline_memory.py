"""A batch runs in parts that hold no more than one request may, and nobody's answer shows it."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from handler import loader
from handler.config import Limits
from handler.counts import Counts
from handler.image import COSTLIEST, Decoded, decode
from handler.pipeline import Pipeline
from handler.request import Request
from tests.handler.fake import FakeDetector
from tests.handler.test_pipeline import body, outcome, outcomes, picture, pipeline, request

#: Of one picture of tests.handler.test_pipeline.picture.
PIXELS = 60 * 90


def several(*levels: int) -> Request:
    images = [base64.b64encode(picture(level)).decode() for level in levels]
    return Request({"body": {"images": images}}, {"Content-Type": "application/json"})


def of(count: int, **limits: int) -> Pipeline:
    """A pipeline whose requests may have ``count`` pictures' pixels."""
    return pipeline(FakeDetector(), engine_batch=8, limits=Limits(request_pixels=count * PIXELS, **limits))


def batches(given: Pipeline) -> list[list[int]]:
    detector = given._detector
    assert isinstance(detector, FakeDetector)
    return detector.batches


def test_parts_hold_no_more_pixels_than_a_request_may() -> None:
    given = of(3)
    responses = given.answer([request(level) for level in (10, 20, 30, 40, 50, 60, 70)])
    assert outcomes(responses) == [[10], [20], [30], [40], [50], [60], [70]]
    assert batches(given) == [[10, 20, 30], [40, 50, 60], [70]]
    # As it says: how many ran together.
    assert [body(response)["batch_size"] for response in responses] == [3, 3, 3, 3, 3, 3, 1]


def test_a_request_is_never_divided() -> None:
    given = of(3)
    given.answer([request(10), several(20, 30, 40), request(50)])
    assert batches(given) == [[10], [20, 30, 40], [50]]


def test_parts_hold_no_more_images_than_a_request_may() -> None:
    given = of(100, images=4)
    given.answer([several(10, 20), several(30, 40), several(50, 60, 70), request(80)])
    assert batches(given) == [[10, 20, 30, 40], [50, 60, 70, 80]]


def test_single_images_are_not_divided_however_many_come() -> None:
    given = of(100, images=2)
    given.answer([request(level) for level in (10, 20, 30, 40)])
    assert batches(given) == [[10, 20, 30, 40]]


def test_requests_without_a_picture_are_answered_in_their_place() -> None:
    given = of(1)
    bad = Request({"body": b"none"}, {})
    responses = given.answer([bad, request(10), Request({}, {}), request(20), bad])
    assert outcomes(responses) == ["invalid_image", [10], "invalid_request", [20], "invalid_image"]


@pytest.mark.parametrize(("count", "status"), [(3, 200), (4, 413)])
def test_a_request_of_too_many_pixels_is_refused_whole(count: int, status: int) -> None:
    given = of(3)
    responses = given.answer([request(10), several(*range(20, 20 + count)), request(90)])
    assert [response.status for response in responses] == [200, status, 200]
    if status == 413:
        message = body(responses[1])["error"]["message"]
        assert message == f"the 4 images have {4 * PIXELS:,} pixels: at most {3 * PIXELS:,} a request are taken"
        # None of its images was decoded.
        assert sorted(level for levels in batches(given) for level in levels) == [10, 90]


def test_images_that_are_none_count_nothing() -> None:
    images = [base64.b64encode(data).decode() for data in (picture(10), b"none", picture(20))]
    [response] = of(2).answer([Request({"body": {"images": images}}, {"Content-Type": "application/json"})])
    assert [outcome(each) for each in body(response)["results"]] == [[10], "invalid_image", [20]]


def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Slows decoding down; the most pictures that were decoded at once."""
    lock, now, most = threading.Lock(), 0, 0

    def slow(*arguments: Any) -> Decoded:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return decode(*arguments)

    monkeypatch.setattr(loader, "decode", slow)
    return lambda: most


@pytest.mark.parametrize(("pixels", "at_once"), [(PIXELS, 1), (3 * PIXELS, 5), (100 * PIXELS, 6)])
def test_no_more_is_decoded_at_once_than_the_costliest_image_takes(
    pixels: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = held(monkeypatch)
    given = pipeline(FakeDetector(), decode_threads=6, limits=Limits(pixels=pixels))
    assert outcomes(given.answer([request(level) for level in range(10, 22)])) == [[level] for level in range(10, 22)]
    # A PNG takes 16 bytes a pixel where the costliest takes 28: five of them have room where three of the other have.
    assert COSTLIEST == 28
    assert most() == at_once


def test_a_picture_that_fails_gives_its_room_back() -> None:
    cut = Request({"body": picture(10)[:60]}, {})
    given = pipeline(FakeDetector(), decode_threads=2, limits=Limits(pixels=PIXELS))
    for _ in range(3):
        assert outcomes(given.answer([cut, cut, request(30)])) == ["invalid_image", "invalid_image", [30]]


def test_pictures_of_a_part_are_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    count = Counts.batch

    def look(self: Counts, responses: Any, images: Any, seconds: float) -> None:
        kept.extend(image.image for image in images)
        count(self, responses, images, seconds)

    monkeypatch.setattr(Counts, "batch", look)
    of(1).answer([request(10, Output="image"), request(20, Crops="true")])
    assert kept == [None, None]
