"""Bytes -> upright RGB.

Each mode has its rule: alpha goes onto white, palettes and greys become RGB, CMYK by Pillow's plain
conversion. The EXIF orientation is applied; one that is unreadable or out of range counts as upright, as
in browsers. Of animations the first frame is taken. Formats: JPEG (and MPO, its multi-picture form), PNG,
WebP, GIF, BMP.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError, WebPImagePlugin  # noqa: F401 - Image.open knows what is imported

from handler.config import Limits
from handler.errors import InvalidImage, RequestError, TooLarge, UnsupportedImage
from handler.geometry import Uint8

#: Pillow's JPEG reader turns to MPO by itself.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_EXIF_ORIENTATION = 0x0112
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
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (4, b"ftypavi", "AVIF"),
    (4, b"ftypheic", "HEIC"),
    (4, b"ftypheix", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (0, b"%PDF", "PDF"),
    (0, b"<svg", "SVG"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cjP", "JPEG 2000"),
)


@dataclass(frozen=True)
class Decoded:
    """An upright picture.

    Attributes:
        array: [H, W, 3] uint8 RGB.
        format: Pillow's name of the format it came in.
    """

    array: Uint8
    format: str


def decode(data: bytes | bytearray, limits: Limits) -> Decoded:
    """Decode one picture. Size and type are judged from its header, before any pixel is decoded.

    Raises:
        TooLarge: more bytes or pixels than the limits allow.
        UnsupportedImage: a format or sample type that is not taken.
        InvalidImage: no picture, or a damaged one.
    """
    if not data:
        raise InvalidImage("the image is empty: 0 bytes came")
    if len(data) > limits.bytes:
        raise TooLarge(f"the image has {len(data):,} bytes: at most {limits.bytes:,} are taken")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            if width * height > limits.pixels:
                raise TooLarge(
                    f"the image is {width}x{height}, {width * height:,} pixels: at most {limits.pixels:,} are taken"
                )
            # Pillow opens PNGs of 16 bits and several channels as if they had 8; the header's byte 24 says it.
            deep = picture.format == "PNG" and data[24] == 16
            if deep or picture.mode.startswith(("I", "F")):
                raise UnsupportedImage(
                    f"the {picture.format} has samples of over 8 bits (mode {picture.mode}): 8-bit images are taken"
                )
            picture.load()
            upright = _rgb(picture)
            transpose = _UPRIGHT.get(_orientation(picture))
            if transpose is not None:
                upright = upright.transpose(transpose)
            return Decoded(np.asarray(upright), picture.format or "JPEG")
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


def _rgb(picture: Image.Image) -> Image.Image:
    """Pillow's picture in RGB; what is transparent shows white."""
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode in ("LA", "RGBA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return picture.convert("RGB")


def _orientation(picture: Image.Image) -> int:
    exif = Image.Exif()
    try:
        # Not picture.getexif(), which takes XMP's word too.
        exif.load(picture.info.get("exif", b""))
        value = exif.get(_EXIF_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken EXIF blocks raise nearly anything; they count as upright
        return 1
    return value if isinstance(value, int) else 1


def _unidentified(data: bytes | bytearray) -> RequestError:
    for offset, magic, name in _OTHERS:
        if data[offset : offset + len(magic)] == magic:
            return UnsupportedImage(f"the image is {name}: JPEG, PNG, WebP, GIF and BMP are taken")
    return InvalidImage(
        f"the {len(data):,} bytes are no image of a kind that is taken (JPEG, PNG, WebP, GIF, BMP); "
        f"they begin with {bytes(data[:8])!r}"
    )
