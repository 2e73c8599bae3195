from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from handler import engines
from handler.config import Settings
from handler.detectors import Result
from handler.detectors.landmarks import BATCH, LandmarkStage
from handler.detectors.mogface import MogFace
from handler.engines import Engine
from handler.errors import DeadlineExceeded, EngineError, MogFaceError
from handler.geometry import Float32, Uint8
from tests.conftest import RELEASED
from tests.oracle import Picture

CPU = torch.device("cpu")
FACE = np.array([181, 58, 270, 178], np.float32)
#: The person's right eye, left eye and nose in the photograph, as CenterFace finds them at full size.
POINTS = np.array([[203, 102], [247, 104], [223, 125]], np.float32)
WIDTH = 90


@pytest.fixture(scope="module")
def stage(mogface_folder: Path, settings: Settings) -> LandmarkStage:
    return LandmarkStage(engines.load(settings, mogface_folder, "centerface", CPU))


def found(stage: LandmarkStage, image: Uint8, boxes: Float32) -> Float32:
    (points,) = stage.find([(image, boxes)])
    assert not isinstance(points, MogFaceError)
    return points


def test_points_are_found_where_they_are(stage: LandmarkStage, astronaut: Uint8) -> None:
    (points,) = found(stage, astronaut, FACE[None])
    assert np.abs(points[:3] - POINTS).max() < 0.055 * WIDTH
    right_mouth, left_mouth = points[3], points[4]
    assert FACE[0] < right_mouth[0] < POINTS[2, 0] < left_mouth[0] < FACE[2]
    assert POINTS[2, 1] < right_mouth[1] < FACE[3]


def test_the_nearest_of_several_faces_is_taken(stage: LandmarkStage, astronaut: Uint8) -> None:
    """Two faces, so near that each lies in the other's crop."""
    piece = astronaut[40:200, 170:280]
    image = np.hstack([piece, piece])
    left = FACE - np.array([170, 40, 170, 40])
    boxes = np.stack([left, left + np.array([110, 0, 110, 0])]).astype(np.float32)
    for face, points in zip((0, 1), found(stage, image, boxes), strict=True):
        expected = POINTS - [170, 40] + [110 * face, 0]
        assert np.abs(points[:3] - expected).max() < 0.055 * WIDTH


@pytest.mark.parametrize("factor", [0.2, 0.5, 3])
def test_the_size_of_the_face_does_not_matter(stage: LandmarkStage, astronaut: Uint8, factor: float) -> None:
    from PIL import Image

    side = round(512 * factor)
    image = np.asarray(Image.fromarray(astronaut).resize((side, side)))
    (points,) = found(stage, image, FACE[None] * np.float32(side / 512))
    assert np.abs(points[:3] * 512 / side - POINTS).max() < 0.055 * WIDTH


def test_a_face_cut_by_the_edge_keeps_its_points(stage: LandmarkStage, astronaut: Uint8) -> None:
    shift = np.array([190, 60], np.float32)
    image = astronaut[60:190, 190:300]
    box = np.clip(FACE - np.tile(shift, 2), 0, [109, 129] * 2).astype(np.float32)
    (points,) = found(stage, image, box[None])
    assert np.abs(points[:3] + shift - POINTS).max() < 0.08 * WIDTH


def test_no_face_no_points(stage: LandmarkStage, astronaut: Uint8) -> None:
    boxes = np.array([[400, 400, 460, 470], [0, 0, 0, 0], FACE, [511, 511, 511, 511]], np.float32)
    points = found(stage, astronaut, boxes)
    assert np.isnan(points[[0, 1, 3]]).all()
    assert np.isfinite(points[2]).all()


class Counting(Engine):
    """The real engine; crops whose mean is under 5 are refused."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.inputs, engine.outputs, engine.device)
        self._engine = engine
        self.calls: list[int] = []

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.calls.append(len(feeds["image"]))
        if (feeds["image"].float().mean(dim=(1, 2, 3)) < 5).any():
            raise EngineError("too dark")
        return dict(self._engine.run(feeds))


def test_a_fault_costs_only_its_image(stage: LandmarkStage, astronaut: Uint8) -> None:
    dark = np.zeros((100, 100, 3), np.uint8)
    counting = Counting(stage._engine)
    boxes = np.array([[10, 10, 60, 60], [30, 30, 70, 70]], np.float32)
    first, second, third = LandmarkStage(counting).find(
        [(astronaut, FACE[None]), (dark, boxes), (astronaut, FACE[None])]
    )
    assert isinstance(second, EngineError)
    for points in (first, third):
        assert not isinstance(points, MogFaceError)
        assert np.abs(points[0, :3] - POINTS).max() < 0.055 * WIDTH
    assert counting.calls == [4, 1, 1, 1, 1]


def test_crops_of_all_images_share_their_batches(stage: LandmarkStage, astronaut: Uint8) -> None:
    counting = Counting(stage._engine)
    many = np.repeat(FACE[None], 10, axis=0)
    results = LandmarkStage(counting).find([(astronaut, many), (astronaut, many[:0]), (astronaut, many)])
    assert counting.calls == [BATCH, 20 - BATCH]
    assert [len(points) for points in results if not isinstance(points, MogFaceError)] == [10, 0, 10]
    for points in results:
        assert not isinstance(points, MogFaceError)
        assert np.isfinite(points).all()


def test_the_detector_gives_points_only_to_those_who_ask(
    mogface: MogFace, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def find(images: list[tuple[Uint8, Float32]], deadline: float) -> list[Float32 | MogFaceError]:
        asked.append(len(images))
        return [np.ones((len(boxes), 5, 2), np.float32) for _, boxes in images[:-1]] + [EngineError("no points")]

    monkeypatch.setattr(mogface._landmarks, "find", find)
    wanting = dataclasses.replace(RELEASED, landmarks=True)
    images = [mogface.prepare(picture(96, 128, seed), o) for seed, o in enumerate([wanting, RELEASED, wanting])]
    first, second, third = mogface.detect(images, time.monotonic() + 60)
    assert asked == [2]
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert len(first.detections) >= 2
    assert first.detections.has_landmarks.all()
    assert first.timing_ms["landmarks"] > 0
    assert len(second.detections) >= 2
    assert not second.detections.has_landmarks.any()
    assert second.timing_ms["landmarks"] == 0
    assert isinstance(third, EngineError)


def test_crops_not_begun_in_time_cost_only_their_images(stage: LandmarkStage, astronaut: Uint8) -> None:
    nobody: Float32 = np.zeros((0, 4), np.float32)
    first, second = stage.find([(astronaut, FACE[None]), (astronaut, nobody)], deadline=0.0)
    assert isinstance(first, DeadlineExceeded)
    assert not isinstance(second, MogFaceError)
    assert second.shape == (0, 5, 2)
