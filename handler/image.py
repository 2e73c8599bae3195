"""Bytes -> upright RGB of 8 bits a sample.

Formats: JPEG (and MPO, its multi-picture form), PNG, WebP, GIF, BMP, TIFF; AVIF where Pillow's build has it, HEIC
where the package pillow-heif is installed. Every mode has its rule:

- alpha goes onto white; that of a BMP counts as none where it is zero everywhere, as programs write it that have none;
- palettes and greys become RGB; CMYK by Pillow's plain conversion, of a JPEG after inverting it, whether Adobe's
  marker says so or not: programs that write such JPEGs store them inverted;
- of samples of 16 bits the upper 8 are taken; integers of 32 bits, signed ones and floats have no range that is known,
  and are refused;
- the EXIF orientation is applied (in AVIF and HEIC the container's own); one that is unreadable or out of range counts
  as upright, as in browsers. XMP's is not looked at;
- of animations, and of files of several pages or pictures, the first is taken.

What decoding costs is bounded before a pixel is decoded: bytes and pixels by Limits, memory by ``Header.memory``, the
scans of a JPEG and the tags of a TIFF or an EXIF block by constants here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import AvifImagePlugin, Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin, features  # noqa: F401

from handler.config import Limits
from handler.errors import InvalidImage, RequestError, TooLarge, UnsupportedImage
from handler.geometry import Uint8

#: Bytes that decoding and conversion take a pixel at their peak, over the file's own, on the costliest kind of each
#: format: turned CMYK, alpha, several scans. tests/handler/test_image_memory.py measures them.
MEMORY = dict.fromkeys(("JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF"), 16) | dict.fromkeys(("WEBP", "AVIF", "HEIF"), 28)
COSTLIEST = max(MEMORY.values())
#: Scans of a JPEG. Encoders write a dozen; each costs a pass over all pixels, however few bytes it has.
SCANS = 100
#: Bytes of the numbers among a TIFF's or an EXIF block's tags: as objects they take fifty times as much. The offset and
#: the length of a strip take 8, and there is at most one a row.
TAG_BYTES = 1 << 20
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Pictures that callers plausibly send, by how their bytes begin: (offset, bytes, name).
_OTHERS = (
    (4, b"ftypavi", "AVIF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftyphev", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (4, b"ftypmsf1", "HEIF"),
    (0, b"%PDF", "PDF"),
    (0, b"<svg", "SVG"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\0\0\0\x0cjP", "JPEG 2000"),
)
#: A JPEG's frame header, of any coding, with that precision.
_TWELVE_BITS = re.compile(rb"\xff[\xc0-\xc2\xc9\xca]..\x0c", re.DOTALL)


def _formats() -> tuple[str, ...]:
    """Pillow's names of what is taken here; its JPEG reader turns to MPO by itself."""
    taken = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]
    if features.check("avif"):
        taken.append("AVIF")
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener(thumbnails=False, decode_threads=1)
        taken.append("HEIF")
    return tuple(taken)


FORMATS = _formats()
# Images are decoded side by side as it is.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1


@dataclass(frozen=True)
class Header:
    """What a picture says of itself before it is decoded.

    Attributes:
        width: px, before its orientation is applied.
        height: likewise.
        format: Pillow's name of it.
    """

    width: int
    height: int
    format: str

    @property
    def pixels(self) -> int:
        """Of its one picture that is taken."""
        return self.width * self.height

    @property
    def memory(self) -> int:
        """Bytes that decoding it takes at most, besides the file's own."""
        return self.pixels * MEMORY[self.format]


@dataclass(frozen=True)
class Decoded:
    """An upright picture.

    Attributes:
        array: [H, W, 3] uint8 RGB.
        format: Pillow's name of the format it came in.
    """

    array: Uint8
    format: str


def read_header(data: bytes | bytearray, limits: Limits) -> Header:
    """Judge one picture by its header.

    Raises:
        TooLarge: more bytes, pixels or scans than the limits allow.
        UnsupportedImage: a format or sample type that is not taken.
        InvalidImage: no picture, or a damaged one.
    """
    with _opened(data, limits) as picture:
        return _header(picture)


def decode(data: bytes | bytearray, limits: Limits) -> Decoded:
    """Decode one picture. Size and type are judged from its header, before any pixel is decoded.

    Raises:
        TooLarge, UnsupportedImage, InvalidImage: as read_header.
    """
    with _opened(data, limits) as picture:
        # A TIFF is turned upright as it is loaded, and would take XMP's word.
        picture.info.pop("xmp", None)
        picture.load()
        upright = _rgb(picture)
        transpose = _UPRIGHT.get(_orientation(picture))
        if transpose is not None:
            upright = upright.transpose(transpose)
        return Decoded(np.asarray(upright), picture.format or "JPEG")


@contextlib.contextmanager
def _opened(data: bytes | bytearray, limits: Limits) -> Iterator[Image.Image]:
    """A picture within the limits, not decoded yet; what its reader raises becomes an error of the tree."""
    if not data:
        raise InvalidImage("the image is empty: 0 bytes came")
    if len(data) > limits.bytes:
        raise TooLarge(f"the image has {len(data):,} bytes: at most {limits.bytes:,} are taken")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            _require(picture, data, limits)
            yield picture
    except RequestError:
        raise
    except UnidentifiedImageError as error:
        raise _unidentified(data) from error
    except Image.DecompressionBombError as error:
        # Pillow's own limit, which is above every limit here, comes first.
        raise TooLarge(f"the image has more than {limits.pixels:,} pixels: at most so many are taken") from error
    except MemoryError as error:
        raise TooLarge("the image needs more memory than there is") from error
    except Exception as error:  # decoders of damaged files raise nearly anything, and it is the file's fault
        raise InvalidImage(f"the image is damaged: {type(error).__name__}: {str(error)[:200]}") from error


