from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from handler.config import Settings
from handler.geometry import (
    Canvas,
    Placement,
    Reduced,
    choose_canvas,
    letterbox,
    place,
    place_native,
    shrink_float,
)
from tests.conftest import RELEASED

_side = st.integers(1, 4000)
CANVASES = Settings("mogface", "", RELEASED).canvases


def _round_trip(placement: Placement) -> None:
    height, width = placement.source
    corners = np.array([[0, 0, width - 1, height - 1], [width / 3, height / 7, width / 2, height / 1.1]], np.float32)
    back = placement.to_source(placement.to_canvas(corners))
    assert np.abs(back - corners).max() < 0.5
    assert placement.content[0] <= placement.canvas.height
    assert placement.content[1] <= placement.canvas.width


@settings(max_examples=500, deadline=None)
@given(_side, _side)
def test_points_come_back(height: int, width: int) -> None:
    _round_trip(place(height, width, choose_canvas(height, width, CANVASES, 640)))
    _round_trip(place_native(height, width))
    _round_trip(place_native(height, width, 32))


@settings(max_examples=500, deadline=None)
@given(_side, _side)
def test_no_other_canvas_keeps_more(height: int, width: int) -> None:
    chosen = choose_canvas(height, width, CANVASES, 640)
    scale = place(height, width, chosen).scale
    assert max(chosen) <= 640
    for canvas in CANVASES:
        if max(canvas) <= 640:
            # Scales are known to a rounded pixel of the longer side.
            assert place(height, width, canvas).scale <= scale + 0.5 / max(height, width)
    assert scale <= 1 + 1e-9


def test_a_mark_lies_where_the_placement_says() -> None:
    image = np.zeros((300, 200, 3), np.uint8)
    image[200:210, 100:110] = 255
    placement = place(300, 200, CANVASES[0]._replace(height=96, width=128))
    array = letterbox(image, placement, (9, 8, 7))
    assert array[-1, -1].tolist() == [9, 8, 7]
    rows, columns = np.nonzero(array[:, : placement.content[1], 0] > 127)
    centre = np.array([[columns.mean(), rows.mean()]], np.float32)
    assert np.abs(placement.to_source(centre) - [104.5, 204.5]).max() < 0.5 / placement.scale


@pytest.mark.parametrize("size", [(300, 200), (64, 96), (50, 96), (40, 30)])
def test_pillows_picture_counts_as_its_array(size: tuple[int, int]) -> None:
    """To the last bit, whether it shrinks, fits or is padded."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    placement = place(*size, Canvas(64, 96))
    np.testing.assert_array_equal(
        letterbox(Image.fromarray(image), placement, (9, 8, 7)), letterbox(image, placement, (9, 8, 7))
    )


def test_a_reduced_picture_is_shown_by_its_box() -> None:
    """300 px stand in 38 of which they take 37.5: the last half of a pixel is not shown."""
    reduced = np.zeros((38, 38, 3), np.uint8)
    reduced[:, :10] = 100
    reduced[-1] = reduced[:, -1] = 255
    placement = place(300, 300, Canvas(32, 32))
    array = letterbox(reduced, placement, (9, 8, 7), Reduced((300, 300), (0, 0, 37.5, 37.5)))
    expected = Image.fromarray(reduced).resize((32, 32), Image.Resampling.BILINEAR, (0, 0, 37.5, 37.5))
    np.testing.assert_array_equal(array, np.asarray(expected))
    assert not np.array_equal(array, letterbox(reduced, placement, (9, 8, 7)))


def test_shrinking_is_opencv_s() -> None:
    import cv2

    rng = np.random.default_rng(0)
    for height, width in ((1504, 40), (40, 1600), (1501, 33), (7, 3000)):
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        factor = 1000 / max(height, width)
        expected = cv2.resize(image.astype(np.float32), (0, 0), fx=factor, fy=factor)
        got = shrink_float(image, place_native(height, width))
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() < 1e-3
