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
scans of a JPEG by a constant here, the tags of a TIFF or an EXIF block by one of :mod:`handler.tags`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from PIL import AvifImagePlugin, Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin, features  # noqa: F401

from handler import tags
from handler.colours import rgb
from handler.config import Limits
from handler.errors import InvalidImage, RequestError, TooLarge, UnsupportedImage
from handler.geometry import Reduced, Uint8

_N = TypeVar("_N", int, float)
#: Bytes that decoding and conversion take a pixel at their peak, over the file's own, on the costliest kind of each
#: format: turned CMYK, alpha, several scans. tests/handler/test_image_memory.py measures them.
MEMORY = dict.fromkeys(("JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF"), 16) | dict.fromkeys(("WEBP", "AVIF", "HEIF"), 28)
COSTLIEST = max(MEMORY.values())
#: Scans of a JPEG. Encoders write a dozen; each costs a pass over all pixels, however few bytes it has.
SCANS = 100
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Of EXIF's orientations: those that swap the sides, and those of pictures that begin upright at the right, the bottom.
_SIDEWAYS, _FROM_RIGHT, _FROM_BOTTOM = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)
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
        picture: Pillow's, in RGB.
        format: Pillow's name of the format it came in.
        reduced: where it was decoded at a lower resolution: what it stands for.
    """

    picture: Image.Image
    format: str
    reduced: Reduced | None = None

    @property
    def array(self) -> Uint8:
        """[H, W, 3] uint8 RGB, a new one each time."""
        return np.asarray(self.picture)


#: (height, width) of the upright image -> the least (height, width) that is needed of it, px.
Least = Callable[[int, int], tuple[int, int]]


def read_header(data: bytes | bytearray, limits: Limits) -> Header:
    """Judge one picture by its header.

    Raises:
        TooLarge: more bytes, pixels or scans than the limits allow.
        UnsupportedImage: a format or sample type that is not taken.
        InvalidImage: no picture, or a damaged one.
    """
    with _opened(data, limits) as picture:
        return _header(picture)


def decode(data: bytes | bytearray, limits: Limits, least: Least | None = None) -> Decoded:
    """Decode one picture. Size and type are judged from its header, before any pixel is decoded.

    Args:
        data: the file's bytes.
        limits: see Limits.
        least: lets a JPEG be decoded at a half, a quarter or an eighth of its size, as small as this allows. Its
            decoder then leaves out the finest waves of each block of 8 x 8 pixels, which saves most of its time.

    Raises:
        TooLarge, UnsupportedImage, InvalidImage: as read_header.
    """
    with _opened(data, limits) as picture:
        # A TIFF is turned upright as it is loaded, and would take XMP's word.
        picture.info.pop("xmp", None)
        reduced = _draft(picture, least) if least and picture.format in ("JPEG", "MPO") else None
        picture.load()
        upright = rgb(picture)
        transpose = _UPRIGHT.get(tags.orientation(picture))
        if transpose is not None:
            upright = upright.transpose(transpose)
        return Decoded(upright, picture.format or "JPEG", reduced)


def _draft(picture: Image.Image, least: Least) -> Reduced | None:
    """Have a JPEG decoded at a lower resolution; what it then stands for, or None where none is low enough."""
    stored = picture.size
    orientation = tags.orientation(picture)
    sideways = orientation in _SIDEWAYS
    width, height = _turned(*stored, sideways)
    rows, columns = least(height, width)
    drafted = picture.draft(None, _turned(columns, rows, sideways))
    if drafted is None or picture.size == stored:
        return None
    # Sides are rounded up: what the stored picture really takes ends within its last column and row.
    right, bottom = _turned(*drafted[1][2:], sideways)
    across, down = _turned(*picture.size, sideways)
    left = across - right if orientation in _FROM_RIGHT else 0.0
    top = down - bottom if orientation in _FROM_BOTTOM else 0.0
    return Reduced((height, width), (left, top, left + right, top + bottom))


def _turned(across: _N, down: _N, sideways: bool) -> tuple[_N, _N]:
    """Stored sides as upright ones, or the other way round."""
    return (down, across) if sideways else (across, down)


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
        tile = tags.number(picture, TiffImagePlugin.TILEWIDTH, 0) * tags.number(picture, TiffImagePlugin.TILELENGTH, 0)
        if tile > limits.pixels:
            raise TooLarge(f"the TIFF has tiles of {tile:,} pixels: at most {limits.pixels:,} are taken")
        if tags.number(picture, TiffImagePlugin.BITSPERSAMPLE, 1) == 12:
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
        across = -(-width // max(1, tags.number(picture, TiffImagePlugin.TILEWIDTH, width)))
        rows = tags.number(picture, TiffImagePlugin.TILELENGTH, 0) or tags.number(
            picture, TiffImagePlugin.ROWSPERSTRIP, height
        )
        parts = across * -(-height // max(1, rows))
    elif picture.format not in ("JPEG", "MPO"):
        return
    # In the whole file: a JPEG's compressed data hold no such marker by chance.
    scans = data.count(b"\xff\xda")
    if scans > SCANS * parts:
        raise TooLarge(f"the {picture.format} has {scans:,} scans: at most {SCANS * parts:,} are taken")


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
