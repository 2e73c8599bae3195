from __future__ import annotations

import csv
import dataclasses
import io
import json
import zipfile
from pathlib import Path

from clients import LANDMARKS, Answer, Face, InvalidImage, Model
from webui import results
from webui.results import Result
from webui.texts import TABLE, Texts

POINTS = {name: (float(number), number + 0.5) for number, name in enumerate(LANDMARKS)}
ANSWER = Answer(
    model=Model("centerface", "1.0", "weights <x>", "ort", "fp32"),
    width=100,
    height=80,
    canvas="640x640",
    scale=1.0,
    faces=(Face((1.25, 2.0, 3.0, 4.0), 0.98765, POINTS, b"crop"), Face((5.0, 6.0, 7.0, 8.0), 0.5)),
    timing_ms={"decode": 1.0, "preprocess": 2.0, "network": 3.0, "postprocess": 4.0, "landmarks": 5.0},
    batch_size=1,
    crops=True,
)
LISTED = [Result("a.jpg", ANSWER, Path("a.jpg")), Result("<b>.jpg", InvalidImage("half a <JPEG>"))]


def test_rows_are_numbered_and_rounded() -> None:
    assert results.rows(LISTED) == [["a.jpg", 1, 0.988, 1.2, 2.0, 3.0, 4.0], ["a.jpg", 2, 0.5, 5.0, 6.0, 7.0, 8.0]]


def test_json_has_the_lines_of_the_command_without_crops() -> None:
    first, second = json.loads(results.to_json(LISTED))
    expected = dataclasses.replace(ANSWER, crops=False).to_json()
    assert first == {"path": "a.jpg", "answer": json.loads(json.dumps(expected))}
    assert "crop" not in first["answer"]["faces"][0]
    assert second == {"path": "<b>.jpg", "error": {"code": 400, "type": "invalid_image", "message": "half a <JPEG>"}}


def test_csv_has_a_line_a_face_and_no_formula() -> None:
    first, second = csv.DictReader(io.StringIO(results.to_csv([Result("=1+1.jpg", ANSWER)])))
    assert first["photograph"] == "'=1+1.jpg"
    assert (first["x1"], first["score"], first["nose_x"], first["nose_y"]) == ("1.25", "0.98765", "2.0", "2.5")
    assert (second["face"], second["x1"], second["nose_x"]) == ("2", "5.0", "")


def test_one_picture_is_itself_and_several_are_a_zip(tmp_path: Path) -> None:
    pictures = [tmp_path / "one" / "same.jpg", tmp_path / "two" / "same.jpg"]
    for picture in pictures:
        picture.parent.mkdir()
        picture.write_bytes(picture.parent.name.encode())
    assert results.pictures([LISTED[1]], tmp_path) is None
    assert results.pictures([Result("a", ANSWER, pictures[0]), LISTED[1]], tmp_path) == pictures[0]
    path = results.pictures([Result("a", ANSWER, pictures[0]), LISTED[1], Result("c", ANSWER, pictures[1])], tmp_path)
    assert path is not None
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "001-same.jpg": b"one",
            "003-same.jpg": b"two",
        }


def test_the_report_names_times_and_errors_and_holds_no_markup_of_others() -> None:
    told = results.report([*LISTED, Result("heic", ANSWER)], 1.234, Texts("en"))
    assert "Faces: 4.  Photographs: 2.  Failed: 1.  1.23 s" in told
    assert "<td>1.0</td><td>3.0</td><td>11.0</td>" in told
    assert "&lt;b&gt;.jpg" in told
    assert "half a &lt;JPEG&gt;" in told
    assert "<b>.jpg" not in told
    assert TABLE["error_InvalidImage"][0] in told
    assert told.count(TABLE["undrawn"][0]) == 1
    cached = results.report([Result("a", dataclasses.replace(ANSWER, cached=True))], 0, Texts("zh"))
    assert f"640x640 ({TABLE['cached'][1]})" in cached
    assert "失败" not in cached


def test_the_model_is_described() -> None:
    told = results.model(ANSWER, "http://127.0.0.1:8080", Texts("en"))
    for part in ("centerface 1.0", "weights &lt;x&gt;", "ort", "fp32", "http://127.0.0.1:8080"):
        assert part in told
