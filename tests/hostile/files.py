"""Picture files written by hand, where a library writes only sound ones."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

#: TIFF's types: code by name, and the bytes of one value.
_TYPES = {"B": (1, 1), "s": (2, 1), "H": (3, 2), "I": (4, 4), "Q": (5, 8), "f": (11, 4)}

Tag = tuple[str, Sequence[int | float] | bytes]


def tiff(tags: Mapping[int, Tag], pixels: bytes = b"", order: str = "<", next_directory: int = 0) -> bytes:
    """A TIFF of one directory.

    Args:
        tags: numbers to (type, values); one that is 273 (strip offsets) is filled in where its value is empty.
        pixels: right behind the header.
        order: of bytes, ``<`` or ``>``.
        next_directory: where the next one is said to be.
    """
    start = 8 + len(pixels) + len(pixels) % 2
    behind = start + 2 + 12 * len(tags) + 4
    entries, values = b"", b""
    for tag, (kind, given) in sorted(tags.items()):
        code, size = _TYPES[kind]
        if tag == 273 and not given:
            given = (8,)
        data = given if isinstance(given, bytes) else struct.pack(f"{order}{len(given)}{kind}", *given)
        count = len(data) // size
        if len(data) > 4:
            field = struct.pack(f"{order}I", behind + len(values))
            values += data + bytes(len(data) % 2)
        else:
            field = data.ljust(4, b"\0")
        entries += struct.pack(f"{order}HHI", tag, code, count) + field
    header = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, start)
    directory = struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", next_directory)
    return header + pixels + bytes(len(pixels) % 2) + directory + values


def picture_tags(
    width: int, height: int, bits: Sequence[int] = (8,), photometric: int = 1, compression: int = 1, length: int = 0
) -> dict[int, Tag]:
    """What a TIFF of one strip has at least.

    Args:
        width: px.
        height: px.
        bits: of each sample.
        photometric: 0 white is zero, 1 black is zero, 2 RGB, 5 CMYK.
        compression: 1 none, 8 deflate.
        length: bytes of the strip.
    """
    return {
        256: ("I", (width,)),
        257: ("I", (height,)),
        258: ("H", tuple(bits)),
        259: ("H", (compression,)),
        262: ("H", (photometric,)),
        273: ("I", ()),
        277: ("H", (len(bits),)),
        278: ("I", (height,)),
        279: ("I", (length,)),
    }


def simple_tiff(
    width: int, height: int, pixels: bytes, bits: Sequence[int] = (8,), photometric: int = 1, order: str = "<"
) -> bytes:
    """A TIFF of one strip, not compressed."""
    return tiff(picture_tags(width, height, bits, photometric, length=len(pixels)), pixels, order)


def tags_that_claim_one_value(entries: int, size: int) -> bytes:
    """A TIFF directory, as EXIF has one too, whose every tag has the same ``size`` bytes of the file as its value."""
    directory = struct.pack("<H", entries)
    for tag in range(entries):
        directory += struct.pack("<HHII", 0x1000 + tag, 7, size, 8)
    body = b"II*\0" + struct.pack("<I", 8) + directory + bytes(4)
    return body + bytes(max(0, 8 + size - len(body)))


def bmp32(width: int, height: int, pixels: bytes, masks: bool = True) -> bytes:
    """A BMP of blue, green, red and alpha, bottom row first.

    Args:
        width: px.
        height: px.
        pixels: 4 bytes each.
        masks: whether its header says that there is alpha; without, the fourth byte means nothing.
    """
    size = 108 if masks else 40
    info = struct.pack("<IiiHHIIiiII", size, width, height, 1, 32, 3 if masks else 0, len(pixels), 0, 0, 0, 0)
    if masks:
        info += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) + b"BGRs" + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + size + len(pixels), 0, 0, 14 + size) + info + pixels


def gif(width: int, height: int, frames: int = 1, frame: tuple[int, int] | None = None) -> bytes:
    """A GIF of many tiny frames, of two colours.

    Args:
        width: of the screen, px.
        height: likewise.
        frames: how many.
        frame: width and height of each, as it says them.
    """
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    across, down = frame or (1, 1)
    # Clear, index 0, end: 3 bits each.
    one = b"," + struct.pack("<HHHHB", 0, 0, across, down, 0) + b"\x02\x02\x44\x01\x00"
    return head + one * frames + b";"


def segment(marker: int, content: bytes) -> bytes:
    """One of a JPEG's parts."""
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(content)) + content


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """A JPEG with more parts right behind its first marker."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def scans(jpeg: bytes, count: int) -> bytes:
    """A progressive JPEG whose last scan comes ``count`` times more."""
    start = jpeg.rindex(b"\xff\xda")
    return jpeg[:start] + jpeg[start:-2] * count + jpeg[-2:]


def text_bomb(size: int) -> bytes:
    """A PNG's compressed text of ``size`` bytes when it is read, without length and check sum."""
    return b"Comment\0\0" + zlib.compress(bytes(size), 9)


def swapped(data: bytes, old: bytes, new: bytes) -> bytes:
    """A file with a block replaced by one of the same length, where the library refuses to write the new one."""
    assert len(old) == len(new)
    assert data.count(old) == 1
    return data.replace(old, new)
