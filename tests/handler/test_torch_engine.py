"""The engine on PyTorch's programs, and both detectors on it against ONNX Runtime."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.export import ExportedProgram

from archive import programs
from archive.programs import Program
from handler import detectors, engines
from handler.config import Settings
from handler.detectors.base import Detector, Result
from handler.detectors.landmarks import LandmarkStage
from handler.detectors.mogface import MogFace
from handler.engines.base import TensorSpec
from handler.engines.torch_engine import TorchEngine
from handler.errors import ArtifactError, EngineError, EnvironmentFault, MogFaceError
from handler.geometry import Uint8
from handler.options import Options
from tests.conftest import RELEASED
from tests.handler import engine_contract
from tests.handler.fake import CPU
from tests.oracle import Picture
from tests.photographs import ASTRONAUT, HOPPER


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (2 * x + 1,)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doubled") / "doubled.pt2"
    x, y = (TensorSpec(name, torch.float32, ("n", engine_contract.WIDTH)) for name in ("x", "y"))
    program = Program("doubled", (x,), (y,), (2, 1, 1), ((1, 1, 1), (4, 1, 1)), 0.0)
    programs.write(program, Doubled(), lambda feeds: (2 * feeds["x"] + 1,), path)
    return path


def test_contract(doubled: Path) -> None:
    engine_contract.check(TorchEngine(doubled, CPU, 1))


def test_the_same_settings_give_the_same_number_of_threads(doubled: Path) -> None:
    before = torch.get_num_threads()
    try:
        TorchEngine(doubled, CPU, before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_what_is_no_program_is_refused(tmp_path: Path, doubled: Path) -> None:
    path = tmp_path / "x.pt2"
    with pytest.raises(ArtifactError, match=r"x\.pt2.*FileNotFound"):
        TorchEngine(path, CPU, 1)
    for content in (b"", b"hello", doubled.read_bytes()[:5000]):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"x\.pt2"):
            TorchEngine(path, CPU, 1)
    exported = torch.export.export(Doubled(), (torch.zeros(2, 3),))
    torch.export.save(exported, path)
    with pytest.raises(ArtifactError, match=r"x\.pt2"):
        TorchEngine(path, CPU, 1)


def test_an_operator_that_fails_is_an_engine_error(programs_folder: Path) -> None:
    engine = TorchEngine(programs_folder / "graphs" / "centerface.pt2", CPU, 2)
    with pytest.raises(EngineError, match="PyTorch failed"):
        engine.run({"image": torch.zeros(1, 32, 48, 3, dtype=torch.uint8)})
    assert engine.run({"image": torch.zeros(1, 32, 64, 3, dtype=torch.uint8)})["heatmap"].shape == (1, 1, 8, 16)


def test_a_gpu_gets_channels_last_weights_and_true_fp32(programs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it goes without a GPU: what is moved there, and how."""
    moved = []

    def fake_move(program: ExportedProgram, to: torch.device) -> ExportedProgram:
        moved.append(to)
        return program

    monkeypatch.setattr("torch.export.passes.move_to_device_pass", fake_move)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    engine = TorchEngine(programs_folder / "graphs" / "score_head.pt2", torch.device("cuda", 1), 1)
    assert moved == [torch.device("cuda", 1)]
    assert not torch.backends.cudnn.allow_tf32
    weights = [value for value in engine._module.state_dict().values() if value.dim() == 4 and value.shape[2] > 1]
    assert len(weights) >= 5
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    assert not any(weight.is_contiguous() for weight in weights)


def test_channels_last_levels_give_the_same_answers(programs_folder: Path) -> None:
    engine = TorchEngine(programs_folder / "graphs" / "score_head.pt2", CPU, 2)
    level = torch.randn(2, 256, 6, 7, generator=torch.Generator().manual_seed(0))
    plain = engine.run({"level": level})
    turned = engine.run({"level": level.to(memory_format=torch.channels_last)})
    for name, value in plain.items():
        assert value.shape == turned[name].shape
        torch.testing.assert_close(turned[name], value, atol=1e-4, rtol=0)


def test_half_precision_is_refused_on_a_cpu(settings: Settings, programs_folder: Path) -> None:
    half = dataclasses.replace(settings, engine="torch", precision="fp16")
    with pytest.raises(EnvironmentFault, match="--precision fp32"):
        engines.load(half, programs_folder, "box_head", CPU)


