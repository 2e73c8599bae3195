"""Canvases, letterbox and its inverse.

Frames: *source* is the upright image, *canvas* the array the network sees. Coordinates are pixel
numbers, x to the right and y down. The image lies in the canvas's top left corner, so that one
factor an axis takes source to canvas and back: ``source = canvas / scale`` as ModelScope's detector
does it (``dets / ss``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from handler.errors import ConfigError

Uint8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

NATIVE = "native"
#: ModelScope's detector shrinks an image with a side over 1500 px to a long side of 1000.
NATIVE_LIMIT = 1500
NATIVE_TARGET = 1000


class Canvas(NamedTuple):
    """A size the network runs at, in pixels; written ``480x640``: height x width."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    @classmethod
    def parse(cls, text: str) -> Canvas:
        """``480x640`` -> Canvas(480, 640).

        Raises:
            ConfigError: no such form, or a side that is not a positive multiple of 32.
        """
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.strip())
        if not match:
            raise ConfigError(f"canvas {text!r}: expected HEIGHTxWIDTH, such as 480x640")
        canvas = cls(int(match[1]), int(match[2]))
        if any(side < 32 or side % 32 for side in canvas):
            raise ConfigError(f"canvas {text!r}: both sides must be positive multiples of 32")
        return canvas


@dataclass(frozen=True)
class Placement:
    """How one image lies on its canvas.

    Attributes:
        source: (height, width) of the upright image.
        content: (height, width) of the image on the canvas, at its top left.
        canvas: (height, width) of the whole array.
        scale_x: canvas pixels a source pixel, horizontally.
        scale_y: the same, vertically; differs from scale_x by the rounding of ``content`` only.
    """

    source: tuple[int, int]
    content: tuple[int, int]
    canvas: Canvas
    scale_x: float
    scale_y: float

    @property
    def scale(self) -> float:
        """Canvas pixels a source pixel, along the longer side: the one least touched by rounding."""
        height, width = self.source
        return self.scale_x if width >= height else self.scale_y

    def to_source(self, points: Float32) -> Float32:
        """Canvas points [..., 2k] (x, y alternating) -> source points, float32, not clipped."""
        return self._scaled(points, 1.0 / self.scale_x, 1.0 / self.scale_y)

    def to_canvas(self, points: Float32) -> Float32:
        """Source points [..., 2k] (x, y alternating) -> canvas points, float32."""
        return self._scaled(points, self.scale_x, self.scale_y)

    @staticmethod
    def _scaled(points: Float32, factor_x: float, factor_y: float) -> Float32:
        scaled = np.array(points, dtype=np.float64)
        scaled[..., 0::2] *= factor_x
        scaled[..., 1::2] *= factor_y
        return scaled.astype(np.float32)


def size_of(image: Uint8 | Image.Image) -> tuple[int, int]:
    """(height, width) of an array or a picture, px."""
    return (image.height, image.width) if isinstance(image, Image.Image) else (image.shape[0], image.shape[1])


def choose_canvas(height: int, width: int, canvases: Sequence[Canvas], long_side: int) -> Canvas:
    """The canvas for a height x width image among those whose sides are at most ``long_side``.

    It is the one that keeps most scale, then the one of least area, then the first in the list.
    """
    allowed = [canvas for canvas in canvases if max(canvas) <= long_side]
    return min(allowed, key=lambda c: (-_fit(height, width, c), c.height * c.width))


def _fit(height: int, width: int, canvas: Canvas) -> float:
    """The scale that fits the image into the canvas; never over 1: nothing is enlarged."""
    return min(1.0, canvas.height / height, canvas.width / width)


def place(height: int, width: int, canvas: Canvas) -> Placement:
    """Where a height x width image lies on ``canvas``."""
    scale = _fit(height, width, canvas)
    content = (max(1, round(height * scale)), max(1, round(width * scale)))
    return Placement((height, width), content, canvas, content[1] / width, content[0] / height)


def place_native(height: int, width: int, multiple: int = 1) -> Placement:
    """ModelScope's own rule: the image's own size; with a side over 1500 px, a long side of 1000.

    Args:
        height: of the upright image, px.
        width: of the upright image, px.
        multiple: what the network needs the array's sides to be a multiple of; the rest is padded.
    """
    longest = max(height, width)
    scale = NATIVE_TARGET / longest if longest > NATIVE_LIMIT else 1.0
    # round() is round-half-even, as the cvRound with which OpenCV finds the size.
    content = (max(1, round(height * scale)), max(1, round(width * scale)))
    canvas = Canvas(*(-(-side // multiple) * multiple for side in content))
    return Placement((height, width), content, canvas, scale, scale)


@dataclass(frozen=True)
class Reduced:
    """How a picture that was decoded at a lower resolution shows the one it stands for.

    Attributes:
        source: (height, width) of the full, upright image.
        box: (left, top, right, bottom) that the full image takes in the reduced one, in its px, counted from pixel
            edges. It is less than all of it where a side was rounded up.
    """

    source: tuple[int, int]
    box: tuple[float, float, float, float]


def letterbox(
    image: Uint8 | Image.Image, placement: Placement, fill: tuple[int, int, int], reduced: Reduced | None = None
) -> Uint8:
    """The image on its canvas.

    Args:
        image: [H, W, 3] uint8 RGB, upright, or the same as Pillow's picture, which saves two copies where it shrinks.
        placement: of this image's size.
        fill: RGB of the pad at the right and the bottom.
        reduced: where ``image`` stands for a larger one, whose size the placement is of.

    Returns:
        [canvas height, canvas width, 3] uint8; ``image`` itself where nothing has to change.
    """
    height, width = placement.content
    if reduced or size_of(image) != placement.content:
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        image = picture.resize((width, height), Image.Resampling.BILINEAR, reduced.box if reduced else None)
    image = np.asarray(image)
    if placement.content == placement.canvas:
        return image
    array = np.empty((*placement.canvas, 3), np.uint8)
    array[:height, :width] = image
    array[height:] = fill
    array[:height, width:] = fill
    return array


def shrink_float(image: Uint8, placement: Placement) -> Float32:
    """Bilinear shrinking in float32 without antialiasing, as ``cv2.resize(img, (0, 0), fx, fy)`` on floats.

    ModelScope's detector feeds the network unrounded values when it shrinks, so parity needs them.

    Args:
        image: [H, W, 3] uint8 RGB.
        placement: from :func:`place_native`.

    Returns:
        [content height, content width, 3] float32, 0..255.
    """
    rows = _taps(placement.content[0], image.shape[0], placement.scale_y)
    columns = _taps(placement.content[1], image.shape[1], placement.scale_x)
    source = image.astype(np.float32)
    low, high, weight = columns
    across = source[:, low] * (1 - weight)[None, :, None] + source[:, high] * weight[None, :, None]
    low, high, weight = rows
    shrunk = across[low] * (1 - weight)[:, None, None] + across[high] * weight[:, None, None]
    return shrunk.astype(np.float32, copy=False)


def _taps(target: int, source: int, scale: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Float32]:
    """Both neighbours and the second one's weight for each target pixel, at pixel centres."""
    position = (np.arange(target) + 0.5) / scale - 0.5
    low = np.floor(position).astype(np.int64)
    weight = (position - low).astype(np.float32)
    outside = (low < 0) | (low >= source - 1)
    weight[outside] = 0
    low = np.clip(low, 0, source - 1)
    return low, np.minimum(low + 1, source - 1), weight
