"""From INPUT to the images of a job, in parts: a part is the unit that is run, written and gone on from.

The listing is made once and kept beside the output, one row group a part, so that a part's images are the same in every
run. Images that come later are another job's.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import has_magic

from bulk.errors import UsageError
from bulk.store import is_local, opened

#: Of pictures: what a folder is searched for, as ``mogface detect`` does.
SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".apng",
    ".webp",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".avif",
    ".heic",
    ".heif",
)
TABLE = ".parquet"
#: Footers read side by side: each is a round trip where files lie behind a network.
_FOOTERS = 16
#: Paths are bytes, as file systems have them: not all are text.
_SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("first", pa.int32(), nullable=False),
        pa.field("last", pa.int32(), nullable=False),
        pa.field("images", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Piece:
    """An image, or neighbouring row groups of a Parquet file.

    Attributes:
        path: a URL, or an absolute local path.
        first: row group; -1 for a picture.
        last: row group, itself included; -1 for a picture.
        images: how many there are in it.
    """

    path: str
    first: int = -1
    last: int = -1
    images: int = 1


@dataclass(frozen=True)
class Columns:
    """Of Parquet input.

    Attributes:
        image: with the encoded pictures' bytes; None where the input is pictures.
        id: with what the output calls a row; None for ``FILE#ROW``.
    """

    image: str | None = None
    id: str | None = None


def parts(given: str, columns: Columns, size: int) -> list[list[Piece]]:
    """The images of an input, in the order of their paths, cut into parts.

    Args:
        given: a folder (searched with those below it), a file, a pattern, or a URL of these.
        columns: of Parquet input.
        size: images a part. A part of Parquet input holds whole row groups, and so may hold more.

    Raises:
        UsageError: nothing there, pictures beside Parquet files, or a file without such columns.
    """
    pictures, tables = _found(given)
    if pictures and tables:
        raise UsageError(
            f"{given} holds {len(pictures)} pictures and {len(tables)} Parquet files: name one kind by a pattern, as "
            "'FOLDER/**/*.jpg'"
        )
    if columns.image is None and tables:
        raise UsageError(f"{given} is Parquet: --column NAME says which column holds the pictures' bytes")
    if columns.image is not None and not tables:
        raise UsageError(f"--column {columns.image} is for Parquet files, and {given} holds none")
    if tables:
        return list(_gathered(_row_groups(tables, columns), size))
    return [[Piece(path) for path in pictures[start : start + size]] for start in range(0, len(pictures), size)]


def dump(listed: Sequence[Sequence[Piece]]) -> bytes:
    """Parts as one Parquet file, a row group each."""
    data = io.BytesIO()
    with pq.ParquetWriter(data, _SCHEMA, compression="zstd") as writer:
        for pieces in listed:
            columns = [
                pa.array([os.fsencode(piece.path) for piece in pieces], pa.binary()),
                pa.array([piece.first for piece in pieces], pa.int32()),
                pa.array([piece.last for piece in pieces], pa.int32()),
                pa.array([piece.images for piece in pieces], pa.int64()),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), row_group_size=len(pieces))
    return data.getvalue()


class Listing:
    """Parts of a job, read one at a time.

    Args:
        data: as ``dump`` made it.
    """

    def __init__(self, data: bytes) -> None:
        self._file = pq.ParquetFile(io.BytesIO(data))

    def __len__(self) -> int:
        return int(self._file.num_row_groups)

    @property
    def images(self) -> int:
        """Of all parts."""
        return sum(self._file.read(columns=["images"]).column("images").to_pylist())

    def part(self, number: int) -> list[Piece]:
        """Its pieces, in their order."""
        rows: list[dict[str, Any]] = self._file.read_row_group(number).to_pylist()
        return [Piece(os.fsdecode(row["path"]), row["first"], row["last"], row["images"]) for row in rows]


def _found(given: str) -> tuple[list[str], list[str]]:
    """Pictures and Parquet files of an input."""
    filesystem, path = opened(given)
    try:
        if filesystem.isfile(path):
            # A file is taken whatever its name.
            urls = _urls(given, filesystem, [path])
            return ([], urls) if path.lower().endswith(TABLE) else (urls, [])
        if filesystem.isdir(path):
            # A folder that cannot be read must not look like an empty one.
            files = filesystem.find(path, **({"on_error": "raise"} if is_local(filesystem) else {}))
        elif has_magic(given):
            files = [file for file in filesystem.glob(path) if not filesystem.isdir(file)]
        else:
            files = []
    except (OSError, ValueError) as error:
        raise UsageError(f"{given} cannot be listed: {error}") from error
    files = sorted(files, key=os.fsencode)
    pictures = [file for file in files if file.lower().endswith(SUFFIXES)]
    tables = [file for file in files if file.lower().endswith(TABLE)]
    if not pictures and not tables:
        kinds = ", ".join((*SUFFIXES, TABLE))
        raise UsageError(f"{given} names no file, no folder or pattern with files of {kinds}")
    return _urls(given, filesystem, pictures), _urls(given, filesystem, tables)


def _urls(given: str, filesystem: Any, paths: Sequence[str]) -> list[str]:
    """Each path as a URL of its own; of an input inside another file (``zip://*.jpg::s3://...``) with that file's."""
    if is_local(filesystem):
        return list(paths)
    _, inside, outer = given.partition("::")
    return [f"{filesystem.unstrip_protocol(path)}{inside}{outer}" for path in paths]


def _row_groups(tables: Sequence[str], columns: Columns) -> Iterator[Piece]:
    with ThreadPoolExecutor(_FOOTERS) as pool:
        for path, rows in zip(tables, pool.map(lambda path: _footer(path, columns), tables), strict=True):
            yield from (Piece(path, group, group, count) for group, count in enumerate(rows) if count)


def _footer(path: str, columns: Columns) -> list[int]:
    """Rows of each row group."""
    filesystem, name = opened(path)
    try:
        with filesystem.open(name) as file:
            table = pq.ParquetFile(file)
            schema, metadata = table.schema_arrow, table.metadata
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error
    for column in filter(None, (columns.image, columns.id)):
        if column not in schema.names:
            raise UsageError(f"{path} has no column {column!r}: there are {', '.join(schema.names)}")
    kind = schema.field(columns.image).type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UsageError(f"{path}: column {columns.image!r} is {kind}: expected the encoded pictures' bytes")
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def _gathered(pieces: Iterator[Piece], size: int) -> Iterator[list[Piece]]:
    """Row groups gathered until a part has ``size`` images; neighbours of one file are one piece."""
    part: list[Piece] = []
    for piece in pieces:
        if part and part[-1].path == piece.path and part[-1].last + 1 == piece.first:
            last = part.pop()
            piece = Piece(piece.path, last.first, piece.last, last.images + piece.images)
        part.append(piece)
        if sum(each.images for each in part) >= size:
            yield part
            part = []
    if part:
        yield part
