"""Whether an answer under load is right."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from clients.answer import Answer, Face, Model
from load_tests.pictures import Picture, carried, folder

_MODEL = Model("centerface", "1.0", "w", "ort", "fp32")


def answer(*faces: tuple[tuple[float, float, float, float], float], width: int = 640) -> Answer:
    return Answer(_MODEL, width, 480, "480x640", 1.0, tuple(Face(box, score) for box, score in faces), {}, 1)


A, B = (10.0, 10.0, 110.0, 110.0), (200.0, 10.0, 300.0, 110.0)


@pytest.mark.parametrize(
    ("other", "right"),
    [
        (answer((A, 0.9), (B, 0.8)), True),
        (answer((B, 0.8), (A, 0.9)), True),
        (answer(((10.0, 10.0, 112.0, 110.0), 0.9), (B, 0.8)), True),
        (answer((A, 0.9)), False),
        (answer((A, 0.9), ((200.0, 10.0, 400.0, 110.0), 0.8)), False),
        (answer((A, 0.9), (B, 0.8), ((400.0, 10.0, 500.0, 110.0), 0.7)), False),
        (answer((A, 0.9), (B, 0.8), width=641), False),
        (answer(), False),
    ],
)
def test_against_the_answer_alone(other: Answer, right: bool) -> None:
    assert Picture("p", b"", None, answer((A, 0.9), (B, 0.8))).right(other) is right


def test_no_faces_are_right_where_there_are_none() -> None:
    assert Picture("p", b"", None, answer()).right(answer())
    assert not Picture("p", b"", None, answer()).right(answer((A, 0.9)))


def test_a_known_face_that_is_not_found_ends_the_run() -> None:
    with pytest.raises(ValueError, match="found 1 faces and not the one at"):
        Picture("p", b"", A).referred(answer((B, 0.9)))
    assert Picture("p", b"", A).referred(answer((A, 0.9))).reference == answer((A, 0.9))


def test_the_carried_pages_have_their_sizes() -> None:
    for picture in carried(((64, 48), (48, 64))):
        size = Image.open(io.BytesIO(picture.data)).size
        assert picture.name == f"{size[0]}x{size[1]}"


def test_a_folder_is_taken_whole_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.PNG", "1.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    assert [(each.name, each.data) for each in folder(tmp_path)] == [("1.jpg", b"1.jpg"), ("b/2.PNG", b"b/2.PNG")]
    with pytest.raises(ValueError, match="no picture"):
        folder(tmp_path / "b" / "none")
    assert replace(folder(tmp_path)[0]).face is None
