"""Loading plans out of an archive, on the CPU, by the fake TensorRT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from archive.engine import Order
from handler import detectors
from handler.config import Settings
from handler.engines import trt
from handler.errors import ArtifactError, ConfigError, EnvironmentFault
from handler.geometry import Canvas
from handler.tensorrt.execution import Execution
from tests import fake_tensorrt as fake
from tests.fake_plans import fake_plans, pretend
from tests.handler.fake import CPU

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    fake.FAULTS.clear()
    trt._open.cache_clear()


@pytest.fixture(scope="session")
def two_on_the_finest(mogface_folder: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``trt_folder``, its heads for two images on the finest level."""
    folder = tmp_path_factory.mktemp("finest")
    graphs = {path.stem: path for path in (mogface_folder / "graphs").glob("*.onnx")}
    fake_plans(
        graphs, Order("mogface", settings.canvases, settings.long_side, batch=2, finest_batch=2), folder / "plans"
    )
    return folder


def test_load_refuses_a_canvas_without_profile(trt_folder: Path, trt_settings: Settings, monkeypatch: Patch) -> None:
    pretend(monkeypatch)
    settings = dataclasses.replace(trt_settings, canvases=(*trt_settings.canvases, Canvas(160, 160)))
    with pytest.raises(ArtifactError, match=r"no profile for canvas 160x160.*mogface-archive engine"):
        detectors.load(trt_folder, settings, CPU)


def test_load_refuses_what_cannot_fit(trt_folder: Path, trt_settings: Settings, monkeypatch: Patch) -> None:
    pretend(monkeypatch, fake.Host(free=50 << 20))
    with pytest.raises(EnvironmentFault, match=r"the plans need [\d,]+ MiB of GPU memory \(.*\), 50 MiB are free"):
        detectors.load(trt_folder, trt_settings, CPU)


def test_load_refuses_plans_of_another_machine(trt_folder: Path, trt_settings: Settings, monkeypatch: Patch) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(fake, "__version__", "0.1.fake")
    with pytest.raises(ArtifactError, match=r"it has sm00-tensorrt0\.0\.fake-fp32.*needed is sm00-tensorrt0\.1\.fake"):
        detectors.load(trt_folder, trt_settings, CPU)


@pytest.mark.parametrize(("suffix", "reason"), [("plan", "its sidecar says"), ("json", "cannot be read")])
def test_load_refuses_a_truncated_file(
    suffix: str, reason: str, trt_folder: Path, trt_settings: Settings, tmp_path: Path, monkeypatch: Patch
) -> None:
    pretend(monkeypatch)
    [place] = (trt_folder / "plans").glob("sm*")
    copy = tmp_path / "plans" / place.name
    copy.mkdir(parents=True)
    for path in place.iterdir():
        (copy / path.name).symlink_to(path)
    damaged = copy / f"centerface.{suffix}"
    content = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match=f"centerface.{suffix}.*{reason}.*mogface-archive engine"):
        detectors.load(tmp_path, trt_settings, CPU)


@pytest.mark.parametrize(("finest", "rows"), [(0, [2, 2]), (1, [1, 1, 1, 1]), (2, [2, 2])])
def test_the_finest_level_s_batch(
    finest: int, rows: list[int], two_on_the_finest: Path, trt_settings: Settings, monkeypatch: Patch
) -> None:
    pretend(monkeypatch)
    settings = dataclasses.replace(trt_settings, finest_batch=finest)
    engine = trt.load(settings, two_on_the_finest, "score_head", CPU)
    seen: list[int] = []
    run = Execution.shapes

    def shapes(self: Execution, inputs: dict[str, tuple[int, ...]], outputs: Any) -> Any:
        seen.append(inputs["level"][0])
        return run(self, inputs, outputs)

    monkeypatch.setattr(Execution, "shapes", shapes)
    engine.run({"level": torch.zeros(4, 256, 32, 32)})
    assert seen == rows
    seen.clear()
    engine.run({"level": torch.zeros(4, 256, 16, 16)})
    assert seen == [2, 2]


def test_a_finest_batch_over_the_plan_s_is_refused(
    two_on_the_finest: Path, trt_settings: Settings, monkeypatch: Patch
) -> None:
    pretend(monkeypatch)
    settings = dataclasses.replace(trt_settings, finest_batch=3)
    with pytest.raises(ConfigError, match=r"finest_batch is 3, the plan of score_head takes 2: .* --finest-batch 3"):
        trt.load(settings, two_on_the_finest, "score_head", CPU)
