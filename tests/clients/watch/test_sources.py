"""What the command line's words mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import UsageError
from clients.watch.sources import Kind, sources


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    folder = tmp_path / "frames"
    folder.mkdir()
    (folder / "1.jpg").write_bytes(b"")
    words = [str(tmp_path / "film.mp4"), str(folder), "rtsp://user:secret@camera:554/live?key=secret"]
    found = sources(words)
    assert [source.kind for source in found] == [Kind.FILE, Kind.FOLDER, Kind.STREAM]
    assert [source.live for source in found] == [False, False, True]
    assert found[2].name == "rtsp://camera:554/live"
    assert found[2].address == words[2]
    assert "secret" not in repr(found)
    assert [source.live for source in sources(words, live=True)] == [True, True, True]


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    film = tmp_path / "film.mp4"
    film.write_bytes(b"")
    found = sources([str(film)] * 3)
    assert [source.name for source in found] == [str(film), f"{film} (2)", f"{film} (3)"]
    assert [source.file for source in found] == ["film", "film.2", "film.3"]


@pytest.mark.parametrize(
    ("address", "file"),
    [("rtsp://camera:554/live/1", "rtsp_camera_554_live_1"), ("http://camera/../../etc", "http_camera_.._.._etc")],
)
def test_names_of_files(address: str, file: str) -> None:
    assert [source.file for source in sources([address])] == [file]


def test_a_name_of_a_file_has_room_beside_it(tmp_path: Path) -> None:
    letter = "\N{HIRAGANA LETTER A}"
    film = tmp_path / f"{letter * 82}.mp4"
    film.write_bytes(b"")
    [source] = sources([str(film)])
    assert 50 < len(source.file.encode()) <= 100
    assert set(source.file) == {letter}


def test_schemes_in_capitals() -> None:
    [source] = sources(["RTSP://alice:Secret@Camera/Live"])
    assert source.address == "rtsp://alice:Secret@Camera/Live"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("nothing.mp4", "no such file"),
        ("999", "/dev/video999"),
        ("gopher://camera/live", "scheme"),
        ("rtsp:///live", "HOST"),
        ("rtsp://[camera/live", "cannot be read"),
        ("rtsp://camera:port/live", "cannot be read"),
    ],
)
def test_what_is_no_source(word: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        sources([word])


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no pictures"):
        sources([str(tmp_path)])
