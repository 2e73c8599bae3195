"""Pictures as the server sees them, and faces drawn into them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from clients.answer import Answer
from clients.draw import annotate, encode, upright
from clients.errors import UsageError
from handler.config import Limits
from handler.image import decode
from tests.photographs import ASTRONAUT
from tests.support import saved

STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def answer(width: int, height: int, *boxes: tuple[float, float, float, float]) -> Answer:
    points = {"right_eye": [30, 40], "left_eye": [50, 40], "nose": [40, 50], "mouth_right": [32, 60]}
    return Answer.parse(
        {
            "model": dict.fromkeys(("name", "version", "weights", "engine", "precision"), "-"),
            "image": {"width": width, "height": height},
            "canvas": "640x640",
            "scale": 1.0,
            "faces": [
                {"box": list(box), "score": 0.9, "landmarks": {**points, "mouth_left": [48, 60]}} for box in boxes
            ],
            "timing_ms": {},
            "batch_size": 1,
        }
    )


@pytest.mark.parametrize("orientation", STORED)
def test_upright_by_exif(orientation: int) -> None:
    picture = Image.open(ASTRONAUT.path).convert("RGB").crop((100, 0, 400, 200))
    how = STORED[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture if how is None else picture.transpose(how), "PNG", exif=exif)
    assert np.array_equal(np.asarray(upright(data)), np.asarray(picture))


_MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "JPEG": ("1", "L", "RGB", "CMYK"),
    "WEBP": ("L", "LA", "P", "RGB", "RGBA"),
    "GIF": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
}


@pytest.mark.parametrize(("picture_format", "mode"), [(name, mode) for name in _MODES for mode in _MODES[name]])
def test_every_mode_as_the_server_decodes_it(picture_format: str, mode: str) -> None:
    picture = Image.open(ASTRONAUT.path).convert("RGB").crop((100, 0, 220, 100))
    if mode in ("LA", "RGBA"):
        picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    data = saved(picture.convert(mode), picture_format)
    assert np.array_equal(np.asarray(upright(data)), decode(data, Limits()).array)


def test_orientation_in_xmp_alone_is_left_aside_as_on_the_server() -> None:
    picture = Image.new("RGB", (40, 20))
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    data = saved(picture, "JPEG", xmp=xmp)
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == 6
    assert upright(data).size == (40, 20)


@pytest.mark.parametrize("data", [b"", b"no picture", ASTRONAUT.path.read_bytes()[:2000]])
def test_what_is_no_picture(data: bytes) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        upright(data)


def test_boxes_scores_and_points_are_drawn_where_they_are() -> None:
    picture = Image.new("RGB", (120, 100), "white")
    drawn = np.asarray(annotate(picture, answer(120, 100, (20, 30, 60, 70))), int)
    changed = np.abs(drawn - 255).sum(axis=2) > 0
    assert changed[30:71, 20].all()
    assert changed[30, 20:61].all()
    assert not changed[72:].any()
    assert not changed[:, 62:].any()
    # The score stands over the box.
    assert changed[15:29, 20:50].any()
    for x, y in [(30, 40), (50, 40), (40, 50), (32, 60), (48, 60)]:
        assert tuple(drawn[y, x]) == (255, 60, 60)
    assert np.array_equal(np.asarray(picture), np.full((100, 120, 3), 255)), "the picture itself is left alone"


def test_an_answer_of_another_picture_is_refused() -> None:
    with pytest.raises(UsageError, match="120x100 and its answer of 100x120: it changed"):
        annotate(Image.new("RGB", (120, 100)), answer(100, 120))


def test_a_format_that_does_not_hold_the_picture_says_so() -> None:
    wide = Image.new("RGB", (66_000, 2))
    with pytest.raises(UsageError, match="66000x2 px cannot be written as JPEG"):
        encode(wide, lossless=False)
    assert Image.open(io.BytesIO(encode(wide, lossless=True))).size == (66_000, 2)


def test_formats() -> None:
    picture = Image.new("RGB", (12, 10))
    assert encode(picture, lossless=True).startswith(b"\x89PNG")
    assert encode(picture, lossless=False).startswith(b"\xff\xd8")
