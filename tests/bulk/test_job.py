"""A job's folder: whose it is, and what of it is done."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bulk import schema
from bulk.errors import UsageError
from bulk.job import Counts, Folder, Job
from bulk.listing import Columns, Piece
from bulk.schema import Row
from bulk.store import Store
from clients.results import Result
from handler.detections import LANDMARKS
from tests.checkout import ROOT

JOB = Job("/input", {"name": "centerface"}, {"max_faces": 3}, "parquet", Columns(), 4)
POINTS = {name: [1.5, 2.25] for name in LANDMARKS}
ANSWER = {
    "model": {"name": "m", "version": "1.0", "weights": "w", "engine": "ort", "precision": "fp32"},
    "image": {"width": 64, "height": 48},
    "canvas": "96x128",
    "scale": 0.333333,
    "faces": [
        {"box": [0.1, 0.2, 10.3, 20.4], "score": 0.928771, "landmarks": POINTS},
        {"box": [1.0, 2.0, 3.0, 4.0], "score": 0.5, "landmarks": None},
    ],
    "timing_ms": {"decode": 1.0},
    "batch_size": 1,
}
ROWS = [
    Row.of("a.jpg", 200, json.dumps(ANSWER).encode()),
    Row.of("b.jpg", 400, b'{"error": {"code": 400, "type": "invalid_image", "message": "no picture"}}'),
    Row.of("c.jpg", 500, b'{"error": {"code": 500, "type": "engine", "message": "a fault"}}'),
    Row.unread("d\udcff.jpg", "gone"),
]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path}/out")


def test_the_names_of_landmarks_are_the_handlers() -> None:
    assert schema.LANDMARKS == LANDMARKS


def test_a_part_is_done_when_its_last_file_is_there(store: Store) -> None:
    folder = Folder(store, "parquet")
    assert not folder.has(JOB)
    folder.begin(JOB, [[Piece("a.jpg")]])
    assert folder.has(JOB)
    assert folder.done() == {}
    assert folder.counts(7) is None
    counts = folder.write(7, ROWS)
    assert counts == Counts(images=4, failed=3, again=2, faces=2) == folder.counts(7)
    assert folder.done() == {7: counts}
    # Written again it is the same: no double.
    assert folder.write(7, ROWS) == counts
    assert store.names("faces") == store.names("errors") == ["part-0000007.parquet"]


def test_a_process_that_is_killed_leaves_whole_files_alone(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    store.write("faces/whole", b"whole")
    script = (
        "import os; from bulk.store import Store; os.fsync = lambda file: os._exit(9); "
        f"Store({store.url!r}).write('faces/killed', b'half')"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 9
    assert [path.name for path in (tmp_path / "out" / "faces").iterdir()] == ["whole"]
    store.tidy()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["faces"]


def test_another_job_does_not_go_on_here(store: Store) -> None:
    folder = Folder(store, "parquet")
    folder.begin(JOB, [])
    changes: dict[str, Any] = {"input": "/other", "options": {}, "part_images": 5, "archive": {"name": "mogface"}}
    for name, value in changes.items():
        with pytest.raises(UsageError, match=f"its {name} is "):
            folder.has(dataclasses.replace(JOB, **{name: value}))


def test_a_folder_of_somebody_elses_is_left_alone(store: Store) -> None:
    store.write("keep.txt", b"-")
    with pytest.raises(UsageError, match=r"holds keep.txt and no job.json"):
        Folder(store, "parquet").has(JOB)


def test_a_start_that_was_cut_off_is_begun_again(store: Store) -> None:
    store.write("listing.parquet", b"of a run that wrote no job.json")
    assert not Folder(store, "parquet").has(JOB)


def test_faces_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(schema.faces_file(ROWS, "parquet"))
    table = pq.ParquetFile(tmp_path / "a").read()
    assert table.schema.equals(schema.FACES)
    [row] = table.to_pylist()
    points = {name: {"x": 1.5, "y": 2.25} for name in LANDMARKS}
    assert row == {
        "path": "a.jpg",
        "width": 64,
        "height": 48,
        "canvas": "96x128",
        "scale": 0.333333,
        "faces": [
            {"x1": 0.1, "y1": 0.2, "x2": 10.3, "y2": 20.4, "score": 0.928771, "landmarks": points},
            {"x1": 1.0, "y1": 2.0, "x2": 3.0, "y2": 4.0, "score": 0.5, "landmarks": None},
        ],
        "model": "m",
        "version": "1.0",
        "weights": "w",
        "engine": "ort",
        "precision": "fp32",
    }


def test_errors_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(schema.errors_file(ROWS, "parquet"))
    rows = pq.ParquetFile(tmp_path / "a").read().to_pylist()
    assert [(row["path"], row["code"], row["type"]) for row in rows] == [
        ("b.jpg", 400, "invalid_image"),
        ("c.jpg", 500, "engine"),
        ("d\\udcff.jpg", None, "unreadable"),
    ]


def test_lines_are_those_of_mogface_detect() -> None:
    [face] = [Result.parse(line + b"\n") for line in schema.faces_file(ROWS, "jsonl").splitlines()]
    assert face.answer is not None
    assert face.answer.faces[0].box == (0.1, 0.2, 10.3, 20.4)
    errors = [Result.parse(line + b"\n") for line in schema.errors_file(ROWS, "jsonl").splitlines()]
    assert [each.path for each in errors] == ["b.jpg", "c.jpg", "d\udcff.jpg"]
    assert errors[2].error == {"code": None, "type": "unreadable", "message": "gone"}


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    store.write("a", b"first")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.write("a", b"second")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]
    assert store.read("a") == b"first"


def test_a_file_system_whose_files_appear_by_and_by_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w"):
        pass
    with pytest.raises(UsageError, match="half written"):
        Store(f"zip://out::file://{tmp_path}/a.zip")
