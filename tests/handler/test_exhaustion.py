"""Memory that is out in one batch: halves, then the one image, and its neighbours never notice."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from handler.detectors.base import Prepared, Result
from handler.detectors.landmarks import LandmarkStage
from handler.engines import Engine, TensorSpec
from handler.errors import DeviceLost, EngineError, InvalidImage, OutOfMemory
from handler.exhaustion import failure, out_of_memory
from tests.handler.fake import CPU, FakeDetector
from tests.handler.test_pipeline import body, outcomes, pipeline, request

#: As the libraries write it.
SAID = (
    "ONNX Runtime failed: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
    "Conv node. Name:'/conv' Status Message: Failed to allocate memory for requested buffer of size 1677721600",
    "ONNX Runtime failed: [ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; expr="
    "cudaMalloc((void**)&p, size);",
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc",
    "CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    "PyTorch failed: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.78 GiB",
    "PyTorch failed: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)",
    "trunk cannot run; [resizingAllocator.cpp::allocate::74] Error Code 1: Cuda Runtime (out of memory)",
    "trunk cannot run; Error Code 2: OutOfMemory (Requested size was 12884901888 bytes.)",
)
OTHERS = (
    "ONNX Runtime failed: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input",
    "the network gave scores that are not numbers",
    "trunk cannot run; IExecutionContext::enqueueV3: Error Code 1: Cask (Cask convolution execution)",
    "PyTorch failed: CUDA error: an illegal memory access was encountered",
)


@pytest.mark.parametrize("text", SAID)
def test_every_library_is_understood(text: str) -> None:
    assert out_of_memory(EngineError(text))
    assert out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("text", OTHERS)
def test_other_failures_are_not_taken_for_it(text: str) -> None:
    error = EngineError(text)
    assert not out_of_memory(error)
    assert failure(error, 3) is error


def test_classes_of_their_own_and_causes_are_understood() -> None:
    with pytest.raises(MemoryError) as numpy:
        np.empty((1 << 50,), np.float64)
    for error in (MemoryError(), numpy.value, torch.OutOfMemoryError("x")):
        assert out_of_memory(error)
        wrapped = EngineError("failed")
        wrapped.__cause__ = error
        assert isinstance(failure(wrapped, 1), OutOfMemory)


def test_what_is_no_failure_of_an_engine_is_not_taken_for_one() -> None:
    assert failure(ZeroDivisionError("a fault of the program"), 1) is None
    assert failure(InvalidImage("of another kind"), 1) is None
    # Nothing more will run here, whatever the text says: never to be tried again on this process.
    lost = DeviceLost("the GPU does not answer any more: CUDA error: out of memory")
    assert failure(lost, 8) is lost


class Greedy(FakeDetector):
    """Runs out of memory over ``most`` images, or where one of ``huge`` is among them; openly a fake.

    Attributes:
        raised: makes the error.
        left: whether what an earlier run held was gone when another began.
    """

    def __init__(self, most: int, *huge: int, raised: Callable[[], Exception]) -> None:
        super().__init__()
        self.most, self.huge, self.raised = most, huge, raised
        self.left: list[bool] = []
        self._held: weakref.ref[Any] = lambda: None  # type: ignore[assignment]

    def _detect(self, images: list[Prepared]) -> list[Result]:
        self.left.append(self._held() is None)
        results = super()._detect(images)
        if len(images) > self.most or set(self.huge) & set(self.batches[-1]):
            tensors = torch.zeros(1000)
            self._held = weakref.ref(tensors)
            raise self.raised()
        return results


RAISED = {
    "CUDA": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "ONNX Runtime": lambda: EngineError(SAID[0]),
    "C++": lambda: RuntimeError("std::bad_alloc"),
    "Python": MemoryError,
    "TensorRT": lambda: EngineError(SAID[-1]),
}


@pytest.mark.parametrize("kind", RAISED)
def test_a_batch_runs_in_halves_until_it_fits(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    greedy = Greedy(2, raised=RAISED[kind])
    levels = [10, 20, 30, 40, 50, 60, 70]
    with caplog.at_level(logging.WARNING, "mogface"):
        responses = pipeline(greedy, engine_batch=8).answer([request(level) for level in levels])
    assert outcomes(responses) == [[level] for level in levels]
    assert greedy.batches == [levels, [10, 20, 30], [10], [20, 30], [40, 50, 60, 70], [40, 50], [60, 70]]
    assert [record.getMessage() for record in caplog.records] == [
        f'{{"event": "out_of_memory", "images": {count}}}' for count in (7, 3, 4)
    ]


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("batch", [1, 4])
def test_an_image_that_never_fits_answers_for_itself(kind: str, batch: int) -> None:
    greedy = Greedy(8, 30, raised=RAISED[kind])
    responses = pipeline(greedy, engine_batch=batch).answer([request(level) for level in (10, 20, 30, 40)])
    assert outcomes(responses) == [[10], [20], "out_of_memory", [40]]
    assert [response.status for response in responses] == [200, 200, 503, 200]
    assert body(responses[2])["error"]["message"] == (
        "memory was out over this image alone: send it again later, or ask for a smaller canvas"
    )


def test_what_the_failed_run_held_is_gone_before_the_next() -> None:
    """Of a GPU's memory the failed batch has the most: while anything holds its tensors no half will fit."""
    greedy = Greedy(1, raised=RAISED["C++"])
    pipeline(greedy, engine_batch=4).answer([request(level) for level in (10, 20, 30, 40)])
    assert len(greedy.left) == 7
    assert all(greedy.left)


