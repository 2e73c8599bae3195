"""A picture with its faces drawn in, made here from the file and its answer."""

from __future__ import annotations

import io

from PIL import Image, ImageDraw

from clients.answer import Answer
from clients.errors import UsageError

_BOX = (0, 230, 90)
_POINT = (255, 60, 60)
_ORIENTATION = 0x0112
#: What brings a stored picture upright, by the EXIF standard.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_JPEG_QUALITY = 95
#: libjpeg's JPEG_MAX_DIMENSION, px; over it, it complains on the error stream by itself.
_JPEG_LARGEST = 65_500


def upright(data: bytes) -> Image.Image:
    """A picture as the server sees it: RGB, its first frame, by its EXIF orientation, on white where transparent.

    Args:
        data: an encoded picture.

    Raises:
        UsageError: Pillow does not read it.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()
            transpose = _UPRIGHT.get(_orientation(picture))
            flat = _rgb(picture)
    except Exception as error:  # decoders of damaged files raise nearly anything, and it is the file's fault
        raise UsageError(f"the picture cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    return flat if transpose is None else flat.transpose(transpose)


def annotate(picture: Image.Image, answer: Answer) -> Image.Image:
    """A copy with a box, a score and, where there are any, five points a face.

    Args:
        picture: upright, RGB.
        answer: of the same picture.

    Raises:
        UsageError: the answer is of a picture of another size.
    """
    if picture.size != (answer.width, answer.height):
        raise UsageError(
            f"the picture is {picture.width}x{picture.height} and its answer of {answer.width}x{answer.height}: "
            "it changed since it was sent"
        )
    drawn = picture.copy()
    draw = ImageDraw.Draw(drawn)
    stroke = max(2, round(max(picture.size) / 400))
    for face in answer.faces:
        x1, y1, x2, _ = face.box
        draw.rectangle(face.box, outline=_BOX, width=stroke)
        size = min(max((x2 - x1) / 6, 10.0), 40.0)
        draw.text((x1, max(0.0, y1 - size * 1.2)), f"{face.score:.2f}", fill=_BOX, font_size=size)
        for x, y in (face.landmarks or {}).values():
            draw.ellipse((x - stroke, y - stroke, x + stroke, y + stroke), fill=_POINT)
    return drawn


def encode(picture: Image.Image, lossless: bool) -> bytes:
    """PNG, or JPEG.

    Raises:
        UsageError: the format does not hold it: a JPEG has 65,500 px at most either way.
    """
    kind, size = "PNG" if lossless else "JPEG", f"{picture.width}x{picture.height} px"
    if not lossless and max(picture.size) > _JPEG_LARGEST:
        raise UsageError(f"{size} cannot be written as JPEG, which has {_JPEG_LARGEST} at most: name the image .png")
    data = io.BytesIO()
    try:
        picture.save(data, kind, quality=_JPEG_QUALITY)
    except (OSError, ValueError) as error:
        raise UsageError(f"{size} cannot be written as {kind}: {error}") from error
    return data.getvalue()


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in ("LA", "RGBA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def _orientation(picture: Image.Image) -> int:
    """1..8; what is unreadable counts as upright, as in browsers and on the server, which both leave XMP aside."""
    exif = Image.Exif()
    try:
        exif.load(picture.info.get("exif", b""))
        value = exif.get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken EXIF blocks raise nearly anything
        return 1
    return value if isinstance(value, int) else 1
