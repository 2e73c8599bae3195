from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest

from load_tests.peers.compare import disagreement, faces


def _body(*rows: tuple[float, ...]) -> str:
    return json.dumps({"faces": [{"box": row[:4], "score": row[4]} for row in rows]})


def test_boxes_are_clipped_and_those_outside_left_out() -> None:
    found = faces(_body((-5, 10, 700, 20, 0.9), (650, 0, 660, 5, 0.9), (-9, -9, -1, -1, 0.9)), 640, 480)
    assert found.tolist() == [[0, 10, 639, 20, pytest.approx(0.9)]]
    assert faces(_body(), 640, 480).shape == (0, 5)


A = np.array([[0, 0, 99, 99, 0.9], [200, 200, 299, 299, 0.8]], np.float32)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (A, 0),
        (A[::-1], 0),
        (A + np.array([0.4, 0.4, 0.4, 0.4, 0.004]), 0),
        # One face of three is alone.
        (A[:1], 1 / 3),
        # Each of both sides is.
        (A + np.array([0, 0, 0, 0, 0.05]), 1),
        (A + np.array([20, 0, 20, 0, 0]), 1),
        (A[:0], 1),
    ],
)
def test_the_share_that_the_other_lacks(other: npt.NDArray[np.float64], expected: float) -> None:
    assert disagreement(A, other.astype(np.float32)) == pytest.approx(expected)
    assert disagreement(other.astype(np.float32), A) == pytest.approx(expected)


def test_no_face_is_no_face() -> None:
    assert disagreement(A[:0], A[:0]) == 0
