"""Greedy non-maximum suppression."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from handler.geometry import Float32


def rank(scores: Float32, limit: int | None = None) -> npt.NDArray[np.int64]:
    """Indices by falling score; among equals the lower index comes first. At most ``limit`` of them."""
    return np.argsort(-scores, kind="stable")[:limit]


def nms(boxes: Float32, scores: Float32, threshold: float) -> npt.NDArray[np.int64]:
    """Indices of the boxes that stay, by falling score.

    A box goes when its intersection over union with a stronger one that stayed is **over** the
    threshold. Corners are inclusive pixel numbers, so sides are x2 - x1 + 1, as in the detectors'
    own code. Equal scores: the lower index wins. Arithmetic in float32.

    Args:
        boxes: [N, 4] float32, x1 y1 x2 y2, in any one frame.
        scores: [N] float32.
        threshold: 0..1.

    Returns:
        [M] int64, M <= N.
    """
    one = np.float32(1)
    order = rank(scores)
    x1, y1, x2, y2 = np.ascontiguousarray(boxes[order].T)
    areas = (x2 - x1 + one) * (y2 - y1 + one)
    alive = np.ones(len(order), np.bool_)
    keep = []
    for i in range(len(order)):
        if not alive[i]:
            continue
        keep.append(i)
        rest = np.flatnonzero(alive[i + 1 :]) + i + 1
        width = np.minimum(x2[i], x2[rest]) - np.maximum(x1[i], x1[rest]) + one
        height = np.minimum(y2[i], y2[rest]) - np.maximum(y1[i], y1[rest]) + one
        overlap = np.maximum(width, 0) * np.maximum(height, 0)
        union = areas[i] + areas[rest] - overlap
        alive[rest[overlap / union > np.float32(threshold)]] = False
    return order[keep]
