"""CUDA graphs of plans, on the CPU, by the fake TensorRT and a device whose recordings are lists of calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from handler import detectors
from handler.config import Settings
from handler.cuda import Cuda
from handler.detectors.mogface import MogFace
from handler.engines import trt
from handler.engines.trt import TrtEngine
from handler.errors import EngineError
from handler.geometry import Uint8
from handler.tensorrt.graphs import Graphs, Size
from tests import fake_tensorrt as fake
from tests.fake_plans import PROFILES, doubled_engine, pretend
from tests.handler.engine_contract import WIDTH, check
from tests.handler.fake import CPU

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    fake.Host.recorded = fake.Host.replayed = 0
    yield
    fake.FAULTS.clear()
    trt._open.cache_clear()


def recorded_engine(folder: Path) -> TrtEngine:
    return doubled_engine(folder, recorded=[(WIDTH,)])


def test_contract(tmp_path: Path) -> None:
    """Batches of 7 run as 2, 2, 2 and 1, by two recordings."""
    engine = recorded_engine(tmp_path)
    check(engine, (7, 7, 2, 1))
    assert fake.Host.recorded == 2
    assert fake.Host.replayed >= 4 + 4 + 1 + 1


def test_one_recording_a_size(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path)
    counts = []
    for rows in (2, 2, 1, 5, 4):
        x = torch.rand(rows, WIDTH)
        assert torch.equal(engine.run({"x": x})["y"], 2 * x + 1)
        counts.append((fake.Host.recorded, fake.Host.replayed))
    assert counts == [(1, 1), (1, 2), (2, 3), (2, 6), (2, 8)]


@pytest.mark.parametrize(
    ("rows", "most", "expected"),
    [(1, 8, [1]), (7, 8, [4, 2, 1]), (8, 8, [8]), (9, 4, [4, 4, 1]), (6, 3, [2, 2, 2]), (3, 1, [1, 1, 1])],
)
def test_batches_are_made_up_of_powers_of_two(rows: int, most: int, expected: list[int]) -> None:
    graphs = Graphs(fake.Host(), lambda: pytest.fail("nothing runs"), ("x", torch.float32), {}, [Size((3,), 0, most)])
    parts = list(graphs.parts((rows, 3)))
    assert [part.stop - part.start for part in parts] == expected
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))


def test_other_shapes_run_unrecorded(tmp_path: Path) -> None:
    engine = doubled_engine(tmp_path, recorded=[(9,)], profiles=PROFILES[:1])
    x = torch.rand(3, WIDTH)
    assert torch.equal(engine.run({"x": x})["y"], 2 * x + 1)
    assert fake.Host.recorded == 0


def test_a_larger_scratch_is_recorded_anew(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path)
    check(engine)
    before = fake.Host.recorded
    engine._worker.reserve(1 << 20)
    check(engine)
    assert fake.Host.recorded == 2 * before


def _not_copied_in(patch: Patch) -> None:
    """What is recorded reads another address than the inputs are copied to."""
    run = Graphs._record

    def record(self: Graphs, *given: Any) -> Any:
        recording = run(self, *given)
        return dataclasses.replace(recording, input=recording.input.clone())

    patch.setattr(Graphs, "_record", record)


def _not_copied_out(patch: Patch) -> None:
    run = Graphs._record

    def record(self: Graphs, *given: Any) -> Any:
        recording = run(self, *given)
        return dataclasses.replace(recording, outputs={name: each.clone() for name, each in recording.outputs.items()})

    patch.setattr(Graphs, "_record", record)


def _one_context(patch: Patch) -> None:
    """All recordings of one context, which each later one changes."""
    patch.setattr(
        TrtEngine, "_another", lambda self, make=TrtEngine._another: self.__dict__.setdefault("x", make(self))
    )


def _unrun(patch: Patch) -> None:
    """Recorded without a first run."""
    run = fake._Context._compute
    patch.setattr(fake._Context, "_compute", lambda self, *given: None if not fake.Host.replayed else run(self, *given))
    patch.setattr(fake._Context, "_ran", property(lambda self: {}, lambda self, value: None), raising=False)


def _one_bucket(patch: Patch) -> None:
    """Parts of one size, and what is left over in none."""
    patch.setattr(Graphs, "parts", lambda self, shape: (slice(at, at + 2) for at in range(0, shape[0] - 1, 2)))


def _larger_bucket(patch: Patch) -> None:
    patch.setattr(Graphs, "parts", lambda self, shape: iter([slice(0, shape[0])]))


def _another_s_recording(patch: Patch) -> None:
    """The first recording, whatever the batch."""
    patch.setattr(Graphs, "_record", _first(Graphs._record))


def _first(record: Callable[..., Any]) -> Callable[..., Any]:
    made: list[Any] = []

    def again(self: Graphs, *given: Any) -> Any:
        made.append(record(self, *given) if not made else made[0])
        return made[-1]

    return again


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    "inputs to another address": _not_copied_in,
    "outputs of another address": _not_copied_out,
    "one context for all": _one_context,
    "recorded without a run": _unrun,
    "one bucket for all": _one_bucket,
    "a bucket over the profile": _larger_bucket,
    "another bucket's recording": _another_s_recording,
    "rows in another order": lambda patch: fake.FAULTS.add("rows"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_no_mutation_passes(mutation: str, tmp_path: Path, monkeypatch: Patch) -> None:
    MUTATIONS[mutation](monkeypatch)
    engine = recorded_engine(tmp_path)
    with pytest.raises((EngineError, AssertionError)):
        check(engine, (7, 7, 2, 1))


def test_the_same_faces(
    trt_folder: Path, trt_settings: Settings, mogface: MogFace, picture: Callable[..., Uint8], monkeypatch: Patch
) -> None:
    pretend(monkeypatch)
    detector = detectors.load(trt_folder, dataclasses.replace(trt_settings, cuda_graphs=True), CPU)
    assert isinstance(detector, MogFace)
    options = mogface.settings.options
    images = [picture(128, 128, seed) for seed in range(3)] + [picture(96, 128, 5)]
    expected = mogface.detect([mogface.prepare(image, options) for image in images], np.inf)
    for _ in range(2):
        counted = fake.Host.recorded
        got = detector.detect([detector.prepare(image, options) for image in images], np.inf)
        for ours, theirs in zip(got, expected, strict=True):
            assert isinstance(ours, detectors.Result)
            assert isinstance(theirs, detectors.Result)
            assert len(theirs.detections.boxes) > 3
            np.testing.assert_allclose(ours.detections.boxes, theirs.detections.boxes, atol=0.01)
            np.testing.assert_allclose(ours.detections.scores, theirs.detections.scores, atol=1e-4)
    # Nothing new is recorded for what came before. Two batch sizes on one canvas, one on the other, of the trunk.
    assert fake.Host.recorded == counted >= 3
    native = dataclasses.replace(options, canvas="native")
    [result] = detector.detect([detector.prepare(picture(100, 110, 3), native)], np.inf)
    assert isinstance(result, detectors.Result)
    assert fake.Host.recorded == counted


def test_a_cuda_graph_is_recorded_on_the_engines_stream(monkeypatch: Patch) -> None:
    """The order of calls, on stand-ins for torch's."""
    steps: list[object] = []

    class Stream:
        cuda_stream = 5

        def __init__(self, device: object) -> None:
            pass

    class Graph:
        def replay(self) -> None:
            steps.append("replay")

    class Recorded:
        def __init__(self, graph: Graph, stream: Stream, capture_error_mode: str) -> None:
            steps.append((stream.cuda_stream, capture_error_mode))

        def __enter__(self) -> None:
            steps.append("begin")

        def __exit__(self, *error: object) -> None:
            steps.append("end")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Recorded)
    replay = Cuda(torch.device("cuda", 1)).record(lambda handle: steps.append(f"work on {handle}"))
    assert steps == [(5, "thread_local"), "begin", "work on 5", "end"]
    replay()
    assert steps[-1] == "replay"
