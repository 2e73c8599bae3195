"""Whether two systems found the same faces: before any of their times is looked at."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
#: The same face: boxes that overlap by so much, scores no further apart.
_IOU, _SCORE = 0.95, 0.01


def faces(body: str, width: int, height: int) -> Float32:
    """[N, 5] float32: x1 y1 x2 y2 and score of an answer.

    Clipped to the image, and without boxes wholly outside it: the released code leaves both as they are.

    Args:
        body: JSON of this project's shape.
        width: of the photograph, px.
        height: of the photograph, px.
    """
    rows = [[*face["box"], face["score"]] for face in json.loads(body)["faces"]]
    found: Float32 = np.array(rows, np.float32).reshape(-1, 5)
    x1, y1, x2, y2 = found[:, :4].T
    found = found[(x2 >= 0) & (y2 >= 0) & (x1 <= width - 1) & (y1 <= height - 1)]
    found[:, :4] = np.clip(found[:, :4], 0, np.array([width - 1, height - 1] * 2, np.float32))
    return found


def disagreement(a: Float32, b: Float32) -> float:
    """The share of faces of either that the other does not have, 0..1.

    Args:
        a: [N, 5], as :func:`faces`.
        b: [M, 5].
    """
    if not len(a) or not len(b):
        return float(len(a) != len(b))
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:4], b[None, :, 2:4])
    inside = np.prod(np.maximum(high - low + 1, 0), axis=2)
    areas = [np.prod(each[:, 2:4] - each[:, :2] + 1, axis=1) for each in (a, b)]
    same = inside / (areas[0][:, None] + areas[1][None, :] - inside) >= _IOU
    same &= np.abs(a[:, None, 4] - b[None, :, 4]) <= _SCORE
    alone = (~same.any(axis=1)).sum() + (~same.any(axis=0)).sum()
    return float(alone / (len(a) + len(b)))
