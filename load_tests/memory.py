"""The most memory that a model's workers held while something ran."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

from archive.server import Server

_EVERY_S = 0.25
_MB = 1e6


class Peak:
    """A context manager that watches until its block ends.

    Attributes:
        worker_mb: resident, of all workers of the model together, MB.
        gpu_mb: in use on all GPUs together, by whatever program, MB; None without a GPU.
    """

    def __init__(self, server: Server, model: str) -> None:
        self._pids = [worker["pid"] for version in server.describe(model) for worker in version["workers"]]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.worker_mb = 0.0
        self.gpu_mb: float | None = None

    def _watch(self) -> None:
        while True:
            self.worker_mb = max(self.worker_mb, sum(_resident(pid) for pid in self._pids) / _MB)
            used = _gpus_used()
            if used is not None:
                self.gpu_mb = max(self.gpu_mb or 0.0, used / _MB)
            if self._end.wait(_EVERY_S):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _gpus_used() -> int | None:
    """Bytes in use on all cards; None where NVIDIA's library or a card is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - not installed, no driver, no card: all mean that there is nothing to say
        return None
    cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return sum(int(pynvml.nvmlDeviceGetMemoryInfo(card).used) for card in cards)
