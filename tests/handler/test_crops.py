from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageDraw

from handler.crops import SIZE, TEMPLATE, align, similarity
from handler.geometry import Float32, Uint8

Float64 = npt.NDArray[np.float64]

DOTS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255)]
points = arrays(np.float64, st.tuples(st.integers(2, 8), st.just(2)), elements=st.floats(-1000, 1000))


def least_squares(source: Float64, target: Float64) -> Float64:
    """The same fit by its normal form: x' = ax - by + s, y' = bx + ay + t."""
    rows, wanted = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        wanted += [u, v]
    (a, b, s, t), *_ = np.linalg.lstsq(np.array(rows), np.array(wanted))
    return np.array([[a, -b, s], [b, a, t]])


def residual(matrix: Float64, source: Float64, target: Float64) -> float:
    return float(np.sum((source @ matrix[:, :2].T + matrix[:, 2] - target) ** 2))


@given(st.data())
def test_similarity_is_the_least_squares_fit(data: st.DataObject) -> None:
    source = data.draw(points)
    target = data.draw(arrays(np.float64, source.shape, elements=st.floats(-1000, 1000)))
    # Points all but in one place leave the turn open: rounding decides then.
    if np.ptp(source, axis=0).max() < 1e-3:
        return
    found, expected = similarity(source, target), least_squares(source, target)
    np.testing.assert_allclose(
        residual(found, source, target), residual(expected, source, target), rtol=1e-6, atol=1e-3
    )
    np.testing.assert_allclose(found[0, 0], found[1, 1])
    np.testing.assert_allclose(found[0, 1], -found[1, 0])


@given(
    st.floats(0.01, 100),
    st.floats(-np.pi, np.pi),
    st.tuples(st.floats(-1000, 1000), st.floats(-1000, 1000)),
)
def test_similarity_finds_the_turn_scale_and_shift_that_were_made(
    scale: float, angle: float, shift: tuple[float, float]
) -> None:
    made = np.array(
        [
            [scale * np.cos(angle), -scale * np.sin(angle), shift[0]],
            [scale * np.sin(angle), scale * np.cos(angle), shift[1]],
        ]
    )
    target = TEMPLATE @ made[:, :2].T + made[:, 2]
    np.testing.assert_allclose(similarity(TEMPLATE, target), made, atol=1e-6 * max(1, scale))


def test_similarity_does_not_reflect() -> None:
    mirrored = TEMPLATE * [-1, 1]
    assert np.linalg.det(similarity(TEMPLATE, mirrored)[:, :2]) > 0


def test_points_in_one_place_are_shifted_alone() -> None:
    np.testing.assert_allclose(similarity(np.full((5, 2), 3.0), TEMPLATE)[:, :2], np.eye(2))


def face(scale: float, degrees: float, centre: tuple[float, float], size: tuple[int, int]) -> tuple[Uint8, Float32]:
    """A picture with five dots where the template's points come to lie, and the points."""
    angle = np.deg2rad(degrees)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    landmarks = (TEMPLATE - TEMPLATE.mean(axis=0)) @ turn.T + centre
    # Drawn eight times as large: Pillow's ellipses have whole corners.
    radius, fine = max(2.0, 3 * scale), 8 if max(size) < 1000 else 2
    picture = Image.new("RGB", (size[0] * fine, size[1] * fine), (40, 40, 40))
    draw = ImageDraw.Draw(picture)
    for (x, y), colour in zip((landmarks + 0.5) * fine, DOTS, strict=True):
        draw.ellipse((x - radius * fine, y - radius * fine, x + radius * fine - 1, y + radius * fine - 1), fill=colour)
    return np.asarray(picture.resize(size, Image.Resampling.BOX)), landmarks.astype(np.float32)


def seen(crop: Image.Image) -> Float64:
    """Where each dot's middle lies in a crop, by its colour."""
    array = np.asarray(crop).astype(float)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    centres = []
    for colour in DOTS:
        weight = np.clip(1 - np.abs(array - colour).sum(axis=2) / 150, 0, 1)
        centres.append([np.average(columns, weights=weight), np.average(rows, weights=weight)])
    return np.array(centres)


@pytest.mark.parametrize(
    ("scale", "degrees", "centre", "size"),
    [
        (1.0, 0, (56.0, 73.0), (112, 146)),
        (1.0, 37, (100.25, 90.75), (200, 180)),
        (0.5, -60, (60.0, 50.0), (120, 100)),
        (1.7, 90, (150.0, 160.0), (300, 320)),
        (2.0, 180, (200.0, 200.0), (400, 400)),
        (3.3, 0, (300.5, 250.0), (600, 500)),
        (7.9, 25, (600.0, 640.0), (1200, 1300)),
        (15.0, -140, (1200.0, 1100.0), (2400, 2200)),
    ],
)
def test_landmarks_come_to_lie_on_the_template(
    scale: float, degrees: float, centre: tuple[float, float], size: tuple[int, int]
) -> None:
    image, landmarks = face(scale, degrees, centre, size)
    crop = align(image, landmarks)
    assert crop.size == (SIZE, SIZE)
    assert crop.mode == "RGB"
    np.testing.assert_allclose(seen(crop), TEMPLATE, atol=0.35)


def test_a_face_that_lies_on_the_template_is_taken_pixel_by_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (SIZE + 30, SIZE + 20, 3), np.uint8)
    crop = np.asarray(align(image, (TEMPLATE + np.array([7, 11])).astype(np.float32)))
    # Landmarks are float32, so sampling points are off by millionths.
    assert np.abs(crop.astype(int) - image[11 : 11 + SIZE, 7 : 7 + SIZE]).max() <= 1


def test_a_large_face_is_averaged_not_sampled() -> None:
    # Stripes of one pixel are grey on average; sampling would show stripes.
    image = np.zeros((1120, 1120, 3), np.uint8)
    image[:, ::2] = 255
    crop = np.asarray(align(image, (TEMPLATE * 10).astype(np.float32))).astype(int)
    assert np.abs(crop[2:-2, 2:-2] - 127).max() <= 3


@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_a_face_cut_by_the_edge_is_black_outside(scale: float) -> None:
    image = np.full((int(112 * scale), int(56 * scale), 3), 200, np.uint8)
    crop = np.asarray(align(image, (TEMPLATE * scale).astype(np.float32)))
    assert (crop[:, 58:] == 0).all()
    assert np.abs(crop[:, :54].astype(int) - 200).max() <= 1


@pytest.mark.parametrize(
    "landmarks",
    [np.zeros((5, 2)), np.full((5, 2), 1e6), TEMPLATE * 1000, TEMPLATE * 1e-6, TEMPLATE * [-1, 1], -TEMPLATE - 500],
    ids=["one point", "far away", "immense", "tiny", "mirrored", "outside"],
)
def test_points_that_are_no_face_give_a_crop_all_the_same(landmarks: Float64) -> None:
    image = np.full((50, 60, 3), 9, np.uint8)
    assert align(image, landmarks.astype(np.float32)).size == (SIZE, SIZE)
