from __future__ import annotations

import math
import time

import numpy as np
import pytest

from archive.average_precision import Bools, Float64, average_precisions, overlaps
from tests.archive.protocol import literal


def everything(faces: list[Float64]) -> dict[str, list[Bools]]:
    return {"all": [np.ones(len(boxes), np.bool_) for boxes in faces]}


def table(*rows: tuple[float, ...]) -> Float64:
    return np.array(rows, np.float64)


NO_FOUND, NO_FACES = np.zeros((0, 5)), np.zeros((0, 4))


def test_by_hand() -> None:
    # Four faces. By falling score: a hit, a false one, a hit, a second find of the first face, a miss remains.
    faces = [table((0, 0, 9, 9), (100, 0, 9, 9)), table((0, 0, 9, 9), (50, 50, 19, 19))]
    found = [
        table((0, 0, 9, 9, 1.0), (0, 0, 9, 9, 0.4), (100, 0, 9, 9, 0.6)),
        table((200, 200, 9, 9, 0.8), (300, 0, 9, 9, 0.0)),
    ]
    # Recall 1/4 at precision 1, then 2/4 at 2/3; nothing more is found.
    assert average_precisions(found, faces, everything(faces))["all"] == pytest.approx(1 / 4 + 1 / 4 * 2 / 3)


def test_faces_outside_the_subset_neither_help_nor_harm() -> None:
    faces = [table((0, 0, 9, 9), (100, 0, 9, 9), (200, 0, 9, 9))]
    found = [table((0, 0, 9, 9, 0.9), (100, 0, 9, 9, 1.0), (200, 0, 9, 9, 0.1))]
    subsets = {
        "all": [np.array([True, True, True])],
        "some": [np.array([True, False, True])],
        "none": [np.zeros(3, bool)],
    }
    areas = average_precisions(found, faces, subsets)
    assert areas["all"] == 1
    assert areas["some"] == 1
    assert math.isnan(areas["none"])


def test_overlap_counts_corners_as_inside() -> None:
    # 10 x 10 px each as inclusive corners of x + 9; half of one is in the other: 50 of 150.
    assert overlaps(table((0, 0, 9, 9)), table((5, 0, 9, 9), (0, 0, 9, 9), (10, 0, 9, 9))).tolist() == [[1 / 3, 1, 0]]


def test_edges() -> None:
    face = [table((0, 0, 9, 9))]
    assert average_precisions([NO_FOUND], face, everything(face))["all"] == 0
    assert average_precisions([table((0, 0, 9, 9, 0.3))], face, everything(face))["all"] == 1
    # The one on an image without faces is left out, on one whose face is outside the subset it is false.
    found = [table((0, 0, 9, 9, 0.3)), table((50, 0, 9, 9, 0.9))]
    assert average_precisions(found, [*face, NO_FACES], everything([*face, NO_FACES]))["all"] == 1
    subset = {"first": [np.ones(1, np.bool_), np.zeros(1, np.bool_)]}
    assert average_precisions(found, face * 2, subset)["first"] == 0.5
    assert math.isnan(average_precisions([], [], {"all": []})["all"])


@pytest.mark.parametrize("seed", range(6))
def test_against_the_literal_protocol(seed: int) -> None:
    rng = np.random.default_rng(seed)
    faces, found, kept = [], [], []
    for _ in range(5):
        count = int(rng.integers(0, 7))
        boxes = np.column_stack([rng.integers(0, 60, (count, 2)), rng.integers(5, 30, (count, 2))]).astype(float)
        near = boxes[rng.integers(0, count, 12)] + rng.normal(0, 2, (12, 4)) if count else np.zeros((0, 4))
        away = np.column_stack([rng.uniform(0, 60, (4, 2)), rng.uniform(5, 30, (4, 2))])
        rows = np.concatenate([near, away])
        # Few different scores, so that there are ties, within an image and between images.
        found.append(np.column_stack([rows, rng.integers(1, 9, len(rows)) / 8]))
        faces.append(boxes)
        kept.append(rng.random(count) < 0.6)
    if not sum(mask.sum() for mask in kept):
        kept[int(np.argmax([len(mask) for mask in kept]))][:] = True
    expected = literal(found, faces, kept)
    assert 0 < expected < 1
    assert average_precisions(found, faces, {"some": kept})["some"] == pytest.approx(expected, abs=1e-12)


def test_the_whole_validation_set_takes_seconds() -> None:
    rng = np.random.default_rng(0)
    faces = [rng.uniform(5, 500, (12, 4)) for _ in range(3226)]
    found = [rng.uniform(5, 500, (300, 5)) for _ in range(3226)]
    started = time.process_time()
    areas = average_precisions(found, faces, {name: everything(faces)["all"] for name in ("easy", "medium", "hard")})
    assert time.process_time() - started < 20
    assert areas["easy"] == areas["hard"] > 0
