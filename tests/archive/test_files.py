from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from archive.files import progress, sha256, whole


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "made" / "file"
    with whole(target) as draft:
        draft.write_bytes(b"new")
        assert not target.exists()
        # On the same disk, or it could not take its place in one step.
        assert draft.parent == target.parent
    assert target.read_bytes() == b"new"
    assert names(target.parent) == {"file"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def write() -> None:
        with whole(target) as draft:
            draft.write_bytes(b"half of the n")
            raise error

    with pytest.raises(error):
        write()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_an_exception_leaves_no_file_where_there_was_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="why"), whole(tmp_path / "file"):
        raise ValueError("why")
    assert names(tmp_path) == set()


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 10_000])
def test_sha256(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_progress_is_told_on_the_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("hash it", 2048, "B") as bar:
        bar.update(2048)
    out, err = capsys.readouterr()
    assert out == ""
    assert "hash it: 100%" in err
    assert "2.05k/2.05k" in err
