from __future__ import annotations

import copy
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ts
import yaml
from PIL import Image

from handler import metrics
from handler.anchors import STRIDES
from handler.detectors.mogface import MogFace
from handler.errors import ConfigError
from handler.geometry import Uint8
from handler.metrics import (
    BATCH_REQUESTS,
    GPU_WORKERS,
    REQUESTS,
    STAGE_SECONDS,
    Meter,
    Publisher,
    Sample,
    declared,
)
from handler.pipeline import Pipeline
from handler.request import Request
from handler.response import ModelInfo
from tests.handler.fake import BUG, POISON, SETTINGS, FakeDetector, grey
from tests.support import saved

DECLARATION = Path(__file__).parents[2] / "deploy" / "metrics.yaml"
MODEL = ("faces", "2.1")


def samples(meter: Meter) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels): sample.value for sample in meter.drain()}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_declaration_is_torchserves_own_and_what_samples_have() -> None:
    ours, built_in = read(DECLARATION), read(Path(ts.__file__).parent / "configs" / "metrics.yaml")
    found = {
        each["name"]: (kind, tuple(each["dimensions"]))
        for kind, listed in ours["model_metrics"].items()
        for each in listed
        if each["name"].startswith("mogface_")
    }
    assert found == declared()
    for listed in ours["model_metrics"].values():
        listed[:] = [each for each in listed if each["name"] not in found]
    assert {kind: listed for kind, listed in ours["model_metrics"].items() if listed} == built_in["model_metrics"]
    assert ours["ts_metrics"] == built_in["ts_metrics"]
    assert ours["dimensions"] == built_in["dimensions"]


def test_every_sample_is_declared_with_as_many_labels() -> None:
    meter = Meter(*MODEL)
    for family in metrics.FAMILIES:
        labels = ["x"] * len(family.own)
        if isinstance(family, metrics.Histogram):
            meter.observe(family, 0.5, *labels)
        elif isinstance(family, metrics.Counter):
            meter.add(family, 1, *labels)
        elif isinstance(family, metrics.Gauge):
            meter.set(family, 1, *labels)
    drained = meter.drain()
    assert {sample.name: sample.kind for sample in drained} == {name: kind for name, (kind, _) in declared().items()}
    for sample in drained:
        assert len(sample.labels) == len(declared()[sample.name][1]), sample


def test_counts_add_up_until_they_are_drained() -> None:
    meter = Meter(*MODEL)
    for outcome in ("ok", "engine", "ok"):
        meter.add(REQUESTS, 1, outcome)
    assert samples(meter) == {
        ("mogface_requests_total", *MODEL, "ok"): 2,
        ("mogface_requests_total", *MODEL, "engine"): 1,
    }
    assert meter.drain() == []


def test_a_histogram_is_cumulative_and_holds_its_bounds() -> None:
    """Bounds are inclusive: 8 requests are up to 8. Beyond the last bound is only +Inf."""
    meter = Meter(*MODEL)
    for size in (1, 8, 8, 9, 100):
        meter.observe(BATCH_REQUESTS, size)
    found = samples(meter)
    buckets = {le: found["mogface_batch_requests_bucket", *MODEL, le] for le in BATCH_REQUESTS.le}
    assert buckets == {"1": 1, "2": 1, "4": 1, "8": 3, "16": 4, "32": 4, "64": 4, "+Inf": 5}
    assert found["mogface_batch_requests_sum", *MODEL] == 126
    assert found["mogface_batch_requests_count", *MODEL] == 5


def test_buckets_are_all_shown_once_then_those_that_rose() -> None:
    meter = Meter(*MODEL)
    meter.open(STAGE_SECONDS, "decode")
    opened = samples(meter)
    assert set(opened.values()) == {0}
    assert len(opened) == len(STAGE_SECONDS.le) + 2
    meter.observe(STAGE_SECONDS, 7.0, "decode")
    risen = [labels[-1] for name, *labels in samples(meter) if name.endswith("_bucket")]
    assert risen == ["10", "30", "60", "+Inf"]


def test_a_gauge_is_the_last_reading_and_of_no_model() -> None:
    meter = Meter(*MODEL)
    meter.set(GPU_WORKERS, 1, "0")
    meter.set(GPU_WORKERS, 2, "0")
    assert meter.drain() == [Sample("mogface_gpu_workers", "gauge", ("0",), 2)]


