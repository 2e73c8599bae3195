"""``mogface-bulk`` on a Ray cluster of several real nodes, one of which is lost."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archive.server import Server
from tests.bulk.conftest import BAD, Bulk, command, environment, rows
from tests.checkout import ROOT

IMAGES = 60 + len(BAD)
PARTS = 16


@pytest.fixture(scope="module")
def whole(cluster: Any, collection: Path, bulk: Bulk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job that lost nothing."""
    output = tmp_path_factory.mktemp("whole") / "output"
    done = bulk(collection, output, "--part-images", "4", address=cluster.address)
    assert done.returncode == 1, done.stderr
    assert "on 3 nodes, 2 workers of 1 cores" in done.stderr
    assert f"{IMAGES} images, 60 faces, {len(BAD)} failed" in done.stderr
    return output


def test_faces_are_the_servers_digit_for_digit(whole: Path, collection: Path, server: Server) -> None:
    address = f"{server.inference}/predictions/centerface"
    found = rows(whole, "faces")
    assert [row["path"] for row in found] == sorted(map(str, collection.rglob("[0-9]*.jpg")))
    # One of each size: the others are the same pictures.
    for row in found[:3] + found[-3:]:
        data = Path(row["path"]).read_bytes()
        answer = httpx.post(address, content=data, headers=server.headers() | {"content-type": "image/jpeg"}).json()
        [face] = row["faces"]
        [expected] = answer["faces"]
        assert json.dumps([face[name] for name in ("x1", "y1", "x2", "y2")]) == json.dumps(expected["box"])
        points = {name: [point["x"], point["y"]] for name, point in face["landmarks"].items()}
        assert json.dumps([face["score"], points]) == json.dumps([expected["score"], expected["landmarks"]])
        told = {key: row[key] for key in ("width", "height", "canvas", "scale")}
        assert told == {**answer["image"], "canvas": answer["canvas"], "scale": answer["scale"]}
        model = {"name": row["model"], **{key: row[key] for key in ("version", "weights", "engine", "precision")}}
        assert model == answer["model"]
    for row in rows(whole, "errors"):
        data = Path(row["path"]).read_bytes()
        refused = httpx.post(address, content=data, headers=server.headers() | {"content-type": "image/jpeg"})
        assert refused.json()["error"] == {name: row[name] for name in ("code", "type", "message")}
    assert [Path(row["path"]).name for row in rows(whole, "errors")] == sorted(BAD)


def test_a_job_that_is_done_asks_nothing_again(cluster: Any, whole: Path, collection: Path, bulk: Bulk) -> None:
    before = {file: file.stat().st_mtime_ns for file in whole.rglob("part-*")}
    assert len(before) == 3 * PARTS
    done = bulk(collection, whole, "--part-images", "4", address=cluster.address)
    assert done.returncode == 1, done.stderr
    assert {file: file.stat().st_mtime_ns for file in whole.rglob("part-*")} == before
    other = bulk(collection, whole, "--part-images", "4", "--score-threshold", "0.9", address=cluster.address)
    assert other.returncode == 2
    assert "its options is {}, and {'score_threshold': 0.9} is asked now" in other.stderr


def test_rows_of_parquet(cluster: Any, collection: Path, bulk: Bulk, tmp_path: Path) -> None:
    pictures = [path.read_bytes() for path in sorted(collection.glob("*.jpg"))[:7]]
    table = pa.table({"photo": pa.array([*pictures, None, b"none"], pa.large_binary()), "key": [*range(8), None]})
    (tmp_path / "input").mkdir()
    pq.write_table(table, tmp_path / "input" / "a.parquet", row_group_size=3)
    asked = (tmp_path / "input", tmp_path / "output", "--column", "photo", "--id-column", "key", "--part-images", "4")
    done = bulk(*asked, "--no-landmarks", "--max-faces", "1", address=cluster.address)
    assert done.returncode == 1, done.stderr
    found = rows(tmp_path / "output", "faces")
    assert [row["path"] for row in found] == list("0123456")
    assert all(len(row["faces"]) == 1 and row["faces"][0]["landmarks"] is None for row in found)
    unread, refused = rows(tmp_path / "output", "errors")
    assert (unread["path"], unread["code"], unread["type"]) == ("7", None, "unreadable")
    assert (refused["path"], refused["type"]) == (f"{tmp_path}/input/a.parquet#8", "invalid_image")
    # Whole row groups: two of three rows and one.
    assert len(list((tmp_path / "output" / "done").iterdir())) == 2


def test_a_node_that_is_lost_leaves_neither_doubles_nor_holes(
    cluster: Any, whole: Path, collection: Path, centerface_mar: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    running = subprocess.Popen(
        command(centerface_mar, collection, output, "--part-images", "4", address=cluster.address),
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while len(list((output / "done").glob("part-*.json"))) < 2:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
    assert len(list((output / "done").glob("part-*.json"))) < PARTS, "it was over before a node was lost"
    _, said = running.communicate(timeout=200)
    assert running.returncode == 1, said
    # The same files, byte by byte, as of the run that lost nothing.
    for kind in ("faces", "errors", "done"):
        files = {file.name: file.read_bytes() for file in (output / kind).iterdir()}
        assert files == {file.name: file.read_bytes() for file in (whole / kind).iterdir()}
        assert len(files) == PARTS
    paths = [row["path"] for kind in ("faces", "errors") for row in rows(output, kind)]
    assert len(paths) == len(set(paths)) == IMAGES
