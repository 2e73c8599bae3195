from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from archive import pack
from handler import artifacts
from handler.errors import ArtifactError

FILES = {"graphs/a.onnx": b"a graph", "handler/__init__.py": b"", "detector.yaml": b"detector: centerface\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    (tmp_path / artifacts.FILE).write_text(json.dumps({"files": listed}))
    return tmp_path


def test_a_whole_archive_passes(folder: Path) -> None:
    (folder / "handler" / "__pycache__").mkdir()
    artifacts.check(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda f: (f / "graphs/a.onnx").write_bytes(b"a grapH"),
            r"graphs/a\.onnx has sha256 \w{64}, artifacts\.json says",
        ),
        (lambda f: (f / "handler/__init__.py").write_bytes(b"import os"), r"handler/__init__\.py has sha256"),
        (lambda f: (f / "detector.yaml").unlink(), r"detector\.yaml of the archive cannot be read: No such file"),
        (lambda f: (f / artifacts.FILE).unlink(), r"artifacts\.json of the archive cannot be read"),
        (lambda f: (f / artifacts.FILE).write_text("{}"), r"artifacts\.json of the archive cannot be read: 'files'"),
        (lambda f: (f / artifacts.FILE).write_text("["), r"artifacts\.json of the archive cannot be read: "),
    ],
)
def test_what_is_not_as_listed_is_named(folder: Path, change: Callable[[Path], object], words: str) -> None:
    change(folder)
    with pytest.raises(ArtifactError, match=words):
        artifacts.check(folder)


def test_an_archive_is_known_by_its_list(folder: Path) -> None:
    before = artifacts.identity(folder)
    assert (len(before), artifacts.identity(folder)) == (32, before)
    listed = json.loads((folder / artifacts.FILE).read_text())
    listed["files"]["graphs/a.onnx"] = hashlib.sha256(b"another").hexdigest()
    (folder / artifacts.FILE).write_text(json.dumps(listed))
    assert artifacts.identity(folder) != before
    (folder / artifacts.FILE).unlink()
    with pytest.raises(ArtifactError, match=r"artifacts\.json of the archive cannot be read: .*pack the archive again"):
        artifacts.identity(folder)


def test_the_packer_writes_what_is_read() -> None:
    assert pack.ARTIFACTS == artifacts.FILE
