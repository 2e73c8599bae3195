"""What the server's processes hold: memory, files and threads, of the front end and of each worker, over time."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from archive.server import Server, java_home
from tests.soak.disturb import WORKER, Window

EVERY_S = 2.0
_MB = 1e6


@dataclass(frozen=True)
class Held:
    """Of one process.

    Attributes:
        rss: resident memory, MB.
        files: open descriptors.
        threads: its number.
    """

    rss: float
    files: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """All processes at one time.

    Attributes:
        at: s on the monotonic clock.
        front: the front end.
        workers: by pid.
    """

    at: float
    front: Held
    workers: dict[int, Held]


class Watch:
    """Of a running server.

    Args:
        server: its launcher is the family's head.

    Raises:
        ProcessLookupError: it has no front end.

    Attributes:
        samples: so far.
        heap: of the front end, what lives after a full collection: (s on the monotonic clock, MB).
        ended: when the front end was found to be gone; None while it is there.
    """

    def __init__(self, server: Server) -> None:
        self._launcher = psutil.Process(server.pid)
        fronts = [process for process in self._launcher.children(recursive=True) if "java" in process.name()]
        if not fronts:
            raise ProcessLookupError("the server has no front end")
        self._front = fronts[0]
        self._jcmd = java_home() / "bin" / "jcmd"
        self.samples: list[Sample] = []
        self.heap: list[tuple[float, float]] = []
        self.ended: float | None = None

    def pids(self) -> set[int]:
        """Of the workers now."""
        return {process.pid for process in self._workers()}

    def look(self) -> None:
        """Take one sample; none once the front end is gone."""
        try:
            front = _held(self._front)
        except psutil.NoSuchProcess:
            self.ended = self.ended or time.monotonic()
            return
        workers = {}
        for process in self._workers():
            # One that ends meanwhile holds nothing.
            try:
                workers[process.pid] = _held(process)
            except psutil.NoSuchProcess:
                continue
        self.samples.append(Sample(time.monotonic(), front, workers))

    def collect(self) -> None:
        """Have the front end collect its garbage, and note what lives; nothing where its Java has no jcmd."""
        if Path(self._jcmd).is_file():
            self._ask_java("GC.run")
            found = re.search(r"used (\d+)K", self._ask_java("GC.heap_info"))
            if found:
                self.heap.append((time.monotonic(), int(found[1]) * 1024 / _MB))

    def _ask_java(self, command: str) -> str:
        done = subprocess.run(
            [self._jcmd, str(self._front.pid), command], capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout

    def _workers(self) -> list[psutil.Process]:
        try:
            family = self._front.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in family if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("model_service_worker.py") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _held(process: psutil.Process) -> Held:
    with process.oneshot():
        return Held(process.memory_info().rss / _MB, process.num_fds(), process.num_threads())


def deaths(samples: Sequence[Sample], windows: Sequence[Window]) -> tuple[list[int], int]:
    """Workers that ended though nobody ended them, by pid, and how many began anew in all.

    Args:
        samples: in order.
        windows: when workers were killed or scaled, among others.
    """
    ours = [window for window in windows if window.kind in WORKER]
    died, begun = [], 0
    for before, after in itertools.pairwise(samples):
        begun += len(after.workers.keys() - before.workers.keys())
        if not any(window.meets(before.at, after.at) for window in ours):
            died += sorted(before.workers.keys() - after.workers.keys())
    return died, begun
