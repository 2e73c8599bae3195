"""``mogface-bulk`` on this machine alone: interrupted, gone on with, refused."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulk.cli import main
from clients.results import Result
from tests.bulk.conftest import BAD, Bulk, command, environment
from tests.checkout import ROOT


def listeners(process: psutil.Process) -> dict[str, str]:
    """Address to process, of all that listens on the network below a process."""
    found = {}
    for each in [process, *process.children(recursive=True)]:
        try:
            for connection in each.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.ip] = each.name()
        except psutil.NoSuchProcess:
            continue
    return found


def test_interrupted_and_gone_on_with(
    cluster: Any, collection: Path, centerface_mar: Path, bulk: Bulk, tmp_path: Path
) -> None:
    packed, output = tmp_path / "collection.zip", tmp_path / "output"
    with zipfile.ZipFile(packed, "w") as file:
        for path in sorted(collection.rglob("*.*")):
            file.write(path, path.relative_to(collection))
    # Any URL that fsspec knows: here a file inside a file.
    asked = (f"zip://**/*::file://{packed}", output, "--format", "jsonl", "--part-images", "4", "--threads", "1")
    running = subprocess.Popen(
        command(centerface_mar, *asked, "--workers", "1"),
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
    heard = listeners(psutil.Process(running.pid))
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert heard
    assert {address.removeprefix("::ffff:") for address in heard} == {"127.0.0.1"}, heard
    before = {file.name: file.stat().st_mtime_ns for file in (output / "done").iterdir()}
    assert 2 <= len(before) < 16
    assert not (output / "summary.json").exists()

    # Where it goes on is another matter than what it does.
    done = bulk(*asked, "--workers", "1", address=cluster.address)
    assert done.returncode == 1, done.stderr
    after = {file.name: file.stat().st_mtime_ns for file in (output / "done").iterdir()}
    assert before.items() <= after.items()
    assert json.loads((output / "summary.json").read_bytes()) == {"images": 63, "failed": 3, "again": 0, "faces": 60}
    # Lines as of `mogface detect`, read by the client's own parser.
    lines = [line + b"\n" for file in sorted((output / "faces").iterdir()) for line in file.read_bytes().splitlines()]
    answers = [Result.parse(line) for line in lines]
    assert all(each.answer is not None and len(each.answer.faces) == 1 for each in answers)
    errors = [
        Result.parse(line + b"\n") for file in (output / "errors").iterdir() for line in file.read_bytes().splitlines()
    ]
    assert {each.path.partition("::")[0].rpartition("/")[2] for each in errors} == set(BAD)
    assert len({each.path for each in [*answers, *errors]}) == len(answers) + len(errors) == 63


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{empty}", "{out}"), "names no file, no folder or pattern"),
        (("{collection}", "{out}", "--column", "x"), "is for Parquet files"),
        (("{collection}", "{collection}/out"), "lies inside"),
        (("{collection}", "sftp://host/out"), "cannot be opened|half written"),
        (("{collection}", "{out}", "--canvas", "1x1"), "canvas"),
        (("{collection}", "{out}", "--score-threshold", "2"), "expected a number from 0 to 1"),
        (("nope://x", "{out}"), "cannot be opened"),
        (("{collection}", "{empty}", "--archive", "{notes}"), "is no archive"),
        (("{collection}", "{new}", "--address", "127.0.0.1:9"), "no Ray cluster at 127.0.0.1:9: .*refused"),
        (("{collection}", "{new}", "--address", "ray://host:1"), "expected HOST:PORT, or auto"),
        (("{collection}", "{foreign}"), "holds keep.txt and no job.json"),
    ],
)
def test_wrong_usage_ends_with_2(
    collection: Path, centerface_mar: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    places = {"collection": collection, "empty": tmp_path / "empty", "out": tmp_path / "out", "new": tmp_path / "new"}
    places |= {"foreign": tmp_path / "foreign", "notes": collection / "notes.txt"}
    places["empty"].mkdir()
    places["foreign"].mkdir()
    (places["foreign"] / "keep.txt").write_text("another's")
    done = run_main(["--archive", str(centerface_mar), *(each.format(**places) for each in arguments)])
    assert done[0] == 2, done
    assert re.search(words, done[1]), done[1]
    assert not places["out"].exists()


def run_main(arguments: list[str]) -> tuple[int, str]:
    """In this process: none of these comes as far as a cluster."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return main(arguments), said.getvalue()
