"""Which images a job has, and which part each is in."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulk.errors import UsageError
from bulk.listing import SUFFIXES, Columns, Listing, Piece, dump, parts
from clients import sources

BYTES = Columns("photo")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.jpg", "a.PNG", "c/d.jpeg", "c/a/f.gif", "notes.txt", "[x].jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"-")
    return tmp_path


def names(listed: list[list[Piece]], top: Path) -> list[list[str]]:
    return [[os.path.relpath(piece.path, top) for piece in part] for part in listed]


def test_pictures_are_those_of_mogface_detect() -> None:
    assert SUFFIXES == sources.SUFFIXES


def test_a_folder_in_parts(tree: Path) -> None:
    found = names(parts(str(tree), Columns(), 2), tree)
    assert found == [["[x].jpg", "a.PNG"], ["b.jpg", "c/a/f.gif"], ["c/d.jpeg"]]
    assert names(parts(f"file://{tree}/c", Columns(), 9), tree) == [["c/a/f.gif", "c/d.jpeg"]]


def test_patterns_and_files(tree: Path) -> None:
    assert names(parts(f"{tree}/**/*.jpeg", Columns(), 9), tree) == [["c/d.jpeg"]]
    assert names(parts(f"{tree}/[x].jpg", Columns(), 9), tree) == [["[x].jpg"]]
    # A file is taken whatever its name.
    assert names(parts(f"{tree}/notes.txt", Columns(), 9), tree) == [["notes.txt"]]


def test_a_name_that_is_no_text_comes_back(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff.jpg")
    Path(odd).write_bytes(b"-")
    listed = parts(str(tmp_path), Columns(), 9)
    assert [piece.path for piece in listed[0]] == [odd]
    assert Listing(dump(listed)).part(0) == listed[0]


def test_the_listing_is_read_by_the_part(tree: Path) -> None:
    listed = parts(str(tree), Columns(), 2)
    listing = Listing(dump(listed))
    assert [listing.part(number) for number in range(len(listing))] == listed


def write(path: Path, rows: int, group: int, kind: pa.DataType | None = None) -> None:
    values = pa.array([b"-"] * rows, kind or pa.binary()) if kind != pa.int64() else pa.array(range(rows))
    pq.write_table(pa.table({"photo": values}), path, row_group_size=group)


def test_row_groups_are_gathered_and_never_split(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 7, 2)
    write(tmp_path / "b.parquet", 10, 10)
    write(tmp_path / "c.parquet", 0, 1)
    listed = parts(str(tmp_path), BYTES, 4)
    a, b = f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"
    assert listed == [[Piece(a, 0, 1, 4)], [Piece(a, 2, 3, 3), Piece(b, 0, 0, 10)]]
    assert Listing(dump(listed)).part(1) == listed[1]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (Columns(), "--column NAME says which"),
        (Columns("other"), "has no column 'other': there are photo"),
        (Columns("photo", "key"), "has no column 'key'"),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, columns: Columns, words: str) -> None:
    write(tmp_path / "a.parquet", 2, 2)
    with pytest.raises(UsageError, match=words):
        parts(str(tmp_path), columns, 4)


def test_what_is_refused(tree: Path, tmp_path: Path) -> None:
    write(tree / "c" / "a.parquet", 2, 2)
    with pytest.raises(UsageError, match="holds 5 pictures and 1 Parquet files"):
        parts(str(tree), BYTES, 4)
    write(tree / "c" / "n.parquet", 2, 2, pa.int64())
    with pytest.raises(UsageError, match="column 'photo' is int64"):
        parts(f"{tree}/c/n.parquet", BYTES, 4)
    (tree / "c" / "n.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        parts(f"{tree}/c/n.parquet", BYTES, 4)
    with pytest.raises(UsageError, match="names no file"):
        parts(f"{tree}/none/*", Columns(), 4)
