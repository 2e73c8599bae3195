"""A command whose standard streams were closed, or take nothing more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.fakes import fake_rest
from tests.clients.test_answer import TEXT

ROOT = Path(__file__).parents[2]
Shell = Callable[[str], "subprocess.CompletedProcess[str]"]
COMMAND = f"{sys.executable} -m clients.cli"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server that finds the same two faces in everything."""
    with fake_rest((200, {}, TEXT.encode())) as made:
        yield made


@pytest.fixture
def shell(tmp_path: Path, address: str) -> Shell:
    (tmp_path / "a.jpg").write_bytes(b"-")

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"{COMMAND} {line}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MOGFACE_ADDRESS": address},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_what_is_not_needed_may_be_closed(shell: Shell, closed: str) -> None:
    done = shell(f"detect a.jpg {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["path"] == "a.jpg"


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_results_go_to_their_file(shell: Shell, closed: str, tmp_path: Path) -> None:
    """What is opened first would be the standard output, or the stream of errors."""
    done = shell(f"detect a.jpg --output o {closed}")
    assert (done.returncode, done.stdout) == (0, "")
    [line] = (tmp_path / "o").read_text().splitlines()
    assert json.loads(line)["path"] == "a.jpg"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("detect a.jpg >&-", 1, "mogface detect: standard output cannot be read or written: Bad file descriptor"),
        ("detect - <&-", 2, "mogface detect: the standard input cannot be read: Bad file descriptor"),
        ("detect a.jpg >/dev/full", 1, "mogface detect: standard output cannot be .*: No space left on device"),
        ("detect a.jpg --format table >/dev/full", 1, "mogface detect: standard output cannot be .*: No space left"),
        ("--version >&-", 1, "mogface: standard output cannot be read or written: Bad file descriptor"),
        ("--version >/dev/full", 1, "mogface: standard output cannot be read or written: No space left on device"),
        ("detect missing.jpg <&- >&-", 2, "mogface detect: 'missing.jpg' names no file"),
    ],
)
def test_what_is_needed_is_named(shell: Shell, line: str, code: int, told: str) -> None:
    done = shell(line)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert re.match(told, done.stderr)


def test_errors_do_not_go_where_results_do(shell: Shell) -> None:
    """print() to a stream that Python has none for goes to the standard output."""
    done = shell("detect missing.jpg 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
