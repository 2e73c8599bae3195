from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handler.detections import Detections, no_landmarks
from handler.detectors import base
from handler.detectors.base import Prepared, Result, finish
from handler.errors import DeadlineExceeded, EngineError, MogFaceError
from handler.geometry import Canvas, Float32, Placement, place
from handler.options import Options
from tests.handler.fake import CPU, NOT_FINITE, OPTIONS, POISON, SETTINGS, FakeDetector, grey


def detector(**changes: object) -> FakeDetector:
    return FakeDetector(dataclasses.replace(SETTINGS, **changes))  # type: ignore[arg-type]


def found(fake: FakeDetector, sizes: list[tuple[int, int, int]], deadline: float = math.inf) -> list[object]:
    """Each image's grey level as its score tells it, or the class of its error."""
    images = [fake.prepare(grey(*size), OPTIONS) for size in sizes]
    outcomes: list[object] = []
    for outcome, (height, width, _) in zip(fake.detect(images, deadline), sizes, strict=True):
        if isinstance(outcome, MogFaceError):
            outcomes.append(type(outcome))
            continue
        faces = outcome.detections
        assert (faces.height, faces.width) == (height, width)
        outcomes.append(round(float(faces.scores[0]) * 255))
    return outcomes


def test_images_of_one_canvas_run_together_and_answers_keep_their_order() -> None:
    fake = detector(engine_batch=8)
    sizes = [(64, 64, 1), (60, 90, 2), (50, 64, 3), (64, 96, 4), (90, 60, 5), (64, 10, 6)]
    assert found(fake, sizes) == [1, 2, 3, 4, 5, 6]
    assert sorted(fake.batches) == [[1, 3, 6], [2, 4], [5]]
    assert sorted(fake.canvases) == [Canvas(64, 64), Canvas(64, 96), Canvas(96, 64)]


@pytest.mark.parametrize(
    ("size", "expected"), [(1, [[1], [2], [3], [4], [5]]), (2, [[1, 2], [3, 4], [5]]), (9, [[1, 2, 3, 4, 5]])]
)
def test_batches_hold_at_most_engine_batch(size: int, expected: list[list[int]]) -> None:
    fake = detector(engine_batch=size)
    assert found(fake, [(64, 64, level) for level in range(1, 6)]) == [1, 2, 3, 4, 5]
    assert fake.batches == expected


def test_a_batch_runs_as_soon_as_its_images_have_come() -> None:
    """The same batches as of a list, whose images are all there: A A before the third image comes."""
    fake, come = detector(engine_batch=2), 0
    seen: list[int] = []
    fake.before = lambda: seen.append(come)
    sizes = [(64, 64, 1), (60, 90, 2), (64, 64, 3), (60, 90, 4), (64, 64, 5), (60, 90, 6)]

    def one_by_one() -> Iterator[Prepared]:
        nonlocal come
        for height, width, level in sizes:
            come += 1
            yield fake.prepare(grey(height, width, level), OPTIONS)

    outcomes = fake.detect(one_by_one(), math.inf)
    assert [round(float(each.detections.scores[0]) * 255) for each in outcomes if isinstance(each, Result)] == [
        *range(1, 7)
    ]
    assert (fake.batches, seen) == ([[1, 3], [2, 4], [5], [6]], [3, 4, 6, 6])


def test_a_failing_batch_costs_only_its_guilty_image() -> None:
    fake = detector(engine_batch=8)
    levels = [1, 2, 3, POISON, 5, 6, 7]
    assert found(fake, [(64, 64, level) for level in levels]) == [1, 2, 3, EngineError, 5, 6, 7]
    # Halved, not taken one by one: 7, then 3 and 4, and so on down to the guilty one.
    assert fake.batches == [levels, [1, 2, 3], [POISON, 5, 6, 7], [POISON, 5], [POISON], [5], [6, 7]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([(64, 64), (60, 90), (90, 60)]), st.sampled_from([10, 20, POISON, NOT_FINITE]))),
    st.integers(1, 6),
)
def test_faults_stay_with_their_images_in_any_batch(images: list[tuple[tuple[int, int], int]], size: int) -> None:
    sizes = [(*shape, level) for shape, level in images]
    expected = [EngineError if level in (POISON, NOT_FINITE) else level for _, level in images]
    assert found(detector(engine_batch=size), sizes) == expected


def test_no_images_no_run() -> None:
    fake = detector()
    assert fake.detect([], math.inf) == []
    assert fake.batches == []


