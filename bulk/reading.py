"""The bytes of a part's images, one after the other: never more of them in memory than are asked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bulk.listing import Columns, Piece
from bulk.store import is_local, opened

#: Rows of a Parquet file that are decoded together.
_ROWS = 16


def images(pieces: Sequence[Piece], columns: Columns, limit: int) -> Iterator[tuple[str, bytes | str]]:
    """Each image's path (or id) with its bytes, or with why there are none.

    Args:
        pieces: of one part.
        columns: of Parquet input.
        limit: bytes of one picture file; one byte more is read, by which the detector refuses it.

    Raises:
        OSError, pyarrow.ArrowException: a Parquet file that was there when it was listed cannot be read any more.
    """
    for piece in pieces:
        if piece.first < 0:
            yield piece.path, _picture(piece.path, limit)
        else:
            yield from _rows(piece, columns)


def _picture(path: str, limit: int) -> bytes | str:
    try:
        filesystem, name = opened(path)
        if is_local(filesystem) and not stat.S_ISREG(os.stat(name).st_mode):
            # A pipe would be waited for without end.
            return "no regular file"
        with filesystem.open(name) as file:
            data: bytes = file.read(limit + 1)
    # What the packages behind fsspec raise over a refused or lost connection is of no common kind.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return data


def _rows(piece: Piece, columns: Columns) -> Iterator[tuple[str, bytes | str]]:
    wanted = [column for column in (columns.image, columns.id) if column is not None]
    filesystem, name = opened(piece.path)
    with filesystem.open(name) as file:
        table = pq.ParquetFile(file)
        row = sum(table.metadata.row_group(group).num_rows for group in range(piece.first))
        groups = range(piece.first, piece.last + 1)
        for batch in table.iter_batches(_ROWS, row_groups=list(groups), columns=wanted):
            named = batch.column(columns.id) if columns.id else None
            for index, value in enumerate(batch.column(columns.image)):
                yield _id(named, index, f"{piece.path}#{row}"), _bytes(value)
                row += 1


def _id(named: pa.Array | None, index: int, otherwise: str) -> str:
    if named is None:
        return otherwise
    value: Any = named[index].as_py()
    # A row without an id must still be told from others.
    return otherwise if value is None else str(value)


def _bytes(value: Any) -> bytes | str:
    data: bytes | None = value.as_py()
    return "the row has no picture: its value is null" if data is None else data