def test_nothing_of_the_build_is_needed(programs_folder: Path) -> None:
    """A worker has neither archive/ nor onnx nor another engine's library."""
    script = """
import sys

for name in ("archive", "tests", "onnx", "onnxruntime", "onnxscript", "modelscope"):
    # An import of it fails.
    sys.modules[name] = None
import torch
from pathlib import Path
from handler.engines.torch_engine import TorchEngine

graphs = {name: TorchEngine(Path(sys.argv[1]) / f"{name}.pt2", torch.device("cpu"), 2)
          for name in ("trunk", "score_head", "box_head", "centerface")}
image = torch.zeros(1, 64, 32, 3, dtype=torch.uint8)
level = graphs["trunk"].run({"image": image})["p4"]
context = graphs["score_head"].run({"level": level})["context"]
print(list(graphs["box_head"].run({"context": context})["offsets"].shape))
print(list(graphs["centerface"].run({"image": image})["points"].shape))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(programs_folder / "graphs")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1, 8, 4]", "[1, 10, 16, 8]"]


def detect(detector: Detector, images: Sequence[tuple[Uint8, Options]]) -> list[Result]:
    results = detector.detect([detector.prepare(*image) for image in images], time.monotonic() + 60)
    assert all(isinstance(result, Result) for result in results), results
    return [result for result in results if isinstance(result, Result)]


def assert_alike(left: Result, right: Result) -> None:
    assert left.levels == right.levels
    assert len(left.detections) == len(right.detections)
    np.testing.assert_allclose(left.detections.scores, right.detections.scores, atol=1e-5, rtol=0)
    np.testing.assert_allclose(left.detections.boxes, right.detections.boxes, atol=0.01, rtol=0)
    np.testing.assert_allclose(left.detections.landmarks, right.detections.landmarks, atol=0.01, rtol=0)


@pytest.fixture(scope="module")
def mogface_on_torch(programs_folder: Path, settings: Settings) -> MogFace:
    detector = detectors.load(programs_folder, dataclasses.replace(settings, engine="torch", engine_batch=4), CPU)
    assert isinstance(detector, MogFace)
    return detector


def test_mogface_answers_as_on_onnx_runtime(mogface_on_torch: MogFace, mogface: MogFace, picture: Picture) -> None:
    native = dataclasses.replace(RELEASED, canvas="native")
    images = [
        (picture(96, 128, 0), RELEASED),
        (picture(200, 120, 1), dataclasses.replace(RELEASED, score_threshold=0.6, max_faces=7)),
        (picture(96, 128, 2), dataclasses.replace(RELEASED, min_face_size=40, score_threshold=0.6)),
        (picture(75, 98, 3), native),
        (picture(1, 1, 4), native),
        (picture(33, 65, 6), native),
        # Shrunk, so that the fraction is given too.
        (picture(1504, 12, 7), native),
    ]
    expected = detect(mogface, images)
    together = detect(mogface_on_torch, images)
    for left, right in zip(together, expected, strict=True):
        assert_alike(left, right)
    counts = [len(result.detections) for result in expected]
    assert sum(counts) >= 60, counts
    assert sum(count >= 2 for count in counts) >= 5, counts
    # And a batch's answers are those of its images alone.
    for image, left in zip(images[:4], together, strict=False):
        assert_alike(detect(mogface_on_torch, [image])[0], left)


def test_landmarks_of_a_portrait(programs_folder: Path, mogface_folder: Path) -> None:
    picture = np.asarray(Image.open(ASTRONAUT.path).convert("RGB"))
    boxes = np.array([ASTRONAUT.box, (10, 10, 60, 60)], np.float32)
    found = []
    for engine in (
        TorchEngine(programs_folder / "graphs" / "centerface.pt2", CPU, 2),
        engines.load(Settings("mogface", "none", RELEASED), mogface_folder, "centerface", CPU),
    ):
        [points] = LandmarkStage(engine).find([(picture, boxes)])
        assert not isinstance(points, MogFaceError)
        found.append(points)
    np.testing.assert_allclose(found[0], found[1], atol=0.01, rtol=0)
    np.testing.assert_allclose(found[0][0, :3], ASTRONAUT.points, atol=8)
    assert np.isnan(found[0][1]).all()


def test_centerface_answers_as_on_onnx_runtime(
    programs_folder: Path, mogface_folder: Path, centerface_settings: Settings
) -> None:
    on_ort = detectors.load(mogface_folder, centerface_settings, CPU)
    on_torch = detectors.load(programs_folder, dataclasses.replace(centerface_settings, engine="torch"), CPU)
    options = centerface_settings.options
    portraits = [(np.asarray(Image.open(each.path).convert("RGB")), options) for each in (ASTRONAUT, HOPPER)]
    images = [*portraits, (portraits[0][0][40:200, 150:310], dataclasses.replace(options, canvas="native"))]
    expected = detect(on_ort, images)
    assert [len(result.detections) for result in expected] == [1, 1, 1]
    together = detect(on_torch, images)
    for left, right in zip(together, expected, strict=True):
        assert_alike(left, right)
        assert np.isfinite(left.detections.landmarks).all()
    for image, left in zip(images, together, strict=True):
        assert_alike(detect(on_torch, [image])[0], left)
