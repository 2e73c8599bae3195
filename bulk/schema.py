"""What a job writes: one row an image that was answered, one row an image that was not.

``faces``: ``path`` (or the id of a Parquet row), ``width`` and ``height`` of the upright image in px, ``canvas``
(height x width the network ran at), ``scale`` (its px a px of the image), ``faces`` (a list of structs: corners
``x1 y1 x2 y2`` in px of the upright image, ``score`` 0..1, ``landmarks`` by name, null where there are none), and what
found them: ``model``, ``version``, ``weights``, ``engine``, ``precision``. Numbers are the server's, digit for digit.

``errors``: ``path``, ``code`` (of HTTP; null where the image could not be read at all), ``type``, ``message``.

A row holds nothing that differs from run to run, so that a part that is run twice is the same file. JSON lines hold the
server's answer as it is, its times included.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PARQUET, JSONL = "parquet", "jsonl"
FORMATS = (PARQUET, JSONL)
#: As answers name them; right and left are the person's.
LANDMARKS = ("right_eye", "left_eye", "nose", "mouth_right", "mouth_left")
#: The type of an image that could not be read: no answer of the detector has it.
UNREADABLE = "unreadable"

_POINT = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("y", pa.float64(), nullable=False)])
_FACE = pa.struct(
    [
        *(pa.field(name, pa.float64(), nullable=False) for name in ("x1", "y1", "x2", "y2", "score")),
        pa.field("landmarks", pa.struct([pa.field(name, _POINT, nullable=False) for name in LANDMARKS])),
    ]
)
_MODEL = {"model": "name", "version": "version", "weights": "weights", "engine": "engine", "precision": "precision"}
FACES = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("canvas", pa.string(), nullable=False),
        pa.field("scale", pa.float64(), nullable=False),
        pa.field("faces", pa.list_(pa.field("face", _FACE, nullable=False)), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in _MODEL),
    ]
)
ERRORS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("code", pa.int32()),
        pa.field("type", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Row:
    """What became of one image.

    Attributes:
        path: of the image, or the id of its row.
        body: the server's answer, as its bytes.
        error: ``code``, ``type`` and ``message``, where there is no answer.
    """

    path: str
    body: bytes = b""
    error: dict[str, Any] | None = None

    @classmethod
    def of(cls, path: str, status: int, body: bytes) -> Row:
        """From the detector's response."""
        return cls(path, body) if status == 200 else cls(path, error=json.loads(body)["error"])

    @classmethod
    def unread(cls, path: str, reason: str) -> Row:
        """Of an image whose bytes could not be had."""
        return cls(path, error={"code": None, "type": UNREADABLE, "message": reason})

    @property
    def again(self) -> bool:
        """Whether asking again could say otherwise: the fault is not the image's."""
        return self.error is not None and (self.error["code"] is None or self.error["code"] >= 500)

    @property
    def faces(self) -> int:
        """How many were found."""
        return 0 if self.error else len(json.loads(self.body)["faces"])


def faces_file(rows: Sequence[Row], form: str) -> bytes:
    """The rows that have an answer, as one file.

    Args:
        rows: in the order of their images.
        form: ``parquet``, or ``jsonl`` with the lines of ``mogface detect``.
    """
    answered = [row for row in rows if row.error is None]
    if form == JSONL:
        return b"".join(_line(row.path, b'"answer":' + row.body) for row in answered)
    return _parquet([_answer(row) for row in answered], FACES)


def errors_file(rows: Sequence[Row], form: str) -> bytes:
    """The rows that have none, as one file; arguments as of ``faces_file``."""
    failed = [(row.path, row.error) for row in rows if row.error is not None]
    if form == JSONL:
        return b"".join(_line(path, b'"error":' + _compact(error)) for path, error in failed)
    return _parquet([{"path": _text(path), **error} for path, error in failed], ERRORS)


def _answer(row: Row) -> dict[str, Any]:
    answer = json.loads(row.body)
    faces = [
        {
            **dict(zip(("x1", "y1", "x2", "y2"), face["box"], strict=True)),
            "score": face["score"],
            "landmarks": face["landmarks"]
            and {name: dict(zip("xy", point, strict=True)) for name, point in face["landmarks"].items()},
        }
        for face in answer["faces"]
    ]
    return {
        "path": _text(row.path),
        **answer["image"],
        "canvas": answer["canvas"],
        "scale": answer["scale"],
        "faces": faces,
        **{column: answer["model"][key] for column, key in _MODEL.items()},
    }


def _parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), data, compression="zstd")
    return data.getvalue()


def _line(path: str, rest: bytes) -> bytes:
    return b'{"path":' + _compact(path) + b"," + rest + b"}\n"


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _text(path: str) -> str:
    """Arrow's strings are UTF-8: the odd bytes of a file's name are written as ``\\udc80`` to ``\\udcff``."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
