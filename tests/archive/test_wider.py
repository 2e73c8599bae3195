from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archive import wider
from archive.wider import Dataset, Entry, read_annotations, read_result, read_subset, write_result
from handler.detections import Detections, no_landmarks
from handler.errors import ArtifactError, ConfigError, EnvironmentFault
from tests.archive.conftest import WiderFolder

TEXT = """0--Parade/a_1.jpg
2
10 20 30 40 0 0 0 0 0 0
50 60 7 8 2 0 0 1 1 0
0--Parade/a_2.jpg
0
0 0 0 0 0 0 0 0 0 0

9--Press/b.x.jpg
1
1 2 3 4 0 0 0 0 0 0
"""


def annotated(folder: Path, text: str) -> list[Entry]:
    path = folder / "x.txt"
    path.write_text(text)
    return list(read_annotations(path))


def test_annotations(tmp_path: Path) -> None:
    first, second, third = annotated(tmp_path, TEXT)
    assert (first.event, first.name) == ("0--Parade", "a_1")
    assert first.faces.tolist() == [[10, 20, 30, 40], [50, 60, 7, 8]]
    assert second.faces.shape == (0, 4)
    assert (third.event, third.name, len(third.faces)) == ("9--Press", "b.x", 1)
    assert third.result == Path("9--Press/b.x.txt")


@pytest.mark.parametrize(
    "text",
    [
        "a/b.jpg\n",
        "a/b.jpg\nx\n",
        "a/b.jpg\n2\n1 2 3 4 0 0 0 0 0 0\n",
        "a/b.jpg\n1\n1 2 3 4\n",
        "a/b.png\n0\n" + "0 " * 10,
    ],
)
def test_other_annotations_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError, match=r"from line 12: expected a path, a count"):
        annotated(tmp_path, TEXT + text)


def test_a_folder_with_everything(wider_folder: WiderFolder) -> None:
    dataset = Dataset.load(wider_folder.path)
    assert len(dataset.entries) == len(wider_folder.faces)
    assert all(dataset.path(entry).exists() for entry in dataset.entries)
    for entry, faces in zip(dataset.entries, wider_folder.faces, strict=True):
        assert np.array_equal(entry.faces, faces)
    assert all(mask.all() for mask in dataset.subsets["hard"])
    for entry, easy in zip(dataset.entries, dataset.subsets["easy"], strict=True):
        assert easy.tolist() == [row == 0 for row in range(len(entry.faces))]


@pytest.mark.parametrize("name", ["wider_face_val_bbx_gt.txt", "wider_face_val.mat", "wider_hard_val.mat"])
def test_what_is_missing_is_named(make_wider: Callable[..., WiderFolder], name: str) -> None:
    folder = make_wider(1).path
    (missing,) = folder.rglob(name)
    missing.unlink()
    with pytest.raises(ConfigError, match=rf"has no {re.escape(name)} at any depth: unpack \w+\.zip of WIDER FACE"):
        Dataset.load(folder)


def test_an_empty_list_is_refused(make_wider: Callable[..., WiderFolder]) -> None:
    folder = make_wider(1).path
    (path,) = folder.rglob("wider_face_val_bbx_gt.txt")
    path.write_text("")
    with pytest.raises(ArtifactError, match="lists no picture"):
        Dataset.load(folder)


def test_without_scipy_it_says_so(wider_folder: WiderFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(EnvironmentFault, match=r"need the package scipy: pip install '\.\[evaluate\]'"):
        Dataset.load(wider_folder.path)


def test_missing_pictures_are_named(make_wider: Callable[..., WiderFolder]) -> None:
    folder = make_wider(1).path
    for path in folder.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"0\.jpg at any depth: unpack WIDER_val.zip"):
        Dataset.load(folder)


def drop_a_face(cells: dict[str, Any]) -> None:
    cells["face_bbx_list"][0, 0][0, 0] = cells["face_bbx_list"][0, 0][0, 0][1:]


def change_a_number(cells: dict[str, Any]) -> None:
    cells["gt_list"][0, 0][0, 0] = np.array([[99]])


def change_a_name(cells: dict[str, Any]) -> None:
    cells["event_list"][0, 0] = np.array(["elsewhere"])


def drop_the_numbers(cells: dict[str, Any]) -> None:
    del cells["gt_list"]


def drop_a_picture(cells: dict[str, Any]) -> None:
    cells["gt_list"][0, 0] = cells["gt_list"][0, 0][:0]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("face", drop_a_face, "have different pictures, or numbers of faces"),
        ("face", change_a_name, "have different pictures"),
        ("easy", change_a_number, "not WIDER's form: ValueError: 0--Composed/0 has no face 99"),
        ("hard", drop_the_numbers, "not WIDER's form: KeyError: 'gt_list'"),
        ("hard", drop_a_picture, "not WIDER's form: ValueError: zip"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    make_wider: Callable[..., WiderFolder], name: str, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    from scipy import io

    folder = make_wider(1).path
    (path,) = folder.rglob(f"wider_{name}_val.mat")
    cells = {key: value for key, value in io.loadmat(path).items() if not key.startswith("__")}
    change(cells)
    io.savemat(path, cells)
    with pytest.raises(ArtifactError, match=words):
        Dataset.load(folder)


def test_the_faces_are_those_the_numbers_are_of(make_wider: Callable[..., WiderFolder]) -> None:
    from scipy import io

    folder = make_wider(1)
    (path,) = folder.path.rglob("wider_face_val.mat")
    cells = {key: value for key, value in io.loadmat(path).items() if not key.startswith("__")}
    cells["face_bbx_list"][0, 0][0, 0] = cells["face_bbx_list"][0, 0][0, 0] + 1
    io.savemat(path, cells)
    (entry,) = Dataset.load(folder.path).entries
    assert np.array_equal(entry.faces, folder.faces[0] + 1)


def test_what_is_no_matlab_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wider_easy_val.mat"
    for content in (b"", b"hello", bytes(200)):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="not WIDER's form"):
            read_subset(path, {})


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 9, 19], [1.5, 2.25, 7.125, 8]], np.float32)
    faces = Detections(boxes, np.array([0.75, np.float32(0.1)]), no_landmarks(2), 20, 20)
    found = wider.rows(faces)
    assert found[0].tolist() == [0, 0, 10, 20, 0.75]
    path = tmp_path / "event" / "a.txt"
    write_result(path, "a", found)
    assert path.read_text().splitlines()[:3] == ["a", "2", "0.000 0.000 10.000 20.000 0.750000000"]
    assert np.allclose(read_result(path), found, rtol=0, atol=1e-9)
    write_result(path, "a", found[:0])
    assert read_result(path).shape == (0, 5)


@pytest.mark.parametrize(
    "text", ["", "a\n", "a\n2\n1 2 3 4 5\n", "a\n1\n1 2 3 4\n", "a\n1\n1 2 3 4 nan\n", "a\n0\n1 2 3 4 5\n"]
)
def test_other_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"a\.txt"):
        read_result(path)
