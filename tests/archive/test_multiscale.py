from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from archive import multiscale
from archive.multiscale import PUBLISHED, Pass, find, vote
from archive.subject import Subject
from handler.detectors import Prepared, Result
from handler.geometry import Float32, Uint8
from handler.options import Options
from tests.handler.fake import FakeDetector, grey
from tests.photographs import ASTRONAUT, iou

OPTIONS = Options(score_threshold=0.01, nms_threshold=0.3, max_faces=750)


class Recorder(FakeDetector):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Prepared] = []

    def _detect(self, images: list[Prepared]) -> list[Result]:
        self.seen += images
        return super()._detect(images)


def literal_vote(boxes: Float32, scores: Float32, overlap: float) -> list[list[float]]:
    left = sorted(([*map(float, box)], float(score)) for box, score in zip(boxes, scores, strict=True))
    left.sort(key=lambda each: -each[1])
    merged = []
    while left:
        (x1, y1, x2, y2), best = left[0]
        near: list[tuple[list[float], float]] = []
        rest: list[tuple[list[float], float]] = []
        for box, score in left:
            across = max(0.0, min(x2, box[2]) - max(x1, box[0]) + 1)
            down = max(0.0, min(y2, box[3]) - max(y1, box[1]) + 1)
            both = (x2 - x1 + 1) * (y2 - y1 + 1) + (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
            (near if across * down / (both - across * down) >= overlap else rest).append((box, score))
        weight = sum(score for _, score in near)
        merged.append([sum(box[side] * score for box, score in near) / weight for side in range(4)] + [best])
        left = rest
    return merged


@pytest.mark.parametrize("seed", range(5))
def test_the_vote_against_a_literal_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 60, (6, 2))
    low = (centres[rng.integers(0, 6, 40)] + rng.normal(0, 2, (40, 2))).astype(np.float32)
    boxes = np.concatenate([low, low + rng.uniform(10, 30, (40, 2)).astype(np.float32)], axis=1)
    scores = rng.permutation(np.linspace(0.1, 1, 40)).astype(np.float32)
    expected = literal_vote(boxes, scores, 0.6)
    merged, strength = vote(boxes, scores, 0.6)
    assert 1 < len(expected) < 40
    assert np.allclose(np.column_stack([merged, strength]), expected, atol=1e-4)
    assert (np.diff(strength) <= 0).all()


def test_a_lone_box_and_none_stay() -> None:
    box, score = np.array([[1, 2, 30, 40]], np.float32), np.array([0.25], np.float32)
    merged, strength = vote(box, score, 0.6)
    assert np.array_equal(merged, box)
    assert np.array_equal(strength, score)
    assert vote(box[:0], score[:0], 0.6)[0].shape == (0, 4)


def test_the_published_passes_cost_what_is_published() -> None:
    assert len(PUBLISHED) == 11
    assert min(each.scale for each in PUBLISHED) == 0.25
    assert max(each.scale for each in PUBLISHED) == 2.6
    assert sum(each.scale**2 for each in PUBLISHED) == pytest.approx(26, abs=0.5)


def test_each_pass_has_its_own_size_and_mirror() -> None:
    detector = Recorder()
    image = grey(40, 50, 100)
    image[:, :10] = 50
    find(Subject("fake", detector), image, OPTIONS, (Pass(1), Pass(2, mirrored=True), Pass(0.25)))
    assert [each.array.shape for each in detector.seen] == [(40, 50, 3), (80, 100, 3), (10, 12, 3)]
    assert [int(each.array[0, 0, 0]) for each in detector.seen] == [50, 100, 50]
    assert [each.placement.scale_x for each in detector.seen] == [1, 2, 0.24]


def test_a_mirrored_box_is_turned_back() -> None:
    # The fake's box goes from 1 to width - 3: mirrored, from 2 to width - 2.
    image = grey(40, 50, 100)
    faces = find(Subject("fake", FakeDetector()), image, OPTIONS, (Pass(1, mirrored=True),))
    assert faces.boxes.tolist() == [[2, 2, 48, 36]]
    both = find(Subject("fake", FakeDetector()), image, OPTIONS, (Pass(1), Pass(1, mirrored=True)))
    assert both.boxes.tolist() == [[1.5, 2, 47.5, 36]]


def test_each_pass_keeps_the_sizes_it_is_good_at(monkeypatch: pytest.MonkeyPatch) -> None:
    image, subject = grey(40, 50, 100), Subject("fake", FakeDetector())
    area = 46 * 34
    assert len(find(subject, image, OPTIONS, (Pass(1, over=area),))) == 1
    assert len(find(subject, image, OPTIONS, (Pass(1, over=area + 1),))) == 0
    assert len(find(subject, image, OPTIONS, (Pass(1, under=area),))) == 0
    assert len(find(subject, image, OPTIONS, (Pass(1, under=area + 1),))) == 1
    monkeypatch.setattr(multiscale, "PIXELS", 40 * 50)
    detector = Recorder()
    find(Subject("fake", detector), image, OPTIONS, (Pass(1), Pass(1.01)))
    assert len(detector.seen) == 1


def test_an_image_too_large_for_every_pass_is_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiscale, "PIXELS", 10)
    assert len(find(Subject("fake", FakeDetector()), grey(40, 50, 100), OPTIONS)) == 1


def test_at_most_so_many_faces() -> None:
    few = dataclasses.replace(OPTIONS, max_faces=1)
    image = grey(40, 50, 100)
    assert len(find(Subject("fake", FakeDetector()), image, few, (Pass(1), Pass(1, mirrored=True)))) == 1


def test_on_a_photograph(plain: Subject, astronaut: Uint8) -> None:
    passes = (Pass(0.5, over=2000), Pass(0.5, mirrored=True), Pass(0.25, over=2000))
    (face,) = find(plain, astronaut, dataclasses.replace(OPTIONS, score_threshold=0.5), passes).boxes
    assert iou(face, ASTRONAUT.box) > 0.85


def test_sides_are_padded_to_what_the_network_needs() -> None:
    detector = Recorder()
    detector.multiple = 32
    find(Subject("fake", detector), grey(40, 50, 100), OPTIONS, (Pass(1),))
    (seen,) = detector.seen
    assert seen.array.shape == (64, 64, 3)
    assert seen.placement.content == (40, 50)
    assert seen.array[40, 0].tolist() == [1, 2, 3]
