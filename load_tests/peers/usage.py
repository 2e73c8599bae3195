"""What a process and all that it started take: seconds of the processor, and memory."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import psutil

_EVERY_S = 0.5


class Usage:
    """A context manager that measures a tree of processes until its block ends.

    Attributes:
        cpu_s: processor seconds, of user and system, that the tree spent in the block.
        pss_mb: the most memory it held, MB: the sum of its processes' proportional set sizes, in which a page that
            several share counts once. Read twice a second: a shorter peak is missed.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before = 0.0
        self.cpu_s = 0.0
        self.pss_mb = 0.0

    def _tree(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _cpu(self) -> float:
        total = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            # Of children that have ended and were waited for.
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def _watch(self) -> None:
        while True:
            self.pss_mb = max(self.pss_mb, sum(_pss(process.pid) for process in self._tree()) / 1e6)
            if self._end.wait(_EVERY_S):
                return

    def __enter__(self) -> Usage:
        self._before = self._cpu()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cpu_s = self._cpu() - self._before
        self._end.set()
        self._thread.join()


def _pss(pid: int) -> int:
    """Bytes; 0 of a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    [kilobytes] = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(kilobytes) * 1024
