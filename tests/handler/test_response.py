from __future__ import annotations

import base64
import dataclasses
import io
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st
from PIL import Image

from handler import response as module
from handler.crops import SIZE, TEMPLATE
from handler.detections import Detections, no_landmarks
from handler.detectors.base import Result
from handler.errors import DeadlineExceeded, InvalidImage, MogFaceError, TooLarge
from handler.geometry import Canvas, Uint8, place
from handler.options import Options
from handler.response import Answered, Budget, ModelInfo, Response, annotate, encode_error

MODEL = ModelInfo("mogface", "1.0", "seeded:7 (not trained)", "ort", "fp32")
OPTIONS = Options(score_threshold=0.5, nms_threshold=0.3)
TIMING = {"preprocess": 1.23456, "network": 20.0, "postprocess": 0.004, "landmarks": 0.0}


def encode(
    answers: Sequence[Answered | MogFaceError],
    several: bool,
    options: Options,
    model: ModelInfo,
    batch_size: int,
    limit: int = 10_000_000,
    seconds: float = 60.0,
) -> Response:
    budget = Budget(limit, time.monotonic() + seconds)
    return module.encode(answers, several, options, model, batch_size, budget)


def faces(height: int = 240, width: int = 320) -> Detections:
    """Two: one with landmarks, one without."""
    points = no_landmarks(2)
    points[0] = np.array([[20.12345, 30], [40, 30.5], [30, 40], [22, 50], [-3.25, 50]])
    boxes = np.array([[10.12345, 20, 50.1, 60], [100, 110, 319, 239]], np.float32)
    return Detections(boxes, np.array([0.98765432, 0.5], np.float32), points, height, width)


def answered(found: Detections, format: str = "JPEG", image: Uint8 | None = None) -> Answered:
    placement = place(found.height, found.width, Canvas(96, 128))
    return Answered(Result(found, placement, dict(TIMING)), 5.678, format, image)


def with_options(**changes: object) -> Options:
    return dataclasses.replace(OPTIONS, **changes)  # type: ignore[arg-type]


def refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def read(body: bytes) -> Any:
    return json.loads(body, parse_constant=refuse_constant)


ONE: dict[str, Any] = {
    "model": {
        "name": "mogface",
        "version": "1.0",
        "weights": "seeded:7 (not trained)",
        "engine": "ort",
        "precision": "fp32",
    },
    "image": {"width": 320, "height": 240},
    "canvas": "96x128",
    "scale": 0.4,
    "faces": [
        {
            "box": [10.123, 20.0, 50.1, 60.0],
            "score": 0.987654,
            "landmarks": {
                "right_eye": [20.123, 30.0],
                "left_eye": [40.0, 30.5],
                "nose": [30.0, 40.0],
                "mouth_right": [22.0, 50.0],
                "mouth_left": [-3.25, 50.0],
            },
        },
        {"box": [100.0, 110.0, 319.0, 239.0], "score": 0.5, "landmarks": None},
    ],
    "timing_ms": {"decode": 5.68, "preprocess": 1.23, "network": 20.0, "postprocess": 0.0, "landmarks": 0.0},
    "batch_size": 3,
}


def test_json_is_as_documented() -> None:
    response = encode([answered(faces())], False, with_options(landmarks=True), MODEL, 3)
    assert (response.status, response.content_type, response.faces, response.error) == (200, "application/json", 2, "")
    assert read(response.body) == ONE
    assert list(read(response.body)) == list(ONE)


def test_an_image_of_no_faces_is_an_answer() -> None:
    response = encode([answered(faces()[:0])], False, OPTIONS, MODEL, 3)
    assert (response.status, response.faces) == (200, 0)
    assert read(response.body) == {**ONE, "faces": []}


def test_several_images_are_listed_in_their_order_errors_among_them() -> None:
    error = InvalidImage("the image is damaged: really")
    response = encode([answered(faces()), error, answered(faces()[1:])], True, OPTIONS, MODEL, 3)
    assert (response.status, response.faces, response.error) == (200, 3, "")
    assert read(response.body) == {
        "results": [
            ONE,
            {"error": {"code": 400, "type": "invalid_image", "message": "the image is damaged: really"}},
            {**ONE, "faces": ONE["faces"][1:]},
        ]
    }


def test_a_list_of_one_is_a_list() -> None:
    assert read(encode([answered(faces())], True, OPTIONS, MODEL, 3).body) == {"results": [ONE]}


def test_an_error_has_its_status_in_the_body_too() -> None:
    for response in (
        encode([TooLarge("é " * 3)], False, OPTIONS, MODEL, 1),
        encode_error(TooLarge("é é é ")),
    ):
        assert (response.status, response.content_type, response.error) == (413, "application/json", "too_large")
        assert read(response.body) == {"error": {"code": 413, "type": "too_large", "message": "é é é "}}


