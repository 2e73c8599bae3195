"""ONNX Runtime with tensors bound where they lie: really run on a CPU, and on a fake session as on a GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from handler.engines.ort import OrtEngine
from handler.errors import EnvironmentFault
from tests.handler import engine_contract
from tests.handler.fake import CPU

CUDA = torch.device("cuda", 1)


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    return engine_contract.doubled(tmp_path / "doubled.onnx")


def test_contract(doubled: Path) -> None:
    engine_contract.check(OrtEngine(doubled, CPU, 1))


def test_contract_with_bound_tensors(doubled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU, on ONNX Runtime's CPU provider."""
    monkeypatch.setattr(OrtEngine, "_run", OrtEngine._run_bound)
    engine_contract.check(OrtEngine(doubled, CPU, 1))


def test_bound_outputs_outlive_all_else(mogface_folder: Path) -> None:
    engine = OrtEngine(mogface_folder / "graphs" / "trunk.onnx", CPU, 2)
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (2, 40, 50, 3), generator=generator, dtype=torch.uint8)
    for feeds in ({"image": image}, {"image": image, "fraction": torch.rand(image.shape, generator=generator)}):
        expected = engine._run(dict(feeds))
        bound = engine._run_bound(dict(feeds))
        engine._run_bound({"image": 255 - image})
        gc.collect()
        assert list(bound) == list(expected)
        for name, value in expected.items():
            assert torch.equal(bound[name], value)
    kept, same = bound["p4"], expected["p4"].clone()
    del engine, bound, expected
    gc.collect()
    assert torch.equal(kept, same)


class FakeBinding:
    """Notes what is bound; its outputs are zeros."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def bind_input(self, *how: Any) -> None:
        self._log.append(("input", *how))

    def bind_output(self, *how: Any) -> None:
        self._log.append(("output", *how))

    def synchronize_outputs(self) -> None:
        self._log.append("outputs are there")

    def get_outputs(self) -> list[Any]:
        return [torch.zeros(2, 3, dtype=torch.float16)]


class FakeSession:
    """As much of ONNX Runtime's as the engine uses, with the providers it is told to have."""

    has = ("CUDAExecutionProvider", "CPUExecutionProvider")
    log: list[Any]

    def __init__(self, path: str, options: Any, providers: list[Any], enable_fallback: int) -> None:
        FakeSession.log = [("session", providers, enable_fallback)]

    def get_providers(self) -> list[str]:
        return list(self.has)

    def get_inputs(self) -> list[Any]:
        return [
            types.SimpleNamespace(name="image", type="tensor(uint8)", shape=["n", 3]),
            types.SimpleNamespace(name="level", type="tensor(float16)", shape=["n", 3]),
        ]

    def get_overridable_initializers(self) -> list[Any]:
        return []

    def get_outputs(self) -> list[Any]:
        return [types.SimpleNamespace(name="scores", type="tensor(float16)", shape=["n", 3])]

    def io_binding(self) -> FakeBinding:
        return FakeBinding(self.log)

    def run_with_iobinding(self, binding: FakeBinding) -> None:
        self.log.append("run")


class FakeStream:
    def synchronize(self) -> None:
        FakeSession.log.append("feeds are there")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    options = type("FakeOptions", (), {"add_session_config_entry": lambda self, key, value: None})
    module = types.SimpleNamespace(SessionOptions=options, InferenceSession=FakeSession)
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream())
    return FakeSession


def test_a_gpu_is_bound_by_its_own_number(fake: type[FakeSession]) -> None:
    engine = OrtEngine(Path("x.onnx"), CUDA, 1)
    [(_, [(provider, options)], fallback)] = fake.log
    assert provider == "CUDAExecutionProvider"
    assert options["device_id"] == "1"
    assert options["use_tf32"] == "0"
    assert not fallback
    image, level = torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.float16)
    del fake.log[:]
    outputs = engine._run({"image": image, "level": level})
    assert fake.log == [
        ("input", "image", "cuda", 1, np.uint8, (2, 3), image.data_ptr()),
        ("input", "level", "cuda", 1, np.float16, (2, 3), level.data_ptr()),
        ("output", "scores", "cuda", 1),
        "feeds are there",
        "run",
        "outputs are there",
    ]
    assert torch.equal(outputs["scores"], torch.zeros(2, 3, dtype=torch.float16))


def test_a_gpu_provider_that_does_not_start_is_said(fake: type[FakeSession], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "has", ("CPUExecutionProvider",))
    with pytest.raises(EnvironmentFault, match=r"CUDAExecutionProvider does not start here; .*CPUExecutionProvider"):
        OrtEngine(Path("x.onnx"), CUDA, 1)


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider':UserWarning")
def test_onnx_runtime_without_cuda_is_refused(doubled: Path) -> None:
    """The real package of CPU hosts, asked for a GPU."""
    with pytest.raises(EnvironmentFault, match="CUDAExecutionProvider does not start here"):
        OrtEngine(doubled, CUDA, 1)


_KEPT_OF_A_LARGE_RUN = """
import sys
from pathlib import Path
import psutil, torch
from handler import allocator
from handler.engines.ort import KEPT, OrtEngine

allocator.return_freed_memory()
engine = OrtEngine(Path(sys.argv[1]), torch.device("cpu"), 1)

def resident(side, times):
    image = torch.zeros((1, side, side, 3), dtype=torch.uint8)
    for _ in range(times):
        engine.run({"image": image})
    return psutil.Process().memory_info().rss

assert 640 * 640 * 3 < KEPT < 960 * 960 * 3
small = resident(640, 3)
large = resident(1504, 1)
again = resident(640, 3)
print((large - small) / 1e6, (again - small) / 1e6)
"""


def test_the_memory_of_a_large_run_goes_back(centerface_folder: Path) -> None:
    [graph] = centerface_folder.rglob("centerface.onnx")
    done = subprocess.run(
        [sys.executable, "-c", _KEPT_OF_A_LARGE_RUN, str(graph)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Its activations are over 300 MB.
    assert all(float(kept) < 100 for kept in done.stdout.split()), done.stdout
