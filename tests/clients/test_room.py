"""Memory for one more worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clients import room
from clients.errors import UsageError
from clients.version import Version, Worker


def version(*pids: int) -> Version:
    workers = tuple(Worker(str(pid), "READY", pid, False, 0) for pid in pids)
    return Version("centerface", "1.0", 1, 1, 8, 1, 0, workers)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MB free; this process has more."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:     1000 kB\n")
    monkeypatch.setattr(room, "_MEMORY", tmp_path / "meminfo")


@pytest.mark.parametrize("address", ["http://127.0.0.1:8081", "http://localhost:8081", "http://[::1]:8081"])
def test_what_does_not_fit_is_refused_with_both_numbers(full: None, address: str) -> None:
    with pytest.raises(UsageError, match=r"has 1 workers, and one more needs about \d+ MB, of which 1 are free"):
        room.require(address, version(os.getpid()))


@pytest.mark.usefixtures("full")
def test_of_another_machine_nothing_is_known() -> None:
    room.require("http://192.0.2.1:8081", version(os.getpid()))
    room.require("http://127.0.0.1:8081", version())
    # No such process: another container's.
    room.require("http://127.0.0.1:8081", version(2**22 + 1))


def test_what_fits_passes() -> None:
    room.require("http://127.0.0.1:8081", version(os.getpid()))
