from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from archive.build import Workspace, export_centerface
from archive.engine import Order
from handler.config import Settings
from handler.detectors.centerface import CenterFace
from handler.geometry import Canvas
from handler.options import Options
from tests.fake_plans import fake_plans
from tests.handler.fake import CPU

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def centerface_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive of the embedded detector, as far as graphs go; its weights are downloaded once."""
    folder = tmp_path_factory.mktemp("centerface")
    (folder / "graphs").mkdir()
    for name, graph in export_centerface(Workspace(ROOT / "build", folder)).items():
        (folder / "graphs" / name).symlink_to(graph)
    return folder


@pytest.fixture(scope="session")
def centerface_settings() -> Settings:
    """Of an archive of small canvases."""
    options = Options(score_threshold=0.5, nms_threshold=0.3, landmarks=True)
    canvases = tuple(map(Canvas.parse, ("256x256", "160x256", "256x160", "320x320")))
    return Settings("centerface", "none", options, canvases=canvases, long_side=256, device="cpu", engine_batch=4)


@pytest.fixture(scope="session")
def centerface(centerface_folder: Path, centerface_settings: Settings) -> CenterFace:
    return CenterFace.load(centerface_folder, centerface_settings, CPU)


@pytest.fixture(scope="session")
def trt_settings(settings: Settings) -> Settings:
    """Of batches of three."""
    return dataclasses.replace(settings, engine="trt", engine_batch=3)


@pytest.fixture(scope="session")
def trt_folder(mogface_folder: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive of MogFace's plans, of the fake."""
    folder = tmp_path_factory.mktemp("trt")
    graphs = {path.stem: path for path in (mogface_folder / "graphs").glob("*.onnx")}
    assert len(graphs) == 4
    order = Order("mogface", settings.canvases, settings.long_side, batch=2, finest_batch=1)
    fake_plans(graphs, order, folder / "plans")
    return folder
