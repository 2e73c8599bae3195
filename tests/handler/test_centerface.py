from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handler.config import Settings
from handler.detectors.base import Result
from handler.detectors.centerface import CenterFace, decode
from handler.engines import Engine, TensorSpec
from handler.errors import EngineError
from handler.geometry import Float32, Uint8
from tests.handler.fake import CPU


def literally(
    heatmap: Float32, size: Float32, offset: Float32, points: Float32, threshold: float
) -> list[tuple[float, list[float], list[list[float]]]]:
    """Score, box and points of every cell over the threshold, by the network's definition, cell by cell."""
    found = []
    for row in range(heatmap.shape[0]):
        for column in range(heatmap.shape[1]):
            if not heatmap[row, column] > np.float32(threshold):
                continue
            height = math.exp(size[0, row, column]) * 4
            width = math.exp(size[1, row, column]) * 4
            centre_y = (row + offset[0, row, column] + 0.5) * 4
            centre_x = (column + offset[1, row, column] + 0.5) * 4
            left, top = centre_x - width / 2, centre_y - height / 2
            landmarks = [
                [left + points[2 * k + 1, row, column] * width, top + points[2 * k, row, column] * height]
                for k in range(5)
            ]
            found.append((float(heatmap[row, column]), [left, top, left + width, top + height], landmarks))
    return sorted(found, key=lambda face: -face[0])


def maps(seed: int, height: int, width: int) -> tuple[Float32, Float32, Float32, Float32]:
    rng = np.random.default_rng(seed)
    # Few distinct scores, so that there are ties.
    heatmap = rng.integers(0, 10, (height, width)) / 10
    size, offset = rng.normal(0, 1.5, (2, height, width)), rng.random((2, height, width))
    points = rng.random((10, height, width)) * 1.4 - 0.2
    return tuple(array.astype(np.float32) for array in (heatmap, size, offset, points))  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]))
def test_decode_is_the_definition_cell_by_cell(seed: int, height: int, width: int, threshold: float) -> None:
    arrays = maps(seed, height, width)
    expected = literally(*arrays, threshold)
    boxes, scores, points = decode(*arrays, threshold)
    assert (boxes.shape, scores.shape, points.shape) == ((len(expected), 4), (len(expected),), (len(expected), 5, 2))
    assert {boxes.dtype, scores.dtype, points.dtype} == {np.dtype(np.float32)}
    for box, score, landmarks, (wanted_score, wanted_box, wanted_points) in zip(
        boxes, scores, points, expected, strict=True
    ):
        assert score == np.float32(wanted_score)
        np.testing.assert_allclose(box, wanted_box, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(landmarks, wanted_points, rtol=1e-4, atol=1e-3)


def test_decode_keeps_the_five_thousand_strongest() -> None:
    heatmap, size, offset, points = maps(3, 80, 80)
    heatmap[:] = np.random.default_rng(1).permutation(6400).reshape(80, 80) / np.float32(6400)
    _, scores, _ = decode(heatmap, size, offset, points, 0.0)
    np.testing.assert_array_equal(scores, np.sort(heatmap.ravel())[::-1][:5000])


def test_decode_refuses_scores_that_are_none() -> None:
    heatmap, size, offset, points = maps(3, 4, 4)
    heatmap[1, 2] = np.nan
    with pytest.raises(EngineError, match="not numbers"):
        decode(heatmap, size, offset, points, 0.5)


class MapsEngine(Engine):
    """Two faces where a picture's first pixel is bright; NaN for a size where it is 255."""

    def __init__(self) -> None:
        names = {"heatmap": 1, "size": 2, "offset": 2, "points": 10}
        outputs = {n: TensorSpec(n, torch.float32, ("N", c, "h", "w")) for n, c in names.items()}
        super().__init__({"image": TensorSpec("image", torch.uint8, ("N", "H", "W", 3))}, outputs, CPU)

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        image = feeds["image"]
        count, height, width = image.shape[0], image.shape[1] // 4, image.shape[2] // 4
        result = {name: torch.zeros(count, spec.shape[1], height, width) for name, spec in self.outputs.items()}  # type: ignore[arg-type]
        result["size"][:] = math.log(8)
        for row in range(count):
            level = int(image[row, 0, 0, 0])
            result["heatmap"][row, 0, 10, 12] = 0.9 if level > 100 else 0.0
            result["heatmap"][row, 0, 10, 14] = 0.8 if level > 100 else 0.0
            result["size"][row, 0, 10, 12] = math.nan if level == 255 else math.log(8)
        return result


@pytest.fixture
def on_maps(centerface_settings: Settings) -> CenterFace:
    return CenterFace(centerface_settings, MapsEngine())


def picture(level: int) -> Uint8:
    return np.full((256, 256, 3), level, np.uint8)


@pytest.mark.parametrize(("nms_threshold", "count"), [(0.6, 1), (0.7, 2)])
def test_suppression_is_by_the_requests_own_threshold(on_maps: CenterFace, nms_threshold: float, count: int) -> None:
    # Boxes of 32 px, 8 px apart: with corners inside 25 of 41 columns are shared, 0.61.
    options = dataclasses.replace(on_maps.settings.options, nms_threshold=nms_threshold)
    (result,) = on_maps.detect([on_maps.prepare(picture(200), options)], math.inf)
    assert isinstance(result, Result)
    assert result.detections.boxes.tolist() == [[34, 26, 66, 58], [42, 26, 74, 58]][:count]
    np.testing.assert_allclose(result.detections.scores, [0.9, 0.8][:count])


def test_landmarks_come_only_where_they_are_wanted(on_maps: CenterFace) -> None:
    for wanted in (True, False):
        options = dataclasses.replace(on_maps.settings.options, landmarks=wanted)
        (result,) = on_maps.detect([on_maps.prepare(picture(200), options)], math.inf)
        assert isinstance(result, Result)
        assert result.detections.has_landmarks.tolist() == [wanted]


def test_numbers_that_are_none_cost_their_image_alone(on_maps: CenterFace) -> None:
    options = on_maps.settings.options
    outcomes = on_maps.detect([on_maps.prepare(picture(level), options) for level in (200, 255, 0)], math.inf)
    assert [type(outcome) for outcome in outcomes] == [Result, EngineError, Result]


def test_the_real_network_finds_the_face_and_its_points(centerface: CenterFace, astronaut: Uint8) -> None:
    (result,) = centerface.detect([centerface.prepare(astronaut, centerface.settings.options)], math.inf)
    assert isinstance(result, Result)
    faces = result.detections
    assert (len(faces), faces.height, faces.width) == (1, 512, 512)
    # Read off the photograph by hand: the face, then the person's right eye, left eye, nose and mouth corners.
    np.testing.assert_allclose(faces.boxes[0], [181, 58, 270, 178], atol=12)
    by_hand = [[204, 101], [247, 103], [224, 128], [204, 141], [244, 142]]
    np.testing.assert_allclose(faces.landmarks[0], by_hand, atol=7)
    assert set(result.timing_ms) == {"preprocess", "network", "postprocess", "landmarks"}
    assert result.timing_ms["network"] > 0