def _header(picture: Image.Image) -> Header:
    return Header(*picture.size, picture.format or "JPEG")


def _require(picture: Image.Image, data: bytes | bytearray, limits: Limits) -> None:
    """Raise RequestError where decoding would cost too much, or has no rule."""
    header = _header(picture)
    if header.pixels > limits.pixels:
        size = f"{header.width}x{header.height}, {header.pixels:,} pixels"
        raise TooLarge(f"the image is {size}: at most {limits.pixels:,} are taken")
    _require_few_scans(picture, data)
    refused = ""
    if picture.mode in ("I", "F"):
        refused = "samples of 32 bits, signed or float"
    elif isinstance(picture, TiffImagePlugin.TiffImageFile):
        tile = _tag(picture, TiffImagePlugin.TILEWIDTH, 0) * _tag(picture, TiffImagePlugin.TILELENGTH, 0)
        if tile > limits.pixels:
            raise TooLarge(f"the TIFF has tiles of {tile:,} pixels: at most {limits.pixels:,} are taken")
        if _tag(picture, TiffImagePlugin.BITSPERSAMPLE, 1) == 12:
            refused = "samples of 12 bits"
    elif header.format == "PNG" and data[24] == 16 and "transparency" in picture.info:
        # Which pixels are clear would be decided by their lower bytes too.
        refused = "samples of 16 bits and one clear colour"
    if refused:
        raise UnsupportedImage(
            f"the {header.format} has {refused} (mode {picture.mode}): samples of 8 bits, or 16 without sign, are taken"
        )


def _require_few_scans(picture: Image.Image, data: bytes | bytearray) -> None:
    parts = 1
    if picture.info.get("compression") == "jpeg":
        # Each strip or tile is a JPEG of its own.
        width, height = picture.size
        across = -(-width // max(1, _tag(picture, TiffImagePlugin.TILEWIDTH, width)))
        rows = _tag(picture, TiffImagePlugin.TILELENGTH, 0) or _tag(picture, TiffImagePlugin.ROWSPERSTRIP, height)
        parts = across * -(-height // max(1, rows))
    elif picture.format not in ("JPEG", "MPO"):
        return
    # In the whole file: a JPEG's compressed data hold no such marker by chance.
    scans = data.count(b"\xff\xda")
    if scans > SCANS * parts:
        raise TooLarge(f"the {picture.format} has {scans:,} scans: at most {SCANS * parts:,} are taken")


def _tag(picture: Image.Image, tag: int, absent: int) -> int:
    """The number, or the first of the numbers, of a TIFF's tag."""
    value: Any = picture.tag_v2.get(tag, absent) if isinstance(picture, TiffImagePlugin.TiffImageFile) else absent
    return int(value[0] if isinstance(value, tuple) else value)


def _rgb(picture: Image.Image) -> Image.Image:
    """Pillow's picture in RGB; what is transparent shows white."""
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I;16"):
        samples = np.asarray(picture)
        # Pillow inverts a TIFF whose zero is white, but not at 16 bits.
        if picture.format == "TIFF" and _tag(picture, TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0) == 0:
            samples = ~samples
        return Image.fromarray((samples >> 8).astype(np.uint8)).convert("RGB")
    if picture.format == "BMP" and picture.mode == "RGBA" and picture.getchannel("A").getextrema() == (0, 0):
        return picture.convert("RGB")
    if picture.mode in ("LA", "RGBA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = (
            picture
            if picture.mode in ("LA", "RGBA") and "transparency" not in picture.info
            else picture.convert("RGBA")
        )
        white = Image.new("RGB", layer.size, "white")
        white.paste(layer, mask=layer)
        return white
    return picture.convert("RGB")


def _orientation(picture: Image.Image) -> int:
    exif = Image.Exif()
    try:
        # Not picture.getexif(), which takes XMP's word too.
        exif.load(picture.info.get("exif", b""))
        value = exif.get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken EXIF blocks raise nearly anything; they count as upright
        return 1
    return value if isinstance(value, int) else 1


def _unidentified(data: bytes | bytearray) -> RequestError:
    taken = ", ".join({"WEBP": "WebP", "HEIF": "HEIC"}.get(name, name) for name in FORMATS)
    if data[:4] in (b"II*\0", b"MM\0*"):
        return UnsupportedImage("the TIFF's first page has samples of a kind that is not taken, or damaged tags")
    if data[:2] == b"\xff\xd8" and _TWELVE_BITS.search(data):
        return UnsupportedImage("the JPEG has samples of 12 bits: those of 8 are taken")
    for offset, magic, name in _OTHERS:
        if data[offset : offset + len(magic)] != magic:
            continue
        if name in ("HEIC", "HEIF") and "HEIF" not in FORMATS:
            return UnsupportedImage(f"the image is {name}, for which this server lacks pillow-heif: {taken} are taken")
        if name not in ("AVIF", "HEIC", "HEIF") or name not in FORMATS:
            return UnsupportedImage(f"the image is {name}: {taken} are taken")
    return InvalidImage(
        f"the {len(data):,} bytes are no image of a kind that is taken ({taken}); they begin with {bytes(data[:8])!r}"
    )


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