class GreedyEngine(Engine):
    """The landmarks' engine, out of memory over one crop; openly a fake."""

    def __init__(self, most: int) -> None:
        spec = TensorSpec("image", torch.uint8, ("n", 160, 160, 3))
        super().__init__({"image": spec}, {}, CPU)
        self.most = most
        self.calls: list[int] = []

    def _run(self, feeds: Any) -> Any:
        count = len(feeds["image"])
        self.calls.append(count)
        if count > self.most:
            raise MemoryError
        flat = torch.zeros(count, 1, 40, 40)
        return {
            "heatmap": flat,
            "size": flat.expand(-1, 2, -1, -1),
            "offset": flat.expand(-1, 2, -1, -1),
            "points": flat.expand(-1, 10, -1, -1),
        }


@pytest.mark.parametrize(("most", "type"), [(1, None), (0, OutOfMemory)])
def test_landmarks_are_tried_one_by_one(most: int, type: type[Exception] | None) -> None:
    engine = GreedyEngine(most)
    boxes = np.array([[10, 10, 40, 40], [30, 30, 70, 70], [5, 5, 9, 9]], np.float32)
    [found] = LandmarkStage(engine).find([(np.zeros((100, 100, 3), np.uint8), boxes)])
    assert engine.calls == [3, 1, 1, 1]
    if type:
        assert isinstance(found, type)
    else:
        assert isinstance(found, np.ndarray)
        assert np.isnan(found).all()


MORE = 150_000_000
_BOUNDED = """
import json, resource, sys
from pathlib import Path
import numpy as np
import torch
from handler.config import Settings
from handler.detectors.centerface import CenterFace
from handler.geometry import Canvas
from handler.options import Options

options = Options(score_threshold=0.5, nms_threshold=0.3, canvas="320x320")
settings = Settings(
    "centerface", "none", options, device="cpu", engine_batch=64, threads=1, canvases=(Canvas(320, 320),), long_side=320
)
detector = CenterFace.load(Path(sys.argv[1]), settings, torch.device("cpu"))
images = [detector.prepare(np.full((320, 320, 3), 9 * i % 256, np.uint8), options) for i in range(64)]
detector.detect(images[:2], 1e12)
sizes, texts, real = [], [], detector._detect
def watched(some):
    sizes.append(len(some))
    try:
        return real(some)
    except Exception as error:
        texts.append(f"{type(error).__name__}: {error}")
        raise
detector._detect = watched
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]),) * 2)
found = detector.detect(images, 1e12)
print(json.dumps([sizes, texts, [type(each).__name__ for each in found]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the process's memory is read from /proc")
def test_a_real_engine_that_finds_no_memory(centerface_folder: Path) -> None:
    """ONNX Runtime, in a process that may take MORE: too little for 64 images at once, enough for a few."""
    command = [sys.executable, "-c", _BOUNDED, str(centerface_folder), str(MORE)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=300)
    sizes, texts, kinds = json.loads(done.stdout.splitlines()[-1])
    assert sizes[:2] == [64, 32]
    assert texts[0].startswith("EngineError: ONNX Runtime failed: ")
    assert kinds == ["Result"] * 64
