"""``python -m load_tests`` against a real server: what it writes, and that it can fail."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from archive import properties
from archive.build import Workspace
from archive.server import Server
from load_tests import noop
from tests.checkout import ROOT
from tests.serving.conftest import Start


def load_tests(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "load_tests", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def run(server: Server, output: Path, *arguments: str, address: str = "", model: str = "centerface") -> Any:
    asked: list[str | Path] = ["--address", address or server.inference, "--model", model, "--output", output]
    return load_tests("run", *asked, "--token-file", server.folder / "key_file.json", *arguments)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_closed_and_open_load_over_both_protocols(server: Server, tmp_path: Path, scheme: str) -> None:
    address = server.inference if scheme == "http" else f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"
    sizes = ("--sizes", "160x120", "120x160")
    done = run(server, tmp_path, *sizes, "--users", "1", "3", "--rate", "5", "--seconds", "2", address=address)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(step["kind"], step["level"]) for step in summary["steps"]] == [("closed", 1), ("closed", 3), ("open", 5)]
    rows = list(csv.DictReader((tmp_path / "samples.csv").open()))
    assert len(rows) == sum(step["answered"] for step in summary["steps"]) > 10
    assert {row["picture"] for row in rows} == {"160x120", "120x160"}
    assert all(row["outcome"] == "ok" and float(row["network_ms"]) > 0 for row in rows)
    # The arrivals of two seconds at five a second, by the seed.
    assert 3 <= summary["steps"][2]["requests"] <= 20
    with Image.open(tmp_path / "run.png") as picture:
        assert picture.size[0] > 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-p99", "0.001"), "the limit is 0.001 ms"),
        (("--min-rate", "100000"), "the least allowed is 100000"),
    ],
)
def test_a_limit_that_is_passed_ends_with_1(server: Server, tmp_path: Path, arguments: Any, words: str) -> None:
    done = run(server, tmp_path, "--sizes", "160x120", "--users", "1", "--seconds", "0.5", *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert words in done.stdout
    assert json.loads((tmp_path / "summary.json").read_text())["broken"]


def test_pictures_of_the_users_own(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    Image.new("RGB", (80, 60)).save(folder / "blank.png")
    done = run(server, tmp_path, "--photographs", str(folder), "--users", "1", "--seconds", "0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "damaged.jpg").write_bytes(b"\xff\xd8\xff no picture")
    done = run(server, tmp_path, "--photographs", str(folder), "--users", "1", "--seconds", "0.5")
    assert done.returncode == 2
    assert "not an image" in done.stderr or "image" in done.stderr


def test_a_server_that_finds_no_face_does_not_pass(start: Start, workspace: Workspace, tmp_path: Path) -> None:
    noop.pack(workspace.store)
    quiet = start("noop", changes={"models": "{}", "default_workers_per_model": "1"})
    done = run(quiet, tmp_path, "--users", "1", "--seconds", "0.5", model="noop")
    assert done.returncode == 2
    assert "found 0 faces" in done.stderr
    done = run(quiet, tmp_path, "--users", "1", "--seconds", "0.5", "--any-answer", model="noop")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_token_and_no_server_are_said(server: Server, tmp_path: Path) -> None:
    done = load_tests("run", "--address", server.inference, "--output", tmp_path)
    assert done.returncode == 2
    assert "token" in done.stderr.lower()
    done = load_tests("run", "--address", "http://127.0.0.1:9", "--output", tmp_path)
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr


def test_a_sweep_goes_on_where_it_was_and_is_tuned_by(centerface_mar: Path, tmp_path: Path) -> None:
    results, output = tmp_path / "sweep", tmp_path / "config.properties"
    grid = ("--archives", centerface_mar, "--results", results)
    asked = ("sweep", *grid, "--workers", "1", "--delays", "1", "--seconds", "1", "--batches")
    first = load_tests(*asked, "1")
    assert first.returncode == 0, first.stderr
    before = json.loads((results / "points.json").read_text())["points"]
    second = load_tests(*asked, "1", "2")
    assert second.returncode == 0, second.stderr
    after = json.loads((results / "points.json").read_text())["points"]
    assert after[0] == before[0]
    assert [point["point"]["batch"] for point in after] == [1, 2]
    assert all(level["answered"] and not level["failures"] for point in after for level in point["levels"])
    assert after[0]["worker_mb"] > 100
    assert (results / "pareto.png").stat().st_size > 1000
    assert "front" in second.stdout

    tuned = load_tests("tune", *grid, "--throughput", "--output", output)
    assert tuned.returncode == 0, tuned.stderr
    best = max((level["rate"], point["point"]["batch"]) for point in after for level in point["levels"])
    [entry] = properties.models(properties.read(output))["centerface"].values()
    # Rates within noise of the best are equal, so that only a clear winner is asserted.
    rates = {point["point"]["batch"]: max(level["rate"] for level in point["levels"]) for point in after}
    if min(rates.values()) < 0.9 * best[0]:
        assert entry["batchSize"] == best[1]
    assert f"{entry['batchSize']}" in {"1", "2"}
    assert "answers a second" in output.read_text()
    refused = load_tests("tune", *grid, "--p99", "0.5", "--output", tmp_path / "none.properties")
    assert refused.returncode == 2
    assert "the least is" in refused.stderr
    assert not (tmp_path / "none.properties").exists()


def processes(words: str) -> list[psutil.Process]:
    """Those that have the words on their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if words in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.parametrize("second", [False, True], ids=["once", "twice"])
