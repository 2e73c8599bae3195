"""The tags of TIFF files, EXIF blocks and multi-picture JPEGs: no more is read of them than their bytes can hold."""

from __future__ import annotations

import io
from typing import IO, Any

from PIL import Image, TiffImagePlugin

#: Bytes of the numbers among a TIFF's or an EXIF block's tags: as objects they take fifty times as much. The offset and
#: the length of a strip take 8, and there is at most one a row.
TAG_BYTES = 1 << 20
_ORIENTATION = 0x0112


def number(picture: Image.Image, tag: int, absent: int) -> int:
    """The number, or the first of the numbers, of a TIFF's tag."""
    value: Any = picture.tag_v2.get(tag, absent) if isinstance(picture, TiffImagePlugin.TiffImageFile) else absent
    return int(value[0] if isinstance(value, tuple) else value)


def orientation(picture: Image.Image) -> int:
    """EXIF's, as a number; 1, which is upright, where there is none that can be read."""
    exif = Image.Exif()
    try:
        # Not picture.getexif(), which takes XMP's word too.
        exif.load(picture.info.get("exif", b""))
        value = exif.get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken EXIF blocks raise nearly anything; they count as upright
        return 1
    return value if isinstance(value, int) else 1


class _Directory(TiffImagePlugin.ImageFileDirectory_v2):
    """Pillow's reader of the tags of TIFF files, EXIF blocks and multi-picture JPEGs, held to what the bytes can hold.

    Each of 65,535 tags may claim the same bytes as its value, and Pillow copies them for each: 64 kB of EXIF become
    350 MB, a TIFF of 20 MB any number.
    """

    def load(self, fp: IO[bytes]) -> None:
        """Read one directory.

        Raises:
            ValueError: its values overlap, or have more numbers than TAG_BYTES allows.
        """
        super().load(_Once(fp))  # type: ignore[arg-type]
        # 1, 2, 6 and 7 are bytes and text, which stay what they are.
        numbers = sum(len(value) for tag, value in self._tagdata.items() if self.tagtype[tag] not in (1, 2, 6, 7))
        if numbers > TAG_BYTES:
            raise ValueError(f"the tags have {numbers:,} bytes of numbers: at most {TAG_BYTES:,} are read")


class _Once:
    """A file of which no more is read than it has, twice over: two tags may share a value."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        here = file.tell()
        self._left = 2 * file.seek(0, io.SEEK_END)
        file.seek(here)
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        """Raises ValueError where more is read than there is."""
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("tags claim the same bytes as their values again and again")
        return data


# Pillow has no setting for it. A test sends such files, so that a Pillow that reads them otherwise is noticed.
TiffImagePlugin.ImageFileDirectory_v2 = _Directory  # type: ignore[misc]