def test_modelscope_shape() -> None:
    response = encode([answered(faces())], False, with_options(output="modelscope", landmarks=True), MODEL, 3)
    assert read(response.body) == {
        "scores": [0.987654, 0.5],
        "boxes": [[10.123, 20.0, 50.1, 60.0], [100.0, 110.0, 319.0, 239.0]],
        "keypoints": [[20.123, 30.0, 40.0, 30.5, 30.0, 40.0, 22.0, 50.0, -3.25, 50.0], None],
    }
    assert response.faces == 2


def test_modelscope_shape_without_landmarks_has_no_keypoints() -> None:
    found = faces().with_landmarks(no_landmarks(2))
    response = encode([answered(found)], False, with_options(output="modelscope"), MODEL, 3)
    assert read(response.body)["keypoints"] is None


@pytest.mark.parametrize(
    ("format", "content_type", "kind"),
    [
        ("JPEG", "image/jpeg", "JPEG"),
        ("MPO", "image/jpeg", "JPEG"),
        ("WEBP", "image/jpeg", "JPEG"),
        ("PNG", "image/png", "PNG"),
        ("GIF", "image/png", "PNG"),
        ("BMP", "image/png", "PNG"),
    ],
)
def test_a_picture_comes_back_with_or_without_loss_as_it_came(format: str, content_type: str, kind: str) -> None:
    image = np.full((240, 320, 3), 90, np.uint8)
    response = encode([answered(faces(), format, image)], False, with_options(output="image"), MODEL, 3)
    assert (response.status, response.content_type, response.faces) == (200, content_type, 2)
    with Image.open(io.BytesIO(response.body)) as picture:
        assert (picture.format, picture.mode, picture.size) == (kind, "RGB", (320, 240))
        drawn = np.asarray(picture).astype(int)
    expected = np.asarray(annotate(image, faces())).astype(int)
    assert np.abs(drawn - expected).mean() < (0.001 if kind == "PNG" else 3)


def test_boxes_and_points_are_drawn_where_they_are() -> None:
    image = np.full((240, 320, 3), 90, np.uint8)
    drawn = np.asarray(annotate(image, faces())).astype(int)
    green = (drawn == (0, 230, 90)).all(axis=2)
    for x1, y1, x2, y2 in ((10, 20, 50, 60), (100, 110, 319, 239)):
        middle_x, middle_y = (x1 + x2) // 2, (y1 + y2) // 2
        for row, column in ((y1, middle_x), (y2, middle_x), (middle_y, x1), (middle_y, x2)):
            assert green[row, column]
        assert not green[middle_y, x1 + 8 : x2 - 7].any()
        assert not green[middle_y, max(0, x1 - 9) : x1 - 1].any()
    red = (drawn == (255, 60, 60)).all(axis=2)
    for x, y in ((20, 30), (40, 30), (30, 40), (22, 50)):
        assert red[y, x]
    assert not red[60:].any()
    assert (image == 90).all()


def test_a_score_is_written_even_at_the_top_edge() -> None:
    box = np.array([[5, 0, 60, 70]], np.float32)
    found = Detections(box, np.array([0.75], np.float32), no_landmarks(1), 100, 100)
    blank = np.zeros((100, 100, 3), np.uint8)
    assert (np.asarray(annotate(blank, found))[3:20, 8:30] != 0).any()


def crop_of(face: dict[str, Any]) -> Image.Image:
    picture = Image.open(io.BytesIO(base64.b64decode(face["crop"], validate=True)))
    assert picture.format == "JPEG"
    return picture


def test_crops_come_with_the_faces_that_have_landmarks() -> None:
    # A white spot at each point of a face twice the template's size.
    image = np.zeros((400, 400, 3), np.uint8)
    landmarks = no_landmarks(2)
    landmarks[1] = TEMPLATE * 2 + 50
    for x, y in landmarks[1].astype(int):
        image[y - 4 : y + 5, x - 4 : x + 5] = 255
    boxes = np.array([[0, 0, 9, 9], [60, 60, 260, 280]], np.float32)
    found = Detections(boxes, np.array([0.9, 0.8], np.float32), landmarks, 400, 400)
    response = encode([answered(found, image=image)], False, with_options(crops=True), MODEL, 1)
    without, with_crop = read(response.body)["faces"]
    assert without["crop"] is None
    crop = np.asarray(crop_of(with_crop).convert("L")).astype(float)
    assert crop.shape == (SIZE, SIZE)
    for x, y in TEMPLATE:
        top, left = int(y) - 8, int(x) - 8
        window = crop[top : top + 17, left : left + 17]
        rows, columns = np.mgrid[top : top + 17, left : left + 17]
        found_at = np.average(columns, weights=window), np.average(rows, weights=window)
        assert np.hypot(found_at[0] - x, found_at[1] - y) < 1


def test_no_crops_unless_asked() -> None:
    image = np.zeros((240, 320, 3), np.uint8)
    response = encode([answered(faces(), image=image)], False, with_options(landmarks=True), MODEL, 1)
    assert all("crop" not in face for face in read(response.body)["faces"])