def test_a_sweep_that_is_told_to_end_keeps_what_it_measured_and_stops_its_server(
    centerface_mar: Path, tmp_path: Path, second: bool
) -> None:
    results = tmp_path / "sweep"
    # A socket's path has a hundred characters, which pytest's folders use up.
    scratch = tempfile.TemporaryDirectory(prefix="sweep-")
    temp = Path(scratch.name)
    grid: list[str | Path] = ["--archives", centerface_mar, "--results", results, "--workers", "1"]
    grid += ["--delays", "1", "--seconds", "1"]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "load_tests", "sweep", *map(str, grid), "--batches", "1", "2", "3"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temp)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # The first point is measured and the second one's server is under way.
        deadline = time.monotonic() + 240
        while not ((results / "points.json").exists() and processes(f"{temp}/mogface-sweep-")):
            assert sweep.poll() is None, sweep.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1.0)
        sweep.send_signal(signal.SIGTERM)
        if second:
            time.sleep(0.3)
            sweep.send_signal(signal.SIGTERM)
        said, why = sweep.communicate(timeout=90)
    finally:
        sweep.kill()
    assert sweep.returncode == 130, said + why
    assert why.splitlines()[-1] == "stopped"
    assert "Traceback" not in why
    # Nobody watches: no line is redrawn.
    assert "\r" not in why
    assert any(line.startswith("points: 1 of 3 point") for line in why.splitlines()), why
    assert processes(f"{temp}/mogface-sweep-") == []
    assert list(temp.glob("mogface-sweep-*")) == []
    scratch.cleanup()
    [point] = json.loads((results / "points.json").read_text())["points"]
    assert point["point"]["batch"] == 1
    assert point["levels"][0]["answered"] > 0


def test_results_that_are_none_are_refused_by_name(centerface_mar: Path, tmp_path: Path) -> None:
    (tmp_path / "points.json").write_text('{"points": [{"point": {}}]}')
    for verb in (("sweep",), ("tune", "--throughput", "--output", tmp_path / "config.properties")):
        done = load_tests(*verb, "--archives", centerface_mar, "--results", tmp_path)
        assert done.returncode == 2
        assert f"{tmp_path}/points.json holds no results of a sweep: points[0]" in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "points.json").read_text() == '{"points": [{"point": {}}]}'


def test_watching_says_where_a_batch_alone_is_too_slow(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path, "--sizes", "160x120", "--users", "1", "--seconds", "1").returncode == 0
    addresses = ("--management", server.management, "--metrics", server.values["metrics_address"])
    asked = ("tune", "--watch", *addresses, "--token-file", server.folder / "key_file.json", "--p99")
    # Counts leave a worker once a second.
    time.sleep(1.5)
    refused = load_tests(*asked, "1")
    assert refused.returncode == 2
    assert "a batch alone takes" in refused.stderr
    watching = subprocess.Popen(
        [sys.executable, "-m", "load_tests", *map(str, asked), "60000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert "p99 goal 60000 ms: a mean wait of" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=30)
    assert watching.returncode == 130, said
    assert "Traceback" not in said