def test_no_count_of_many_threads_is_lost() -> None:
    meter = Meter(*MODEL)
    drained: list[Sample] = []

    def work() -> None:
        for _ in range(2000):
            meter.add(REQUESTS, 1, "ok")
            meter.observe(BATCH_REQUESTS, 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained += meter.drain()
    drained += meter.drain()

    def total(name: str) -> float:
        return sum(sample.value for sample in drained if sample.name == name)

    assert total("mogface_requests_total") == 8000
    assert total("mogface_batch_requests_count") == 8000
    assert total("mogface_batch_requests_sum") == 24000


@pytest.mark.parametrize("name", ["a:b", "a,b", "a|b", "a b", "a#b"])
def test_a_name_that_the_lines_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model name is '.*': expected no blank"):
        Meter(name, "1.0")
    with pytest.raises(ConfigError, match=r"version is"):
        Meter("faces", name)


class Taken:
    """A sink."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.came = threading.Event()
        self.fails = 0

    def __call__(self, sample: Sample) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("the pipe is full")
        self.samples.append(sample)
        self.came.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PUBLISH_S", 0.02)
    monkeypatch.setattr(metrics, "READ_S", 0.0)


@pytest.mark.usefixtures("quick")
def test_the_publisher_hands_over_at_once_then_by_itself_and_at_the_end() -> None:
    meter, taken = Meter(*MODEL), Taken()
    meter.add(REQUESTS, 1, "first")
    publisher = Publisher(meter, taken).start()
    assert [sample.labels[-1] for sample in taken.samples] == ["first"]
    taken.came.clear()
    meter.add(REQUESTS, 1, "second")
    assert taken.came.wait(10)
    publisher.stop()
    meter.add(REQUESTS, 1, "third")
    publisher.stop()
    assert [sample.labels[-1] for sample in taken.samples] == ["first", "second", "third"]


@pytest.mark.usefixtures("quick")
def test_a_sink_that_fails_does_not_end_the_publisher(caplog: pytest.LogCaptureFixture) -> None:
    meter, taken = Meter(*MODEL), Taken()
    publisher = Publisher(meter, taken).start()
    taken.fails = 1
    meter.add(REQUESTS, 1, "lost")
    while taken.fails:
        publisher._ended.wait(0.01)
    meter.add(REQUESTS, 1, "ok")
    assert taken.came.wait(10)
    publisher.stop()
    assert "the pipe is full" in caplog.text


@pytest.mark.usefixtures("quick")
def test_readings_are_taken_before_each_hand_over_that_is_due() -> None:
    meter, taken = Meter(*MODEL), Taken()
    publisher = Publisher(meter, taken)
    publisher.watch(lambda given: given.set(GPU_WORKERS, 2, "0"))
    publisher.publish()
    assert taken.samples == [Sample("mogface_gpu_workers", "gauge", ("0",), 2)]


def test_readings_are_not_taken_more_often_than_they_are_due() -> None:
    meter, taken = Meter(*MODEL), Taken()
    publisher = Publisher(meter, taken)
    publisher.watch(lambda given: given.set(GPU_WORKERS, 2, "0"))
    publisher.publish()
    publisher.publish()
    assert len(taken.samples) == 1


# What a pipeline counts.


@pytest.fixture
def counted() -> tuple[Pipeline, Meter]:
    detector = FakeDetector(dataclasses.replace(SETTINGS, engine_batch=4))
    detector.levels = (4, 8)
    meter = Meter(*MODEL)
    made = Pipeline(detector, detector.settings, ModelInfo("fake", "1.0", "none", "ort", "fp32"), meter)
    meter.drain()
    return made, meter


def request(level: int, **headers: str) -> Request:
    data = saved(Image.fromarray(grey(60, 90, level)), "PNG")
    return Request({"body": data}, {f"X-Face-{key}": value for key, value in headers.items()})


def of(found: dict[tuple[str, ...], float], name: str) -> dict[str, float]:
    return {labels[-1]: value for (each, *labels), value in found.items() if each == name and value}


def test_every_request_and_image_is_counted_by_how_it_ended(counted: tuple[Pipeline, Meter]) -> None:
    made, meter = counted
    two = Request({"image1": request(10).fields["body"], "image2": b"none"}, {})
    made.answer([request(10), two, request(POISON), request(BUG), request(10, max_faces="0"), Request({}, {})])
    found = samples(meter)
    assert of(found, "mogface_requests_total") == {
        "ok": 2,
        "engine": 1,
        "internal": 1,
        "invalid_option": 1,
        "invalid_request": 1,
    }
    assert of(found, "mogface_images_total") == {"ok": 2, "invalid_image": 1, "engine": 1, "internal": 1}
    assert found["mogface_faces_total", *MODEL] == 2
    assert found["mogface_batch_requests_sum", *MODEL] == 6
    assert found["mogface_batch_requests_count", *MODEL] == 1
    assert found["mogface_batch_seconds_count", *MODEL] == 1


def test_a_missed_deadline_is_counted(counted: tuple[Pipeline, Meter]) -> None:
    made, meter = counted
    made._settings = dataclasses.replace(made._settings, deadline_s=1e-9)
    made.answer([request(10)])
    found = samples(meter)
    assert of(found, "mogface_requests_total") == of(found, "mogface_images_total") == {"deadline": 1}


def test_native_canvases_share_one_label(counted: tuple[Pipeline, Meter]) -> None:
    """A caller chooses their sizes: one label each would fill the memory of whoever stores them."""
    made, meter = counted
    made.answer([request(10), request(10, canvas="native")])
    assert of(samples(meter), "mogface_canvases_total") == {"64x96": 1, "native": 1}


def test_levels_left_out_are_counted(counted: tuple[Pipeline, Meter]) -> None:
    made, meter = counted
    made.answer([request(10)])
    found = samples(meter)
    assert found["mogface_levels_total", *MODEL, "4", "skipped"] == 1
    assert ("mogface_levels_total", *MODEL, "4", "run") not in found


def test_all_outcomes_stages_and_canvases_are_shown_before_the_first_request() -> None:
    meter = Meter(*MODEL)
    Pipeline(FakeDetector(), SETTINGS, ModelInfo("fake", "1.0", "none", "ort", "fp32"), meter)
    found = samples(meter)
    assert set(found.values()) == {0}
    types = ["deadline", "engine", "internal", "invalid_image", "invalid_option", "invalid_request", "ok"]
    outcomes = sorted(labels[-1] for name, *labels in found if name == "mogface_requests_total")
    assert outcomes == [*types, "out_of_memory", "too_large", "unsupported_image"]
    stages = {labels[-1] for name, *labels in found if name == "mogface_stage_seconds_count"}
    assert stages == {"decode", "preprocess", "network", "postprocess", "encode"}
    assert sum(name == "mogface_canvases_total" for name, *_ in found) == len(SETTINGS.canvases) + 1


def test_stages_of_mogface_are_timed_once_a_run(mogface: MogFace, astronaut: Uint8) -> None:
    """Two images of one run share its seconds; a level is either run or left out, for each image."""
    detector, meter = copy.copy(mogface), Meter(*MODEL)
    detector.settings = dataclasses.replace(detector.settings, engine_batch=2)
    made = Pipeline(detector, detector.settings, ModelInfo("mogface", "1.0", "none", "ort", "fp32"), meter)
    data = saved(Image.fromarray(astronaut), "PNG")
    meter.drain()
    started = time.perf_counter()
    made.answer([Request({"body": data}, {"X-Face-Landmarks": "true", "X-Face-Max-Faces": "3"})] * 2)
    took = time.perf_counter() - started
    found = samples(meter)
    counts = of(found, "mogface_stage_seconds_count")
    assert counts == {
        "decode": 2,
        "preprocess": 2,
        "network": 1,
        "trunk": 1,
        "score_head": 1,
        "box_head": 1,
        "landmarks": 1,
        "postprocess": 2,
        "encode": 2,
    }
    seconds = of(found, "mogface_stage_seconds_sum")
    parts = sum(seconds[stage] for stage in ("trunk", "score_head", "box_head"))
    assert parts == pytest.approx(seconds["network"], rel=0.05)
    assert seconds["network"] + seconds["landmarks"] < took
    assert min(seconds[stage] for stage in ("trunk", "score_head", "box_head")) > 0
    assert found["mogface_run_images_sum", *MODEL] == 2
    assert found["mogface_run_images_count", *MODEL] == 1
    for stride in STRIDES:
        runs = [found.get(("mogface_levels_total", *MODEL, str(stride), each), 0) for each in ("run", "skipped")]
        assert sum(runs) == 2
