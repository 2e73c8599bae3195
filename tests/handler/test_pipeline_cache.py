"""The cache in a pipeline: what is in it is neither decoded nor run, and no answer shows it but by saying so."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import pytest

from handler import loader
from handler.cache import ENTRY_BYTES, FACE_BYTES
from handler.config import Limits, Settings
from handler.detectors.centerface import CenterFace
from handler.geometry import Uint8
from handler.metrics import Meter
from handler.pipeline import Pipeline
from handler.request import Request
from handler.response import Response
from tests.handler.fake import BUG, POISON, FakeDetector
from tests.handler.test_pipeline import MODEL, body, mixed, outcome, outcomes, picture, pipeline, request

ROOM = 1_000_000


def several(*images: bytes) -> Request:
    texts = [base64.b64encode(data).decode() for data in images]
    return Request({"body": {"images": texts}}, {"Content-Type": "application/json"})


def plain(content: Any) -> Any:
    """An answer without what may differ: its times, and whether it says that it was cached."""
    if "results" in content:
        return {"results": [plain(each) for each in content["results"]]}
    return {key: value for key, value in content.items() if key not in ("timing_ms", "cached")}


def cached(response: Response) -> list[bool]:
    content = body(response)
    return [each.get("cached", False) for each in content.get("results", [content])]


@pytest.fixture
def fake() -> FakeDetector:
    return FakeDetector()


def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*args: Any) -> Any:
        raise AssertionError("a header was read or a picture decoded")

    monkeypatch.setattr(loader, "decode", called)
    monkeypatch.setattr(loader, "read_header", called)


def test_the_second_time_nothing_is_decoded_or_run(fake: FakeDetector, monkeypatch: pytest.MonkeyPatch) -> None:
    given = pipeline(fake, cache_bytes=ROOM)
    first = given.answer([request(10), request(20)])
    no_decoder(monkeypatch)
    second = given.answer([request(20), request(10)])
    assert fake.batches == [[10], [20]]
    assert [plain(body(each)) for each in second] == [plain(body(each)) for each in reversed(first)]
    assert [cached(each) for each in first + second] == [[False], [False], [True], [True]]
    assert set(body(second[0])["timing_ms"].values()) == {0}
    assert second[0].faces == 1


def test_by_itself_there_is_no_cache(fake: FakeDetector) -> None:
    given = pipeline(fake)
    assert [cached(each) for each in given.answer([request(10)]) + given.answer([request(10), request(10)])] == (
        [[False]] * 3
    )
    assert fake.batches == [[10], [10], [10]]


def test_hits_misses_errors_and_duplicates_in_one_request(fake: FakeDetector) -> None:
    given = pipeline(fake, cache_bytes=ROOM, engine_batch=8)
    given.answer([request(10)])
    [response] = given.answer([several(picture(20), picture(10), b"none", picture(20), picture(30), picture(10))])
    assert [outcome(each) for each in body(response)["results"]] == [[20], [10], "invalid_image", [20], [30], [10]]
    assert cached(response) == [False, True, False, True, False, True]
    assert fake.batches == [[10], [20, 30]]


def test_duplicates_of_several_requests_run_once(fake: FakeDetector) -> None:
    given = pipeline(fake, cache_bytes=ROOM, engine_batch=8)
    responses = given.answer([request(10), several(picture(20), picture(10)), request(20), request(10)])
    assert fake.batches == [[10, 20]]
    assert [cached(each) for each in responses] == [[False], [False, True], [True], [True]]
    assert outcome(body(responses[3])) == [10]


def test_duplicates_of_several_parts_run_once_even_without_room(fake: FakeDetector) -> None:
    """A cache that keeps nothing: what this batch has found is still there for its later parts."""
    given = pipeline(fake, cache_bytes=1, limits=Limits(request_pixels=60 * 90))
    assert outcomes(given.answer([request(10), request(20), request(10)])) == [[10], [20], [10]]
    assert fake.batches == [[10], [20]]
    given.answer([request(10)])
    assert fake.batches == [[10], [20], [10]]


def test_other_options_are_another_answer(fake: FakeDetector) -> None:
    given = pipeline(fake, cache_bytes=ROOM, engine_batch=8)
    few, many = given.answer([request(10, Score_Threshold="0.9"), request(10)])
    assert [outcome(body(each)) for each in (few, many)] == [[10], [10]]
    assert fake.batches == [[10, 10]]
    # Both shapes of an answer come of one result.
    [shape] = given.answer([request(10, Output="modelscope")])
    assert body(shape)["scores"] == [body(many)["faces"][0]["score"]]
    assert fake.batches == [[10, 10]]


@pytest.mark.parametrize("how", [{"Crops": "true"}, {"Output": "image"}])
def test_what_shows_the_picture_goes_past(fake: FakeDetector, how: dict[str, str]) -> None:
    given = pipeline(fake, cache_bytes=ROOM)
    first, second = (given.answer([request(10, **how)])[0].body for _ in range(2))
    assert fake.batches == [[10], [10]]
    if "Output" in how:
        assert first == second


@pytest.mark.parametrize(("level", "type"), [(POISON, "engine"), (BUG, "internal")])
def test_errors_are_not_kept(fake: FakeDetector, level: int, type: str) -> None:
    given = pipeline(fake, cache_bytes=ROOM)
    for _ in range(2):
        assert outcomes(given.answer([request(level), request(10), request(level)])) == [type, [10], type]
    tried = [levels for levels in fake.batches if levels == [level]]
    assert len(tried) >= 2
    assert fake.batches.count([10]) <= 2
    # It may pass: then the same image is answered.
    fake._detect = lambda images: [fake._face(image, 7) for image in images]  # type: ignore[method-assign]
    assert outcomes(given.answer([request(level)])) == [[7]]


def test_a_missed_deadline_is_not_kept(fake: FakeDetector) -> None:
    given = pipeline(fake, cache_bytes=ROOM, deadline_s=1e-9)
    assert outcomes(given.answer([request(10)])) == ["deadline"]
    given._settings = dataclasses.replace(given._settings, deadline_s=60)
    assert outcomes(given.answer([request(10)])) == [[10]]


def test_limits_hold_for_what_is_cached(fake: FakeDetector) -> None:
    limits = Limits(request_pixels=2 * 60 * 90, images=3)
    given = pipeline(fake, cache_bytes=ROOM, limits=limits)
    given.answer([request(10)])
    [whole] = given.answer([several(picture(10), picture(10), picture(10))])
    assert (whole.status, body(whole)["error"]["type"]) == (413, "too_large")


def test_batches_are_of_the_same_parts_as_without(fake: FakeDetector) -> None:
    limits = Limits(request_pixels=2 * 60 * 90)
    requests = [request(level) for level in (10, 20, 30)]
    given = pipeline(fake, cache_bytes=ROOM, limits=limits)
    sizes = [[body(each)["batch_size"] for each in given.answer(requests)] for _ in range(2)]
    assert sizes == [[2, 2, 1]] * 2


def test_lookups_and_evictions_are_counted(fake: FakeDetector) -> None:
    settings = dataclasses.replace(fake.settings, cache_bytes=2 * (ENTRY_BYTES + FACE_BYTES), engine_batch=8)
    fake.settings, meter = settings, Meter("faces", "1")
    given = Pipeline(fake, settings, MODEL, meter)

    def counted() -> dict[str, float]:
        return {
            "/".join((sample.name.removeprefix("mogface_"), *sample.labels[2:])): sample.value
            for sample in meter.drain()
            if "cache" in sample.name or sample.name in ("mogface_images_total", "mogface_canvases_total")
            if sample.value or "cache" in sample.name
        }

    opened = counted()
    assert opened == dict.fromkeys(
        [
            "cache_lookups_total/hit",
            "cache_lookups_total/miss",
            "cache_lookups_total/duplicate",
            "cache_evictions_total",
        ],
        0,
    )
    given.answer([request(10), request(10), request(20), request(30, Crops="true")])
    first = counted()
    assert first.pop("cache_evictions_total") == 0
    assert first == {
        "cache_lookups_total/miss": 2,
        "cache_lookups_total/duplicate": 1,
        "images_total/ok": 4,
        # One a run image: of nothing that came out of the cache.
        "canvases_total/64x96": 3,
    }
    given.answer([request(20), request(10), request(40)])
    assert counted() == {
        "cache_lookups_total/hit": 2,
        "cache_lookups_total/miss": 1,
        "cache_evictions_total": 1,
        "images_total/ok": 3,
        "canvases_total/64x96": 1,
    }


def test_without_a_cache_nothing_is_looked_up(fake: FakeDetector) -> None:
    meter = Meter("faces", "1")
    Pipeline(fake, fake.settings, MODEL, meter).answer([request(10)])
    assert {sample.value for sample in meter.drain() if "cache" in sample.name} == {0}


def test_answers_of_the_real_detector_are_the_same(
    centerface: CenterFace, centerface_settings: Settings, astronaut: Uint8
) -> None:
    """To the last digit; that the numbers behind them are the same objects, test_cache.py shows."""
    requests = mixed(astronaut)
    off = dataclasses.replace(centerface_settings, engine_batch=1)
    detector = CenterFace(off, centerface._engine)
    expected = Pipeline(detector, off, MODEL).answer(requests)
    given = Pipeline(detector, dataclasses.replace(off, cache_bytes=ROOM), MODEL)
    given.answer(requests)
    hits = 0
    for one, other in zip(given.answer(requests), expected, strict=True):
        assert (one.status, one.content_type, one.faces) == (other.status, other.content_type, other.faces)
        hits += sum(cached(one))
        assert json.dumps(plain(body(one))) == json.dumps(plain(body(other)))
    assert hits == 9


def test_the_archive_is_part_of_the_key(centerface: CenterFace, centerface_settings: Settings) -> None:
    settings = dataclasses.replace(centerface_settings, cache_bytes=ROOM)
    one, other = (Pipeline(centerface, settings, MODEL, archive=archive) for archive in (b"one", b"other"))
    data = picture(10)
    assert one._cache.key(data, settings.options) != other._cache.key(data, settings.options)
