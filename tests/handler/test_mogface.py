"""MogFace's flow: what is run, what is skipped, and whose fault is whose."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from handler.config import Settings
from handler.detectors import Result
from handler.detectors.base import TOP_K
from handler.detectors.landmarks import LandmarkStage
from handler.detectors.mogface import LEVELS, MogFace
from handler.engines import Engine, TensorSpec
from handler.errors import EngineError, MogFaceError
from handler.geometry import Canvas, Uint8
from handler.options import Options
from tests.conftest import RELEASED
from tests.oracle import Picture

CPU = torch.device("cpu")
ALL = (4, 8, 16, 32, 64, 128)


def detect(detector: MogFace, images: Sequence[tuple[Uint8, Options]]) -> list[Result | MogFaceError]:
    return detector.detect([detector.prepare(*image) for image in images], time.monotonic() + 60)


def good(results: Sequence[Result | MogFaceError]) -> list[Result]:
    assert all(isinstance(result, Result) for result in results), results
    return [result for result in results if isinstance(result, Result)]


def assert_alike(left: Result, right: Result, atol: float = 1e-5) -> None:
    assert len(left.detections) == len(right.detections)
    np.testing.assert_allclose(left.detections.scores, right.detections.scores, atol=atol, rtol=0)
    # A box of 300 px is 1e-5 of itself away where its offset is.
    np.testing.assert_allclose(left.detections.boxes, right.detections.boxes, atol=300 * atol, rtol=0)


@pytest.mark.parametrize("batch", [1, 4])
def test_skipping_levels_changes_nothing(with_settings: Callable[..., MogFace], picture: Picture, batch: int) -> None:
    images = [(picture(110 + number, 130, number), RELEASED) for number in range(4)]
    images.append((picture(110, 130, 9), dataclasses.replace(RELEASED, score_threshold=0.95)))
    with_skipping = good(detect(with_settings(engine_batch=batch, level_skipping=True), images))
    without = good(detect(with_settings(engine_batch=batch, level_skipping=False), images))
    for left, right in zip(with_skipping, without, strict=True):
        assert right.levels == ALL
        assert set(left.levels) < set(ALL)
        assert_alike(left, right, atol=1e-6)
    assert len({result.levels for result in with_skipping}) >= 2
    assert sum(len(result.detections) for result in with_skipping) >= 40
    assert any(4 in result.levels and 8 in result.levels for result in with_skipping)


def test_no_score_over_the_threshold_runs_no_box_head(mogface: MogFace, picture: Picture) -> None:
    (result,) = good(detect(mogface, [(picture(96, 128), dataclasses.replace(RELEASED, score_threshold=1.0))]))
    assert result.levels == ()
    assert len(result.detections) == 0


def test_a_batch_of_all_sorts_answers_each_as_if_alone(with_settings: Callable[..., MogFace], picture: Picture) -> None:
    native = dataclasses.replace(RELEASED, canvas="native")
    images = [
        (picture(96, 128, 0), RELEASED),
        (picture(200, 120, 1), dataclasses.replace(RELEASED, score_threshold=0.6, max_faces=7)),
        (picture(96, 128, 2), dataclasses.replace(RELEASED, min_face_size=40, score_threshold=0.6)),
        (picture(75, 98, 3), native),
        (picture(90, 120, 4), dataclasses.replace(RELEASED, order="size", nms_threshold=0.2)),
        (picture(1504, 40, 5), native),
        (picture(96, 128, 6), dataclasses.replace(RELEASED, min_face_size=20)),
        (picture(96, 128, 7), dataclasses.replace(RELEASED, score_threshold=0.9)),
        (picture(75, 98, 8), native),
    ]
    together = good(detect(with_settings(engine_batch=4), images))
    detector = with_settings(engine_batch=1)
    for image, result in zip(images, together, strict=True):
        (alone,) = good(detect(detector, [image]))
        assert_alike(result, alone)
        assert result.levels == alone.levels
        assert result.placement == alone.placement
    assert sum(len(result.detections) for result in together) >= 60
    assert len(together[1].detections) == 7
    assert np.all(np.diff(together[4].detections.sizes) <= 0)
    assert together[2].detections.sizes.min() >= 40


class Trunk(Engine):
    """Levels filled with the image's first pixel; fails where that is 13."""

    def __init__(self) -> None:
        image = TensorSpec("image", torch.uint8, ("n", "h", "w", 3))
        outputs = {name: TensorSpec(name, torch.float32, ("n", 1, f"{name}h", f"{name}w")) for name in LEVELS}
        super().__init__({"image": image}, outputs, CPU)
        self.calls: list[int] = []

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        value = feeds["image"][:, 0, 0, 0].float()
        self.calls.append(len(value))
        if (value == 13).any():
            raise EngineError("thirteen")
        height, width = feeds["image"].shape[1:3]
        sizes = {name: (-(-height // s), -(-width // s)) for name, s in zip(LEVELS, ALL, strict=True)}
        return {name: value[:, None, None, None].expand(-1, 1, *size).clone() for name, size in sizes.items()}


class Scores(Engine):
    """A score of the level's value / 255 everywhere; of 200 and over, NaN in the last cell."""

    def __init__(self) -> None:
        spec = {"level": TensorSpec("level", torch.float32, ("n", 1, "h", "w"))}
        super().__init__(spec, {}, CPU)
        self.calls: list[tuple[int, int]] = []

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        level = feeds["level"]
        self.calls.append((len(level), level.shape[2] * level.shape[3]))
        scores = (level / 255).flatten(1)
        scores[level[:, 0, 0, 0] >= 200, -1] = float("nan")
        return {"scores": scores, "context": level}


class Boxes(Engine):
    """Offsets of zero, which makes each box its anchor; infinite ones for a level's value of 77."""

    def __init__(self) -> None:
        super().__init__({"context": TensorSpec("context", torch.float32, ("n", 1, "h", "w"))}, {}, CPU)
        self.calls: list[tuple[int, int]] = []

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        context = feeds["context"].flatten(1)
        self.calls.append((len(context), context.shape[1]))
        offsets = torch.zeros(*context.shape, 4)
        offsets[context[:, 0] == 77] = float("inf")
        return {"offsets": offsets}


class NoPoints(LandmarkStage):
    def __init__(self) -> None:
        """Without an engine: it must not be asked for anything."""


def simple(settings: Settings, **changes: object) -> MogFace:
    changed = dataclasses.replace(settings, **changes)  # type: ignore[arg-type]
    return MogFace(changed, Trunk(), Scores(), Boxes(), NoPoints())


def flat(value: int, height: int = 96, width: int = 128) -> Uint8:
    return np.full((height, width, 3), value, np.uint8)


LOW = dataclasses.replace(RELEASED, score_threshold=0.2)


def test_a_fault_costs_only_its_image(settings: Settings) -> None:
    values = [100, 13, 101, 220, 102, 77, 103]
    results = detect(simple(settings, engine_batch=7), [(flat(value), LOW) for value in values])
    for value, result in zip(values, results, strict=True):
        if value in (13, 220, 77):
            assert isinstance(result, EngineError), value
        else:
            assert isinstance(result, Result)
            assert result.detections.scores[0] == np.float32(value) / np.float32(255)
    assert "thirteen" in str(results[1])
    assert "not numbers" in str(results[3])
    assert "finite" in str(results[5])


def test_a_fault_in_a_level_that_is_not_wanted_is_no_fault(settings: Settings) -> None:
    detector = simple(settings)
    options = dataclasses.replace(LOW, min_face_size=100_000)
    (result,) = good(detect(detector, [(flat(220), options)]))
    assert len(result.detections) == 0
    assert detector._score_head.calls == []  # type: ignore[attr-defined]


def test_heads_see_only_the_rows_that_need_them(settings: Settings) -> None:
    detector = simple(settings, engine_batch=3)
    # Levels under 40 px: the anchors of 11 and 22 px reach to 37.
    large = dataclasses.replace(LOW, min_face_size=40)
    images = [(flat(100), LOW), (flat(40), LOW), (flat(150), large)]
    results = good(detect(detector, images))
    assert detector._trunk.calls == [3]  # type: ignore[attr-defined]
    assert detector._score_head.calls == [(2, 768), (2, 192), (3, 48), (3, 12), (3, 4), (3, 1)]  # type: ignore[attr-defined]
    assert detector._box_head.calls == [(1, 768), (1, 192), (2, 48), (2, 12), (2, 4), (2, 1)]  # type: ignore[attr-defined]
    assert [result.levels for result in results] == [ALL, (), ALL[2:]]
    assert results[2].detections.sizes.min() >= 40


def test_equal_scores_come_in_the_order_of_their_anchors(settings: Settings) -> None:
    options = dataclasses.replace(LOW, nms_threshold=1.0, max_faces=5000, canvas="native")
    (result,) = good(detect(simple(settings), [(flat(100, 96, 128), options)]))
    boxes = result.detections.boxes
    assert len(boxes) == 768 + 192 + 48 + 12 + 4 + 1
    # The first cells of the finest level, row by row: anchors of 10.88 px at 2, 6, 10 ... px.
    low, high = (np.arange(32) + 0.5) * 4 - 4.94, (np.arange(32) + 0.5) * 4 + 4.94
    np.testing.assert_allclose(boxes[:32, 0], np.clip(low, 0, 127), atol=1e-4)
    np.testing.assert_allclose(boxes[:32, 2], np.clip(high, 0, 127), atol=1e-4)
    np.testing.assert_allclose(boxes[32, 1], 1.06, atol=1e-4)


def test_at_most_5000_candidates_are_looked_at(settings: Settings) -> None:
    detector = simple(settings, canvases=(Canvas(320, 320),), long_side=320)
    options = dataclasses.replace(LOW, nms_threshold=1.0, max_faces=5000)
    (result,) = good(detect(detector, [(flat(100, 320, 320), options)]))
    assert len(result.detections) == TOP_K
    # All from the finest level, since all scores are equal.
    assert result.detections.sizes.max() < 12


def test_a_threshold_is_not_reached_by_an_equal_score(settings: Settings) -> None:
    score = float(np.float32(100) / np.float32(255))
    options = dataclasses.replace(LOW, score_threshold=score)
    (result,) = good(detect(simple(settings), [(flat(100), options)]))
    assert len(result.detections) == 0
    assert result.levels == ()