def test_images_not_begun_by_the_deadline_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    fake = detector(engine_batch=2, deadline_s=2.5)

    def ten_seconds() -> None:
        now[0] += 10

    fake.before = ten_seconds
    outcomes = found(fake, [(64, 64, level) for level in range(1, 7)], deadline=115.0)
    # The third batch would begin at 120; what has begun in time is let end.
    assert outcomes == [1, 2, 3, 4, DeadlineExceeded, DeadlineExceeded]
    assert fake.batches == [[1, 2], [3, 4]]


def test_the_halves_of_a_failed_batch_keep_to_the_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    fake = detector(engine_batch=2)

    def ten_seconds() -> None:
        now[0] += 10

    fake.before = ten_seconds
    assert found(fake, [(64, 64, 1), (64, 64, POISON)], deadline=15.0) == [1, DeadlineExceeded]


def test_the_deadline_error_says_what_to_do() -> None:
    fake = detector(deadline_s=2.5)
    (error,) = fake.detect([fake.prepare(grey(8, 8, 1), OPTIONS)], -math.inf)
    assert isinstance(error, DeadlineExceeded)
    assert error.status == 503
    assert error.message == "not begun within 2.5 s of its batch's arrival; send it again"


def test_prepare_fills_what_the_image_leaves() -> None:
    prepared = detector().prepare(grey(30, 90, 7), OPTIONS)
    assert prepared.placement.canvas == (64, 96)
    assert (prepared.array[:30, :90] == 7).all()
    assert (prepared.array[30:] == (1, 2, 3)).all()
    assert (prepared.array[:, 90:] == (1, 2, 3)).all()
    assert prepared.milliseconds > 0


