from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from handler.geometry import Float32
from handler.nms import nms, rank

# Whole numbers: every product and quotient compared below is then the same in any order of evaluation.
_box = st.tuples(*[st.integers(0, 30)] * 2, *[st.integers(0, 20)] * 2, st.integers(0, 8))


def literal(boxes: Float32, scores: Float32, threshold: float) -> list[int]:
    """Box by box, pair by pair."""
    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i)):
        if all(_overlap(boxes[i], boxes[k]) <= np.float32(threshold) for k in kept):
            kept.append(i)
    return kept


def _overlap(a: Float32, b: Float32) -> np.float32:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + 1)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + 1)
    shared = width * height
    union = (a[2] - a[0] + 1) * (a[3] - a[1] + 1) + (b[2] - b[0] + 1) * (b[3] - b[1] + 1) - shared
    return np.float32(shared / union)


@settings(max_examples=300, deadline=None)
@given(st.lists(_box, max_size=30), st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.4, 0.5, 0.9, 1.0]))
def test_is_greedy_suppression(rows: list[tuple[int, ...]], threshold: float) -> None:
    array = np.array(rows, np.float32).reshape(-1, 5)
    boxes = np.hstack([array[:, :2], array[:, :2] + array[:, 2:4]])
    scores = array[:, 4] / np.float32(8)
    assert nms(boxes, scores, threshold).tolist() == literal(boxes, scores, threshold)


def test_equal_scores_keep_their_order() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.9], np.float32)
    assert rank(scores).tolist() == [1, 3, 0, 2]
    assert rank(scores, 3).tolist() == [1, 3, 0]
    same = np.array([[0, 0, 9, 9]] * 4, np.float32)
    assert nms(same, scores, 0.4).tolist() == [1]
