"""Photographs with a clear licence, out of development packages, and what is on them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


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
