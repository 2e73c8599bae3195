"""Real photographs through a real TorchServe."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from handler.detections import LANDMARKS
from tests.photographs import ASTRONAUT, HOPPER, NO_FACES, Portrait, iou

Post = Callable[..., httpx.Response]

# How a picture must be stored so that a viewer who applies the orientation sees it upright: the inverse of
# what the EXIF standard names for each value.
_STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def encoded(picture: Image.Image, image_format: str, **parameters: object) -> bytes:
    data = io.BytesIO()
    picture.save(data, image_format, **parameters)
    return data.getvalue()


def assert_portrait(answer: httpx.Response, portrait: Portrait) -> None:
    assert answer.status_code == 200, answer.text
    [face] = answer.json()["faces"]
    assert iou(face["box"], portrait.box) > 0.8
    for name, expected in zip(LANDMARKS, portrait.points, strict=False):
        assert np.hypot(*np.subtract(face["landmarks"][name], expected)) < 4, name


@pytest.mark.parametrize("portrait", [ASTRONAUT, HOPPER], ids=["astronaut", "hopper"])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_every_format(post: Post, portrait: Portrait, image_format: str) -> None:
    picture = Image.open(portrait.path).convert("RGB")
    assert_portrait(post(content=encoded(picture, image_format)), portrait)


@pytest.mark.parametrize("portrait", [ASTRONAUT, HOPPER], ids=["astronaut", "hopper"])
@pytest.mark.parametrize("orientation", _STORED)
def test_every_orientation(post: Post, portrait: Portrait, orientation: int) -> None:
    picture = Image.open(portrait.path).convert("RGB")
    size = picture.size
    stored = _STORED[orientation]
    if stored is not None:
        picture = picture.transpose(stored)
    exif = Image.Exif()
    exif[0x0112] = orientation
    answer = post(content=encoded(picture, "JPEG", exif=exif, quality=92))
    assert_portrait(answer, portrait)
    image = answer.json()["image"]
    assert (image["width"], image["height"]) == size


@pytest.mark.parametrize("path", NO_FACES, ids=lambda path: path.stem)
def test_nobody(post: Post, path: Path) -> None:
    answer = post(content=path.read_bytes())
    assert answer.status_code == 200
    assert answer.json()["faces"] == []


@pytest.mark.parametrize(("rows", "columns", "cell", "canvas"), [(3, 4, 160, "auto"), (6, 8, 160, "960x1280")])
def test_many_small_faces(post: Post, rows: int, columns: int, cell: int, canvas: str) -> None:
    """Portraits shrunk into a grid: where each face lies is known by construction."""
    page = Image.new("RGB", (columns * cell, rows * cell), (96, 110, 120))
    expected = []
    for index in range(rows * columns):
        portrait = (ASTRONAUT, HOPPER)[index % 2]
        picture = Image.open(portrait.path).convert("RGB")
        scale = cell / max(picture.size)
        left, top = index % columns * cell, index // columns * cell
        page.paste(picture.resize((round(picture.width * scale), round(picture.height * scale))), (left, top))
        expected.append(np.add(np.multiply(portrait.box, scale), (left, top, left, top)))
    answer = post(content=encoded(page, "PNG"), headers={"X-Face-Canvas": canvas})
    found = [face["box"] for face in answer.json()["faces"]]
    assert len(found) == len(expected)
    assert all(max(iou(box, face) for face in found) > 0.6 for box in expected)
