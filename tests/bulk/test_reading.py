"""The bytes of a part's images."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bulk.listing import Columns, Piece
from bulk.reading import images


def test_files_and_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    paths = [str(tmp_path / name) for name in ("a", "pipe", "gone", "circle")]
    found = dict(images([Piece(path) for path in paths], Columns(), limit=20))
    assert list(found) == paths
    assert found[paths[0]] == b"0123456789"
    assert found[paths[1]] == "no regular file"
    assert str(found[paths[2]]).startswith("FileNotFoundError")
    assert str(found[paths[3]]).startswith("OSError")


def test_no_more_of_a_file_is_read_than_it_takes_to_refuse_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    [(_, data)] = images([Piece(str(tmp_path / "a"))], Columns(), limit=4)
    assert data == b"01234"


def test_rows_of_some_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    photos = [f"{number}".encode() for number in range(40)]
    pq.write_table(pa.table({"photo": photos, "key": [f"k{number}" for number in range(40)]}), path, row_group_size=9)
    piece = Piece(str(path), 1, 2, 18)
    found = list(images([piece], Columns("photo"), limit=1))
    assert found == [(f"{path}#{number}", photos[number]) for number in range(9, 27)]
    assert [name for name, _ in images([piece], Columns("photo", "key"), 1)] == [f"k{n}" for n in range(9, 27)]
