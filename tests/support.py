"""Pictures as bytes, written here by hand where Pillow cannot write them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image


def saved(picture: Image.Image, format: str, **how: Any) -> bytes:
    data = io.BytesIO()
    picture.save(data, format, **how)
    return data.getvalue()


def png(width: int, height: int, depth: int, color: int, rows: bytes = b"", before: bytes = b"") -> bytes:
    """A PNG with this header, whatever its pixels are.

    Args:
        width: as the header says it.
        height: likewise.
        depth: bits a sample.
        color: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGBA.
        rows: each with its filter byte, not compressed.
        before: chunks between the header and the pixels.
    """
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + pixels + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    """One of a PNG's parts."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
