"""The runner of plans, on the CPU, by the fake TensorRT."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from archive.engine import Order
from handler import detectors
from handler.config import Settings
from handler.cuda import Cuda, alive
from handler.detectors.mogface import MogFace
from handler.engines import trt
from handler.engines.ort import OrtEngine
from handler.engines.trt import TrtEngine, Worker
from handler.errors import ArtifactError, DeviceLost, EngineError, EnvironmentFault
from handler.geometry import Uint8
from handler.plans import Sidecar
from handler.tensorrt import library
from tests import fake_tensorrt as fake
from tests.fake_plans import PROFILES, doubled_engine, doubled_plan, fake_plans, pretend
from tests.handler.engine_contract import WIDTH, check, doubled
from tests.handler.fake import CPU

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    fake.FAULTS.clear()
    trt._open.cache_clear()


def test_contract(tmp_path: Path) -> None:
    check(doubled_engine(tmp_path))


def test_contract_of_ort(tmp_path: Path) -> None:
    check(OrtEngine(doubled(tmp_path / "doubled.onnx"), CPU, 1))


def test_two_engines_share_the_scratch(tmp_path: Path) -> None:
    """The second needs more, so that the first has to be told of another."""
    plan, sidecar = doubled_plan(tmp_path)
    (tmp_path / "larger").mkdir()
    larger, its_sidecar = doubled_plan(tmp_path / "larger", [PROFILES[0]] * 3)
    worker = Worker(fake, fake.Host())
    first = TrtEngine(plan, sidecar, worker)
    check(first)
    second = TrtEngine(larger, its_sidecar, worker)
    assert second.device_memory > first.device_memory
    assert worker.scratch.numel() == second.device_memory
    check(first)
    check(second)


def _unset(name: str) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        patch.setattr(fake._Context, name, lambda *_: True)

    return mutate


def _one_buffer(patch: Patch) -> None:
    """Outputs of one memory, used again and again."""
    memory: dict[Any, torch.Tensor] = {}
    make = fake.Host.empty

    def empty(self: fake.Host, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if shape[1:] != (WIDTH,) or shape[0] < 7:
            return make(self, shape, dtype)
        return memory.setdefault(dtype, make(self, shape, dtype))

    patch.setattr(fake.Host, "empty", empty)
    patch.setattr(fake.Host, "upload", lambda self, tensor: make(self, tuple(tensor.shape), tensor.dtype).copy_(tensor))


def _shifted(patch: Patch) -> None:
    """Every address one row too far."""
    original = fake._Context.set_tensor_address
    patch.setattr(fake._Context, "set_tensor_address", lambda *a: original(a[0], a[1], a[2] + 4 * WIDTH))


def _closed(patch: Patch) -> None:
    patch.setattr(fake.Host, "stream", lambda self: contextlib.nullcontext(0))


def _fault(name: str) -> Callable[[Patch], None]:
    return lambda patch: fake.FAULTS.add(name)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    "shapes not set": _unset("set_input_shape"),
    "addresses not set": _unset("set_tensor_address"),
    "not run": _unset("execute_async_v3"),
    "scratch not set": _unset("set_device_memory"),
    "scratch too small": lambda patch: patch.setattr(Worker, "reserve", lambda self, size: None),
    "addresses not aligned": lambda patch: patch.setattr(TrtEngine, "_aligned", lambda self, tensor, copied: tensor),
    "addresses shifted": _shifted,
    "one buffer for all answers": _one_buffer,
    "another stream": _closed,
    "rows in another order": _fault("rows"),
    "numbers that are none": _fault("nan"),
    "refused": _fault("refuse"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_no_mutation_passes(mutation: str, tmp_path: Path, monkeypatch: Patch) -> None:
    MUTATIONS[mutation](monkeypatch)
    engine = doubled_engine(tmp_path)
    with pytest.raises((EngineError, AssertionError)):
        check(engine, (7, 7, 2, 1))


def test_wrong_profile_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    """The second profile is of another width; the graph of this test takes any."""
    path = _any_width(tmp_path / "any.onnx")
    place = fake_plans({"any": path}, Order("centerface", [], 32), tmp_path, PROFILES)
    sidecar = Sidecar.load(place / "any.json")
    engine = TrtEngine(sidecar.read(place), sidecar, Worker(fake, fake.Host()))
    for width in (WIDTH, 9, WIDTH, 9, 9):
        x = torch.rand(5, width)
        assert torch.equal(engine.run({"x": x})["y"], x + x)
    with pytest.raises(EngineError, match="no profile for"):
        engine.run({"x": torch.rand(1, 5)})
    with pytest.raises(EngineError, match="no profile for"):
        engine.run({"x": torch.rand(0, 9)})
    monkeypatch.setattr(Sidecar, "profile", lambda self, shapes: 0)
    with pytest.raises(EngineError, match="outside profile 0"):
        engine.run({"x": torch.rand(1, 9)})


def _any_width(path: Path) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "w"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "any", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_what_a_plan_takes(tmp_path: Path) -> None:
    path = _any_width(tmp_path / "any.onnx")
    place = fake_plans({"any": path}, Order("centerface", [], 32), tmp_path, PROFILES)
    sidecar = Sidecar.load(place / "any.json")
    engine = TrtEngine(sidecar.read(place), sidecar, Worker(fake, fake.Host()))
    taken = {width for width in range(1, 12) if engine.takes({"x": (7, width)})}
    assert taken == {WIDTH, 9}
    assert not engine.takes({"x": (7, WIDTH), "fraction": (1, WIDTH)})
    assert not engine.takes({"x": (7, WIDTH, 1)})
    # Without profiles any size will do.
    assert OrtEngine(path, CPU, 1).takes({"x": (7, 5)})
    assert not OrtEngine(doubled(tmp_path / "doubled.onnx"), CPU, 1).takes({"x": (7, 5)})


def test_out_of_memory_is_this_batch_s(tmp_path: Path) -> None:
    """So that the detector halves the batch."""
    plan, sidecar = doubled_plan(tmp_path)
    host = fake.Host(free=8192)
    engine = TrtEngine(plan, sidecar, Worker(fake, host))
    with pytest.raises(EngineError, match="out of memory"):
        engine.run({"x": torch.zeros(2000, WIDTH)})
    assert torch.equal(engine.run({"x": torch.zeros(1, WIDTH)})["y"], torch.ones(1, WIDTH))


def test_no_memory_for_the_scratch(tmp_path: Path) -> None:
    plan, sidecar = doubled_plan(tmp_path)
    with pytest.raises(EnvironmentFault, match="4096 bytes of scratch, 100 are free"):
        TrtEngine(plan, sidecar, Worker(fake, fake.Host(free=100)))


def test_garbage_is_refused(tmp_path: Path) -> None:
    _, sidecar = doubled_plan(tmp_path)
    with pytest.raises(ArtifactError, match="cannot read the plan of doubled; fake: no plan"):
        TrtEngine(b"garbage", sidecar, Worker(fake, fake.Host()))


@pytest.mark.parametrize(
    "changes",
    [
        {"outputs": {"y": "float16"}},
        {"outputs": {"z": "float32"}},
        {"profiles": PROFILES[1:]},
        {"profiles": (PROFILES[0], PROFILES[0])},
    ],
)
def test_another_plan_than_its_sidecar_says(changes: dict[str, Any], tmp_path: Path) -> None:
    plan, sidecar = doubled_plan(tmp_path)
    with pytest.raises(ArtifactError, match="its sidecar says"):
        TrtEngine(plan, dataclasses.replace(sidecar, **changes), Worker(fake, fake.Host()))


def test_a_cpu_is_no_gpu() -> None:
    with pytest.raises(EnvironmentFault, match="needs a GPU that torch sees: the device is cpu"):
        Cuda(CPU)


def test_no_library(monkeypatch: Patch) -> None:
    with pytest.raises(EnvironmentFault, match="needs the package no_such_tensorrt: "):
        library.libraries(("no_such_tensorrt",))


@pytest.fixture
def on_trt(trt_folder: Path, trt_settings: Settings, monkeypatch: Patch) -> MogFace:
    pretend(monkeypatch)
    detector = detectors.load(trt_folder, trt_settings, CPU)
    assert isinstance(detector, MogFace)
    # As on a GPU: the score heads of all levels run before any box head, their outputs alive at once.
    detector._rounds = [list(range(6))]
    return detector


def test_the_same_faces_as_onnx_runtime(on_trt: MogFace, mogface: MogFace, picture: Callable[..., Uint8]) -> None:
    """Three images in one batch, of which the plans take two, and one on the finest level."""
    options = dataclasses.replace(mogface.settings.options, max_faces=100)
    images = [picture(128, 128, seed) for seed in range(3)] + [picture(96, 128, 5)]
    got = on_trt.detect([on_trt.prepare(image, options) for image in images], np.inf)
    expected = mogface.detect([mogface.prepare(image, options) for image in images], np.inf)
    for ours, theirs in zip(got, expected, strict=True):
        assert isinstance(ours, detectors.Result)
        assert isinstance(theirs, detectors.Result)
        assert len(theirs.detections.boxes) > 3
        assert ours.levels == theirs.levels
        np.testing.assert_allclose(ours.detections.boxes, theirs.detections.boxes, atol=0.01)
        np.testing.assert_allclose(ours.detections.scores, theirs.detections.scores, atol=1e-4)


def test_other_rows_are_other_faces(on_trt: MogFace, mogface: MogFace, picture: Callable[..., Uint8]) -> None:
    """The comparison above can fail."""
    images = [picture(128, 128, seed) for seed in range(2)]
    prepared = [on_trt.prepare(image, on_trt.settings.options) for image in images]
    expected = mogface.detect(prepared, np.inf)
    fake.FAULTS.add("rows")
    got = on_trt.detect(prepared, np.inf)
    boxes = [[r.detections.boxes for r in results if isinstance(r, detectors.Result)] for results in (got, expected)]
    assert any(a.shape != b.shape or not np.allclose(a, b, atol=0.01) for a, b in zip(*boxes, strict=True))


def _no_upload(self: fake.Host, tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("error", ["raised", "refused", "not uploaded"])
def test_a_lost_gpu_is_told_apart(error: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """Of it no batch gets an answer any more, however small."""
    engine = doubled_engine(tmp_path)
    if error == "not uploaded":
        monkeypatch.setattr(fake.Host, "upload", _no_upload)
    fake.FAULTS.update({"lost", "refuse"} if error == "refused" else {"lost"})
    with pytest.raises(DeviceLost, match="the GPU does not answer any more: the worker has to be started again; "):
        engine.run({"x": torch.zeros(1, WIDTH)})


def test_other_failures_lose_no_gpu(tmp_path: Path) -> None:
    engine = doubled_engine(tmp_path)
    fake.FAULTS.add("refuse")
    with pytest.raises(EngineError) as failure:
        engine.run({"x": torch.zeros(1, WIDTH)})
    assert not isinstance(failure.value, DeviceLost)


def test_a_lost_gpu_fails_whatever_it_is_asked(monkeypatch: Patch) -> None:
    def synchronize(device: torch.device) -> None:
        if device.index == 1:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert not alive(torch.device("cuda", 1))
    assert alive(torch.device("cuda", 0))
    assert alive(CPU)


def test_a_cuda_stream_comes_after_and_before(monkeypatch: Patch) -> None:
    """The order in which the two streams wait for each other, on stand-ins for torch's."""
    steps: list[str] = []

    class Stream:
        cuda_stream = 5

        def __init__(self, name: object) -> None:
            self.name = name if isinstance(name, str) else "own"

        def wait_stream(self, other: Stream) -> None:
            steps.append(f"{self.name} waits for {other.name}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: steps.append(f"device {device}"))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("caller's"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    cuda = Cuda(torch.device("cuda", 1))

    def work() -> None:
        with cuda.stream() as handle:
            steps.append(f"work on {handle}")
            raise EngineError("failed")

    # The caller's waits even so: what was begun may still be writing.
    with pytest.raises(EngineError):
        work()
    assert steps == ["device cuda:1", "own waits for caller's", "work on 5", "caller's waits for own"]
