from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage import data

from archive import centerface, checkpoint, export, programs, winograd
from archive.checkpoint import Checkpoint
from handler import detectors
from handler.config import Settings
from handler.detectors.mogface import MogFace
from handler.geometry import Canvas, Uint8
from handler.options import Options
from tests.oracle import Oracle

#: The released detector's own settings.
RELEASED = Options(score_threshold=0.82, nms_threshold=0.4, max_faces=750)
CANVASES = (Canvas(128, 128), Canvas(96, 128), Canvas(128, 96))


@pytest.fixture(scope="session")
def seeded() -> Checkpoint:
    """Full-size untrained weights of which two anchors in a hundred fire."""
    return checkpoint.seeded(7)


@pytest.fixture(scope="session")
def weights_file(seeded: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same as a file of the released form, dead parts included."""
    path = tmp_path_factory.mktemp("weights") / "pytorch_model.pt"
    torch.save({**seeded.state, **{key: torch.zeros(shape) for key, shape in checkpoint.DEAD.items()}}, path)
    yield path
    path.unlink()


@pytest.fixture(scope="session")
def centerface_weights() -> Path:
    """The released file; in build/, which git ignores, so that it is downloaded once."""
    return centerface.fetch(Path(__file__).parents[1] / "build" / "weights")


@pytest.fixture(scope="session")
def mogface_folder(
    seeded: Checkpoint, centerface_weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An unpacked archive's graphs."""
    folder = tmp_path_factory.mktemp("mogface")
    paths = export.export(seeded, folder / "graphs")
    centerface.export(centerface_weights, folder / "graphs" / "centerface.onnx")
    yield folder
    # pytest keeps the folders of its last runs, and these are large.
    for path in paths:
        path.unlink()


@pytest.fixture(scope="session")
def programs_folder(
    seeded: Checkpoint, mogface_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The same weights as PyTorch's programs."""
    folder = tmp_path_factory.mktemp("programs")
    paths = programs.export_programs(seeded, mogface_folder / "graphs" / "centerface.onnx", folder / "graphs")
    yield folder
    for path in paths.values():
        path.unlink()


@pytest.fixture(scope="session")
def winograd_folder(
    seeded: Checkpoint, mogface_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The same weights as ncnn's graphs."""
    folder = tmp_path_factory.mktemp("winograd")
    paths = winograd.export_graphs(seeded, mogface_folder / "graphs" / "centerface.onnx", folder / "graphs")
    yield folder
    for path in paths.values():
        path.unlink()


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Of a small archive: canvases of 96 and 128 px."""
    return Settings("mogface", "seeded:7 (not trained)", RELEASED, device="cpu", canvases=CANVASES, long_side=128)


@pytest.fixture(scope="session")
def mogface(mogface_folder: Path, settings: Settings) -> MogFace:
    detector = detectors.load(mogface_folder, settings, torch.device("cpu"))
    assert isinstance(detector, MogFace)
    return detector


@pytest.fixture
def with_settings(mogface: MogFace) -> Iterator[Callable[..., MogFace]]:
    """The detector with other settings, its engines shared."""
    original = mogface.settings

    def change(**changes: object) -> MogFace:
        mogface.settings = dataclasses.replace(original, **changes)  # type: ignore[arg-type]
        return mogface

    yield change
    mogface.settings = original


@pytest.fixture(scope="session")
def oracle(weights_file: Path) -> Oracle:
    """ModelScope's detector on the same weights."""
    return Oracle(weights_file)


@pytest.fixture(scope="session")
def astronaut() -> Uint8:
    """[512, 512, 3]: one face, at about [181, 58, 270, 178]."""
    image: Uint8 = np.ascontiguousarray(data.astronaut())
    return image


@pytest.fixture(scope="session")
def picture(astronaut: Uint8) -> Callable[[int, int, int], Uint8]:
    """Pictures of any size with content at every scale: a photograph's piece, repeated, and some noise."""

    def make(height: int, width: int, seed: int = 0) -> Uint8:
        rng = np.random.default_rng(seed)
        top, left = rng.integers(0, 300, 2)
        piece = astronaut[top : top + 200, left : left + 200]
        tiled = np.tile(piece, (-(-height // 200), -(-width // 200), 1))[:height, :width].astype(np.int16)
        noisy: Uint8 = np.clip(tiled + rng.integers(-30, 31, tiled.shape), 0, 255).astype(np.uint8)
        return noisy

    return make
