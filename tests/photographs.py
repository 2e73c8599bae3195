"""Photographs with a clear licence, out of development packages, and what is on them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@dataclass(frozen=True)
class Portrait:
    """A photograph with one face.

    Attributes:
        path: of the file.
        box: x1 y1 x2 y2, px.
        points: right eye, left eye, nose: x y, px.
    """

    path: Path
    box: tuple[float, float, float, float]
    points: tuple[tuple[float, float], ...]


#: NASA, public domain; 512x512.
ASTRONAUT = Portrait(
    _package("skimage") / "data" / "astronaut.png", (181, 58, 270, 178), ((203, 102), (247, 104), (223, 125))
)
#: US Navy, public domain; 512x600.
HOPPER = Portrait(
    _package("matplotlib") / "mpl-data" / "sample_data" / "grace_hopper.jpg",
    (175, 131, 357, 336),
    ((221, 200), (304, 192), (266, 237)),
)
#: CC0 or public domain; nobody on them.
NO_FACES = tuple(_package("skimage") / "data" / name for name in ("coffee.png", "chelsea.png", "rocket.jpg"))


def iou(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Intersection over union of two boxes x1 y1 x2 y2."""
    first, second = np.asarray(a, float), np.asarray(b, float)
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    overlap = float(np.prod(np.maximum(sides, 0)))
    return overlap / float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]) - overlap)


def compose(seed: int, height: int = 256, width: int = 256) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """A picture with some faces whose places are known: both portraits at several sizes on a photograph without.

    Args:
        seed: the same for the same picture.
        height: of the picture, px, 128 or more.
        width: likewise.

    Returns:
        [height, width, 3] uint8 RGB, and its faces [N, 4] float32, x1 y1 x2 y2, px; 1 <= N <= 9.
    """
    rng = np.random.default_rng(seed)
    with Image.open(NO_FACES[seed % len(NO_FACES)]) as file:
        picture = file.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    boxes: list[npt.NDArray[np.float64]] = []
    rows, columns = max(1, height // 128), max(1, width // 128)
    for row, column in np.ndindex(min(3, rows), min(3, columns)):
        if boxes and rng.random() < 0.3:
            continue
        portrait = (ASTRONAUT, HOPPER)[int(rng.integers(2))]
        scale = rng.uniform(40, 75) / (portrait.box[3] - portrait.box[1])
        x1, y1, x2, y2 = portrait.box
        # The head and its surroundings: half the face's size on every side.
        across, down = (x2 - x1) / 2, (y2 - y1) / 2
        part = (round(x1 - across), round(max(0.0, y1 - down)), round(x2 + across), round(y2 + down))
        with Image.open(portrait.path) as file:
            head = file.convert("RGB").crop(part)
        size = (round(head.width * scale), round(head.height * scale))
        size = (min(size[0], 128), min(size[1], 128))
        left = 128 * column + int(rng.integers(128 - size[0] + 1))
        top = 128 * row + int(rng.integers(128 - size[1] + 1))
        picture.paste(head.resize(size, Image.Resampling.BILINEAR), (left, top))
        factor = np.array([size[0] / head.width, size[1] / head.height] * 2)
        boxes.append((np.array(portrait.box) - [part[0], part[1]] * 2) * factor + [left, top] * 2)
    return np.asarray(picture, np.uint8), np.array(boxes, np.float32)
