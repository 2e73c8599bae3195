from __future__ import annotations

import hashlib
import io
import stat
import sys
from pathlib import Path

import pytest

from archive import files
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
    assert err.splitlines()[-1].startswith("hash it: 2.05k of 2.05kB, ")


class FakeTerminal(io.StringIO):
    """Says that somebody watches."""

    def isatty(self) -> bool:
        return True


def walked(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("points", 1000, "point") as bar:
        bar.set_postfix_str("b4")
        for _ in range(1000):
            bar.update()
    return stream.getvalue()


def test_off_a_terminal_progress_is_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    text = walked(io.StringIO(), monkeypatch)
    assert "\r" not in text
    assert "\x1b" not in text
    # At the begin, where its words change, and at the end: all else is sooner than half a minute.
    assert [line.partition(", ")[0] for line in text.splitlines()] == [
        "points: 0 of 1000 point",
        "points: 0 of 1000 point",
        "points: 1000 of 1000 point",
    ]
    assert text.splitlines()[1].endswith(", b4")


def test_lines_of_progress_come_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LINES_S", 0.0)
    assert "points: 500 of 1000 point, " in walked(io.StringIO(), monkeypatch)


def test_on_a_terminal_progress_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    text = walked(FakeTerminal(), monkeypatch)
    assert text.count("\r") >= 2
    assert "1000/1000" in text