@pytest.mark.parametrize(
    ("canvas", "size", "expected"),
    [
        ("auto", (200, 200), (64, 64)),
        ("auto", (60, 90), (64, 96)),
        ("128x128", (10, 10), (128, 128)),
        ("64x64", (60, 90), (64, 64)),
        ("native", (33, 77), (33, 77)),
    ],
)
def test_prepare_takes_the_canvas_that_is_asked_for(
    canvas: str, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    prepared = detector().prepare(grey(*size, 7), dataclasses.replace(OPTIONS, canvas=canvas))
    assert prepared.placement.canvas == expected
    assert prepared.array.shape == (*expected, 3)


@pytest.mark.parametrize(
    ("landmarks", "crops", "on_source", "expected"),
    [
        (False, False, True, False),
        (True, False, True, True),
        (False, True, True, True),
        (True, True, False, False),
    ],
)
def test_prepare_keeps_the_picture_only_where_landmarks_are_found_on_it(
    landmarks: bool, crops: bool, on_source: bool, expected: bool
) -> None:
    image, fake = grey(30, 90, 7), detector()
    fake.landmarks_on_source = on_source
    kept = fake.prepare(image, dataclasses.replace(OPTIONS, landmarks=landmarks, crops=crops)).image
    assert kept is (image if expected else None)


def test_warm_up_runs_the_least_canvas_on_a_cpu_and_all_of_auto_on_a_gpu() -> None:
    fake = detector(canvases=(Canvas(64, 96), Canvas(64, 64), Canvas(96, 64), Canvas(128, 128)))
    fake.warm_up(CPU)
    assert fake.canvases == [Canvas(64, 64)]
    fake.canvases.clear()
    fake.warm_up(torch.device("cuda:1"))
    assert fake.canvases == [Canvas(64, 96), Canvas(64, 64), Canvas(96, 64)]


#: A picture of 200x100 px at half its size.
HALF = Placement((100, 200), (50, 100), Canvas(64, 128), 0.5, 0.5)


def finished(boxes: object, options: Options = OPTIONS, scores: list[float] | None = None) -> Detections:
    array = np.array(boxes, np.float32).reshape(-1, 4)
    falling = np.linspace(0.9, 0.1, len(array)) if scores is None else np.array(scores)
    return finish(array, falling.astype(np.float32), no_landmarks(len(array)), HALF, options)


def test_finish_goes_back_to_source_pixels_and_clips() -> None:
    faces = finished([[10, 5, 20, 25], [-3, -4, 30, 20], [90, 40, 140, 60]])
    assert faces.boxes.tolist() == [[20, 10, 40, 50], [0, 0, 60, 40], [180, 80, 199, 99]]
    assert (faces.height, faces.width) == (100, 200)
    np.testing.assert_allclose(faces.scores, [0.9, 0.5, 0.1])


@pytest.mark.parametrize(
    "outside",
    [[-9, 5, -0.5, 25], [5, -9, 25, -0.5], [99.75, 5, 120, 25], [5, 49.75, 25, 60]],
    ids=["left", "above", "right", "below"],
)
def test_finish_drops_what_lies_in_the_pad_alone(outside: list[float]) -> None:
    faces = finished([[1, 1, 9, 9], outside, [2, 2, 9, 9]])
    np.testing.assert_allclose(faces.scores, [0.9, 0.1])


@pytest.mark.parametrize(
    "touching",
    [[-9, 5, 0, 25], [5, -9, 25, 0], [99.5, 5, 120, 25], [5, 49.5, 25, 60]],
    ids=["left", "above", "right", "below"],
)
def test_finish_keeps_what_touches_the_picture(touching: list[float]) -> None:
    assert len(finished([touching])) == 1


def test_finish_drops_the_small_before_it_orders_and_cuts() -> None:
    # In source pixels, corners inside: sides 21, 41, 11, 31.
    boxes = [[0, 0, 10, 10], [0, 0, 20, 20], [0, 0, 5, 5], [0, 0, 15, 15]]

    def sides(**changes: object) -> list[int]:
        faces = finished(boxes, dataclasses.replace(OPTIONS, **changes))  # type: ignore[arg-type]
        return [round(float(side)) for side in faces.sizes]

    assert sides() == [21, 41, 11, 31]
    assert sides(min_face_size=21) == [21, 41, 31]
    assert sides(min_face_size=21.01) == [41, 31]
    assert sides(order="size") == [41, 31, 21, 11]
    assert sides(max_faces=2) == [21, 41]
    assert sides(order="size", max_faces=2) == [41, 31]
    assert sides(min_face_size=22, max_faces=1) == [41]


def test_equal_sizes_keep_the_order_of_their_scores() -> None:
    boxes = [[10, 10, 20, 20], [0, 0, 30, 30], [30, 10, 40, 20], [20, 10, 30, 20]]
    faces = finished(boxes, dataclasses.replace(OPTIONS, order="size"), [0.8, 0.7, 0.6, 0.5])
    np.testing.assert_allclose(faces.scores, [0.7, 0.8, 0.6, 0.5])


def test_finish_takes_landmarks_along_unclipped() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 20, 20]], np.float32)
    points = no_landmarks(2)
    points[0] = [[-5, 2], [3, 4], [5, 6], [7, 8], [9, 60]]
    faces = finish(boxes, np.array([0.9, 0.8], np.float32), points, HALF, dataclasses.replace(OPTIONS, order="size"))
    assert faces.has_landmarks.tolist() == [False, True]
    assert faces.landmarks[1].tolist() == [[-10, 4], [6, 8], [10, 12], [14, 16], [18, 120]]


@pytest.mark.parametrize(
    ("box", "score"),
    [
        ([0, 0, math.nan, 5], 0.5),
        ([0, 0, math.inf, 5], 0.5),
        ([-math.inf, 0, 5, 5], 0.5),
        ([0, 0, 5, 5], math.nan),
        ([0, 0, 5, 5], math.inf),
        ([0, 0, 5, 5], 1.5),
        ([0, 0, 5, 5], -0.5),
        ([9, 0, 5, 5], 0.5),
        ([0, 9, 5, 5], 0.5),
    ],
)
def test_impossible_numbers_are_the_networks_fault(box: list[float], score: float) -> None:
    with pytest.raises(EngineError):
        finished([[1, 1, 2, 2], box], scores=[0.9, score])


def test_impossible_landmarks_are_too() -> None:
    points: Float32 = no_landmarks(1)
    points[0, 0] = 3
    with pytest.raises(EngineError, match="landmarks"):
        finish(np.array([[0, 0, 5, 5]], np.float32), np.array([0.5], np.float32), points, HALF, OPTIONS)


def test_finish_of_nothing_is_nothing() -> None:
    assert len(finished([])) == 0


def test_results_say_where_images_lay() -> None:
    fake = detector()
    (result,) = fake.detect([fake.prepare(grey(128, 128, 9), OPTIONS)], math.inf)
    assert isinstance(result, Result)
    assert result.placement == place(128, 128, Canvas(64, 64))
    # [1, 2, 61, 60] on the canvas, at a scale of a half.
    assert result.detections.boxes.tolist() == [[2, 4, 122, 120]]
