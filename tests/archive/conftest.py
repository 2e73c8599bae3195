from __future__ import annotations

from pathlib import Path

import pytest

from archive import build
from archive.build import Workspace
from archive.pack import Recipe
from handler.config import Settings
from handler.options import Options

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The repository's weights and graphs, which git ignores, and a model store of its own."""
    return Workspace(ROOT / "build", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def mar(workspace: Workspace) -> Path:
    """The embedded detector's archive as users build it."""
    path, written = build.build("centerface", workspace, "hub", "auto", "1.0")
    assert written
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Of an archive that is right in form, though its graph is none."""
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(bytes(range(256)) * 20)
    settings = Settings("centerface", "none", Options(score_threshold=0.5, nms_threshold=0.3))
    return Recipe("faces", "1.0", settings, {"centerface.onnx": graph})
