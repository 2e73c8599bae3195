"""MogFace as served against ModelScope's own detector on the same weights."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from handler.anchors import SIZES
from handler.detectors import Result
from handler.detectors.mogface import MogFace
from handler.geometry import Float32, Placement, Uint8, place_native
from handler.options import Options
from tests.conftest import RELEASED
from tests.oracle import Oracle, Picture, to_source

NATIVE_SIZES = [
    (96, 128),
    (128, 96),
    (75, 98),
    (101, 67),
    (33, 200),
    (200, 31),
    (1, 1),
    (1, 90),
    (64, 64),
    (1504, 40),
    (40, 1600),
]


def answer(detector: MogFace, image: Uint8, options: Options) -> Result:
    result = detector.detect([detector.prepare(image, options)], time.monotonic() + 60)[0]
    assert isinstance(result, Result)
    return result


def assert_same(result: Result, expected: Float32) -> None:
    faces = result.detections
    assert len(faces) == len(expected)
    np.testing.assert_allclose(faces.boxes, expected[:, :4], atol=0.01, rtol=0)
    np.testing.assert_allclose(faces.scores, expected[:, 4], atol=1e-5, rtol=0)


def test_native_gives_the_released_boxes(mogface: MogFace, oracle: Oracle, picture: Picture) -> None:
    options = dataclasses.replace(RELEASED, canvas="native")
    counts = {}
    for number, (height, width) in enumerate(NATIVE_SIZES):
        image = picture(height, width, number)
        expected = to_source(oracle.detect(image), _unscaled(height, width))
        assert_same(answer(mogface, image, options), expected)
        counts[height, width] = len(expected)
    # What was compared is worth comparing: faces nearly everywhere, both shrunk sizes among them.
    assert sum(counts.values()) >= 150, counts
    assert sum(count >= 2 for count in counts.values()) >= 8, counts
    assert counts[1504, 40] >= 2, counts
    assert counts[40, 1600] >= 2, counts


def _unscaled(height: int, width: int) -> Placement:
    """ModelScope's detector has brought its boxes to the source already: only the clipping is left."""
    return dataclasses.replace(place_native(height, width), scale_x=1.0, scale_y=1.0)


@pytest.mark.parametrize("size", [(300, 413), (260, 200), (128, 128), (70, 50), (500, 480)])
def test_a_canvas_gives_the_released_boxes_mapped_back(
    mogface: MogFace, oracle: Oracle, picture: Picture, size: tuple[int, int]
) -> None:
    image = picture(*size, seed=3)
    prepared = mogface.prepare(image, RELEASED)
    assert max(prepared.array.shape) == 128
    expected = to_source(oracle.detect(prepared.array), prepared.placement)
    assert len(expected) >= 8
    assert_same(answer(mogface, image, RELEASED), expected)


def test_the_comparison_sees_a_shift_of_the_pad(mogface: MogFace, oracle: Oracle, picture: Picture) -> None:
    """One grey level in the pad is enough to miss: the tolerances are tight."""
    image = picture(300, 200)
    prepared = mogface.prepare(image, RELEASED)
    array = prepared.array.copy()
    array[:, prepared.placement.content[1] :] += 1
    expected = to_source(oracle.detect(array), prepared.placement)
    with pytest.raises(AssertionError):
        assert_same(answer(mogface, image, RELEASED), expected)


@pytest.mark.parametrize(("minimum", "silent"), [(20.0, ()), (50.0, (0,)), (100.0, (0, 1)), (160.0, (0, 1, 2))])
def test_min_face_size_restricts_the_levels(
    mogface: MogFace, oracle: Oracle, picture: Picture, minimum: float, silent: tuple[int, ...]
) -> None:
    image = picture(250, 180, seed=1)
    options = dataclasses.replace(RELEASED, score_threshold=0.5, min_face_size=minimum)
    prepared = mogface.prepare(image, options)
    scale = prepared.placement.scale
    assert silent == tuple(level for level, size in enumerate(SIZES) if size * 1.7 < minimum * scale)
    expected = to_source(oracle.detect_without(prepared.array, silent, 0.5, 0.4), prepared.placement)
    x1, y1, x2, y2 = expected[:, :4].T
    expected = expected[np.sqrt((x2 - x1 + 1) * (y2 - y1 + 1)) >= minimum]
    assert len(expected) >= 2
    result = answer(mogface, image, options)
    assert_same(result, expected)
    assert not set(result.levels) & {4 * 2**level for level in silent}
