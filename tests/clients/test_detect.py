"""The parts of ``mogface detect`` that ask no server; tests/serving/test_command.py has the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from PIL import Image

from clients.detect import Stop, Written, _Files, _names, _row
from clients.errors import InvalidImage, UsageError
from clients.results import Result
from clients.sources import Source
from tests.clients.test_draw import answer


def test_a_table_is_no_file_to_go_on_with() -> None:
    with pytest.raises(UsageError, match="--format table is for stdout"):
        Written(Path("faces.jsonl"), table=True)


def test_files_lie_as_the_images_do_under_the_folder_that_holds_them_all() -> None:
    assert _names(["p/a.jpg", "p/q/a.jpg", "r/a.jpg"]) == {
        "p/a.jpg": Path("p/a.jpg"),
        "p/q/a.jpg": Path("p/q/a.jpg"),
        "r/a.jpg": Path("r/a.jpg"),
    }
    assert _names(["/x/p/a.jpg", "/x/p/q/b.jpg"]) == {"/x/p/a.jpg": Path("a.jpg"), "/x/p/q/b.jpg": Path("q/b.jpg")}
    assert _names(["../a.jpg", "b.jpg"])["../a.jpg"] == Path("a.jpg"), "never out of the folder"
    assert _names(["-"]) == {"-": Path("stdin")}
    assert _names([]) == {}


def test_pictures_keep_their_names_where_the_format_is_kept() -> None:
    names = ["a.jpg", "b.JPEG", "c.png", "d.gif", "e.webp", "f"]
    files = _Files(Written(pictures=Path("out")), _names(names))
    expected = ["a.jpg", "b.JPEG", "c.png", "d.gif.png", "e.webp.png", "f.png"]
    assert [str(files._picture(name)) for name in names] == [f"out/{name}" for name in expected]


def test_two_pictures_of_one_name_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match=r"out/a\.gif\.png: rename one"):
        _Files(Written(pictures=Path("out")), _names(["a.gif", "a.gif.png"]))


def test_a_picture_that_changed_fails_and_its_answer_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (100, 80)).save(path)
    source, found = Source(str(path)), answer(100, 80, (1, 2, 30, 40))
    files = _Files(Written(pictures=tmp_path / "out"), _names([str(path)]))
    assert files.complete(source, Result.of(str(path), found))
    assert (tmp_path / "out" / "a.png").is_file()
    (tmp_path / "out" / "a.png").unlink()
    Image.new("RGB", (80, 100)).save(path)
    assert not files.complete(source, Result.of(str(path), found))
    assert "it changed since it was sent" in capsys.readouterr().err
    assert isinstance(files.write(source, found), UsageError)
    path.unlink()
    assert "cannot be read" in str(files.write(source, found))
    assert not (tmp_path / "out" / "a.png").exists()


def test_rows_stay_one_line_whatever_the_name_is() -> None:
    assert _row(Result.of("a\nb\udcff.jpg", answer(100, 80, (1, 2, 3, 4)))).splitlines() == [
        rb"     1   0.900      100x80       0.0  a\nb\udcff.jpg"
    ]
    row = _row(Result.of("a.jpg", InvalidImage("no picture")))
    assert row.strip().endswith(b"a.jpg: invalid_image: no picture")


def test_the_first_signal_asks_for_an_end_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
