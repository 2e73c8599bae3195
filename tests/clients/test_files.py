"""Files written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clients.files import naming, whole


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "picture.jpg"
    with whole(path) as file:
        file.write(b"first")
    with pytest.raises(TypeError, match="bytes-like"), whole(path) as file:
        file.writelines([b"sec", "ond"])  # type: ignore[list-item]
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_is_replaced_and_its_file_left(tmp_path: Path) -> None:
    """A folder of pictures may hold links to the photographs themselves."""
    photo, link = tmp_path / "photo.jpg", tmp_path / "link.jpg"
    photo.write_bytes(b"photo")
    link.symlink_to(photo)
    with whole(link) as file:
        file.write(b"drawn")
    assert (photo.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"photo", b"drawn", False)


def test_the_longest_name(tmp_path: Path) -> None:
    with whole(tmp_path / ("a" * 255)) as file:
        file.write(b"-")
    with pytest.raises(OSError, match=f"File name too long: '{tmp_path}/a{{256}}'"), whole(tmp_path / ("a" * 256)):
        pass
    assert len(list(tmp_path.iterdir())) == 1


def test_errors_name_the_file() -> None:
    with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error: 'a'$"), naming(Path("a")):
        raise OSError(5, os.strerror(5))
