from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from handler.detections import LANDMARKS, Detections, Index, no_landmarks
from handler.geometry import Float32

BOXES = np.array([[0, 0, 9, 19], [10, 20, 30, 40], [5.5, 6, 5.5, 6], [50, 60, 99, 79]], np.float32)
SCORES = np.array([0.9, 0.8, 1.0, 0.0], np.float32)


def points(*having: int) -> Float32:
    array = no_landmarks(4)
    for index in having:
        array[index] = np.arange(10).reshape(5, 2) + 100 * index
    return array


def faces(
    boxes: object = BOXES, scores: object = SCORES, landmarks: object = None, height: int = 80, width: int = 100
) -> Detections:
    return Detections(boxes, scores, points(0, 3) if landmarks is None else landmarks, height, width)  # type: ignore[arg-type]


def changed(array: Float32, index: tuple[int, ...], value: float) -> Float32:
    array = array.copy()
    array[index] = value
    return array


def test_landmarks_are_named_in_the_order_of_the_person() -> None:
    assert LANDMARKS == ("right_eye", "left_eye", "nose", "mouth_right", "mouth_left")


def test_no_faces_are_faces_too() -> None:
    none = Detections(BOXES[:0], SCORES[:0], no_landmarks(0), 1, 1)
    assert len(none) == 0
    assert none.sizes.shape == none.has_landmarks.shape == (0,)


def test_boxes_may_touch_the_edges() -> None:
    faces(changed(BOXES, (3, 3), 79.0))
    with pytest.raises(ValueError, match="outside the 100x80 image"):
        faces(changed(BOXES, (3, 3), 79.01))


WRONG = {
    "box left of the image": {"boxes": changed(BOXES, (0, 0), -0.1)},
    "box above the image": {"boxes": changed(BOXES, (0, 1), -0.1)},
    "box right of the image": {"boxes": changed(BOXES, (3, 2), 99.1)},
    "x swapped": {"boxes": changed(BOXES, (1, 0), 31)},
    "y swapped": {"boxes": changed(BOXES, (1, 3), 19)},
    "NaN in a box": {"boxes": changed(BOXES, (2, 2), np.nan)},
    "infinity in a box": {"boxes": changed(BOXES, (2, 2), np.inf)},
    "NaN in a score": {"scores": changed(SCORES, (1,), np.nan)},
    "score over 1": {"scores": changed(SCORES, (2,), 1.001)},
    "score under 0": {"scores": changed(SCORES, (3,), -0.001)},
    "nine of ten numbers": {"landmarks": changed(points(1), (1, 4, 1), np.nan)},
    "one of ten numbers": {"landmarks": changed(points(), (1, 4, 1), 3)},
    "an infinite point": {"landmarks": changed(points(1), (1, 0, 0), np.inf)},
    "nothing but infinite points": {"landmarks": np.full((4, 5, 2), np.inf)},
    "a box too few": {"boxes": BOXES[:3]},
    "five numbers a box": {"boxes": np.zeros((4, 5))},
    "scores in a column": {"scores": SCORES[:, None]},
    "flat points": {"landmarks": no_landmarks(4).reshape(4, 10)},
    "four points": {"landmarks": no_landmarks(4)[:, :4]},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_impossible_faces_are_refused(wrong: dict[str, object]) -> None:
    faces()
    with pytest.raises(ValueError, match=r"box|score|landmarks"):
        faces(**wrong)  # type: ignore[arg-type]


def test_arrays_are_float32_and_contiguous_whatever_came() -> None:
    found = faces(np.asfortranarray(BOXES.astype(np.float64)), SCORES.tolist(), points(0, 3).astype(np.float64))
    for name, expected in {"boxes": BOXES, "scores": SCORES, "landmarks": points(0, 3)}.items():
        array = getattr(found, name)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", ["boxes", "scores", "landmarks"])
def test_faces_do_not_change(name: str) -> None:
    mine = {"boxes": BOXES.copy(), "scores": SCORES.copy(), "landmarks": points(0, 3)}
    found = faces(**mine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="read-only"):
        getattr(found, name)[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(found, name, None)
    before = getattr(found, name).copy()
    mine[name][0] = 0.5
    np.testing.assert_array_equal(getattr(found, name), before)


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (slice(None), [0, 1, 2, 3]),
        (slice(0, 2), [0, 1]),
        (slice(None, None, -1), [3, 2, 1, 0]),
        (slice(9, 12), []),
        (np.array([True, False, False, True]), [0, 3]),
        (np.zeros(4, np.bool_), []),
        (np.array([3, 0, 3]), [3, 0, 3]),
        (np.array([], np.int64), []),
    ],
)
def test_an_index_gives_faces_again(index: Index, kept: list[int]) -> None:
    part = faces()[index]
    assert isinstance(part, Detections)
    assert (part.height, part.width) == (80, 100)
    np.testing.assert_array_equal(part.boxes, np.array([BOXES[i] for i in kept]).reshape(-1, 4))
    np.testing.assert_array_equal(part.scores, np.array([SCORES[i] for i in kept]))
    np.testing.assert_array_equal(part.landmarks, np.array([points(0, 3)[i] for i in kept]).reshape(-1, 5, 2))


def test_sizes_count_both_corners_as_inside() -> None:
    np.testing.assert_allclose(faces().sizes, [(10 * 20) ** 0.5, 21.0, 1.0, (50 * 20) ** 0.5], rtol=1e-6)


def test_landmarks_are_had_face_by_face_and_may_lie_outside() -> None:
    assert faces().has_landmarks.tolist() == [True, False, False, True]
    added = faces().with_landmarks(points(1) - 500)
    assert added.has_landmarks.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(added.landmarks[1], np.arange(10).reshape(5, 2) - 400)
    np.testing.assert_array_equal(added.boxes, BOXES)
