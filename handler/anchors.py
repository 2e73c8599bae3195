"""MogFace's anchors and the boxes that its offsets make of them.

Constants are those of the released detector (ModelScope's ``MogPriorBox`` with ``scale_list=[0.68]``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from handler.geometry import Canvas

#: Canvas px between the cells of each level, finest first.
STRIDES = (4, 8, 16, 32, 64, 128)
#: Side of each level's square anchors, canvas px.
SIZES = tuple(0.68 * size for size in (16, 32, 64, 128, 256, 512))


@dataclass(frozen=True)
class Grid:
    """The anchors of one canvas, level after level, each row by row.

    Attributes:
        anchors: [A, 4] float32, centre x and y, width and height, canvas px. Not to be written to.
        levels: where each level's anchors lie among them.
    """

    anchors: torch.Tensor
    levels: tuple[slice, ...]


@lru_cache(maxsize=16)
def grid(canvas: Canvas, device: torch.device) -> Grid:
    """The grid of a canvas, kept for the next call."""
    parts = [_level(canvas, stride, size) for stride, size in zip(STRIDES, SIZES, strict=True)]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    levels = tuple(slice(end - len(part), end) for end, part in zip(ends, parts, strict=True))
    return Grid(torch.from_numpy(np.concatenate(parts)).to(device), levels)


def _level(canvas: Canvas, stride: int, size: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    # Halving and rounding up, again and again, comes to one division rounded up.
    rows, columns = (-(-side // stride) for side in canvas)
    y, x = np.meshgrid((np.arange(rows) + 0.5) * stride, (np.arange(columns) + 0.5) * stride, indexing="ij")
    centres = np.stack([x.ravel(), y.ravel()], axis=1)
    # By way of float32 corners, as the released detector does: its anchors differ from the plain
    # ones in the last bits.
    low = (centres - (size - 1) / 2).astype(np.float32)
    high = (centres + (size - 1) / 2).astype(np.float32)
    return np.concatenate([(low + high) / 2, high - low + 1], axis=1)


def decode(offsets: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Offsets and their anchors to boxes.

    The centre is the anchor's plus offset times size, the size is the anchor's times exp(offset), and
    corners are inclusive pixel numbers: a box of width w goes from x to x + w - 1.

    Args:
        offsets: [..., 4] float32: x, y, and the logarithms of width and height.
        anchors: [..., 4] float32, of a :class:`Grid`.

    Returns:
        [..., 4] float32, x1 y1 x2 y2, canvas px, not clipped.
    """
    centres = anchors[..., :2] + offsets[..., :2] * anchors[..., 2:]
    sizes = anchors[..., 2:] * torch.exp(offsets[..., 2:])
    low = centres - (sizes - 1) / 2
    return torch.cat([low, sizes + (low - 1)], dim=-1)