def test_an_answer_over_the_limit_is_an_error() -> None:
    size = len(encode([answered(faces())], False, OPTIONS, MODEL, 3).body)
    assert len(encode([answered(faces())], False, OPTIONS, MODEL, 3, limit=size).body) == size
    with pytest.raises(TooLarge, match=f"over the limit of {size - 1:,} bytes"):
        encode([answered(faces())], False, OPTIONS, MODEL, 3, limit=size - 1)


def test_crops_are_not_made_beyond_what_can_be_sent_or_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def align(*_: object) -> Image.Image:
        made.append(1)
        return Image.new("RGB", (SIZE, SIZE))

    monkeypatch.setattr(module, "align", align)
    points = np.tile(TEMPLATE.astype(np.float32), (500, 1, 1))
    boxes = np.tile(np.array([[0, 0, 111, 111]], np.float32), (500, 1))
    many = Detections(boxes, np.ones(500, np.float32), points, 112, 112)
    given = [answered(many, image=np.zeros((112, 112, 3), np.uint8))]
    with pytest.raises(TooLarge):
        encode(given, False, with_options(crops=True), MODEL, 1, limit=10_000)
    assert 1 < len(made) < 50
    made.clear()
    with pytest.raises(DeadlineExceeded):
        encode(given, False, with_options(crops=True), MODEL, 1, seconds=-1)
    assert len(made) == 1
    # What takes no time to tell is told, however late.
    assert encode([answered(faces())], False, OPTIONS, MODEL, 1, seconds=-1).status == 200


def test_nan_never_reaches_json() -> None:
    broken = answered(faces())
    broken.result.timing_ms["network"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        encode([broken], False, OPTIONS, MODEL, 3)


def test_numbers_are_short_however_many_digits_they_have() -> None:
    rng = np.random.default_rng(0)
    corners = rng.random((50, 2)) * 100
    boxes = np.concatenate([corners, corners + rng.random((50, 2)) * 100], axis=1).astype(np.float32)
    found = Detections(boxes, rng.random(50).astype(np.float32), no_landmarks(50), 240, 320)
    listed = read(encode([answered(found)], False, OPTIONS, MODEL, 3).body)["faces"]
    for face, box, score in zip(listed, boxes, found.scores, strict=True):
        assert max(len(str(number).partition(".")[2]) for number in face["box"]) <= 3
        assert len(str(face["score"]).partition(".")[2]) <= 6
        np.testing.assert_allclose(face["box"], box, atol=0.0005001)
        np.testing.assert_allclose(face["score"], score, atol=0.0000005001)


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_a_picture_that_cannot_be_sent_is_not_finished(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    given = [answered(faces(400, 400), format, noise)]
    whole = encode(given, False, with_options(output="image"), MODEL, 1)
    assert Image.open(io.BytesIO(whole.body)).size == (400, 400)
    with pytest.raises(TooLarge, match="over the limit of 50,000 bytes"):
        encode(given, False, with_options(output="image"), MODEL, 1, limit=50_000)
    with pytest.raises(DeadlineExceeded):
        encode(given, False, with_options(output="image"), MODEL, 1, seconds=-1)


def test_an_annotated_tiff_comes_back_without_loss() -> None:
    given = [answered(faces(), "TIFF", np.zeros((240, 320, 3), np.uint8))]
    assert encode(given, False, with_options(output="image"), MODEL, 1).content_type == "image/png"


@any_of(
    st.lists(
        st.tuples(st.floats(0, 318, width=32), st.floats(0, 238, width=32), st.floats(0, 1, width=32), st.booleans()),
        max_size=6,
    ),
    st.sampled_from(["json", "modelscope"]),
    st.booleans(),
)
def test_any_faces_become_json_that_reads_back(
    found: list[tuple[float, float, float, bool]], output: str, several: bool
) -> None:
    boxes = np.array([[x, y, x + 1, y + 1] for x, y, _, _ in found], np.float32).reshape(-1, 4)
    scores = np.array(sorted((score for *_, score, _ in found), reverse=True), np.float32)
    points = no_landmarks(len(found))
    for row, (x, y, _, has) in enumerate(found):
        if has:
            points[row] = (x, y)
    given = [answered(Detections(boxes, scores, points, 240, 320))]
    options = with_options(output=output, landmarks=True)
    content = read(encode(given, several, options, MODEL, 1).body)
    one = content["results"][0] if several else content
    read_back = [face["box"] for face in one["faces"]] if output == "json" else one["boxes"]
    np.testing.assert_allclose(np.reshape(read_back, (-1, 4)), boxes, atol=0.00051)
    landmarks = [face["landmarks"] for face in one["faces"]] if output == "json" else one["keypoints"]
    assert [each is not None for each in landmarks] == [has for *_, has in found]
