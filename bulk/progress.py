"""How far a job is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from tqdm import tqdm

from bulk.job import Remaining

#: Between two lines where the error stream is no terminal.
_LINE_S = 10.0
_LOOK_S = 1.0


class Tally:
    """Counts by part, told by every worker. An actor: a part that is begun again replaces what it said before."""

    def __init__(self) -> None:
        self._images: dict[int, int] = {}
        self._failed: dict[int, int] = {}
        self._faults: dict[int, str] = {}
        self._begun: dict[int, int] = {}

    def begin(self, part: int) -> int:
        """A part is begun; for the how many-th time."""
        self._begun[part] = self._begun.get(part, 0) + 1
        return self._begun[part]

    def report(self, part: int, images: int, failed: int) -> None:
        """So many images of a part are through."""
        self._images[part], self._failed[part] = images, failed

    def fault(self, part: int, reason: str) -> None:
        """A part could not be finished."""
        self._faults[part] = reason

    def counts(self) -> tuple[int, int]:
        """Images that are through, and those that failed."""
        return sum(self._images.values()), sum(self._failed.values())

    def faults(self) -> dict[int, str]:
        """Part to the reason why it could not be finished, so far."""
        return self._faults


class Progress:
    """Shows the counts while a run goes on; a context manager.

    Args:
        start: what of the job was left when the run began.
        counts: images through and failed since; may raise once the cluster is gone.
    """

    def __init__(self, start: Remaining, counts: Callable[[], tuple[int, int]]) -> None:
        self._start = start
        self._counts = counts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._bar = tqdm(
            total=start.images,
            initial=start.before.images,
            unit="image",
            disable=not self._terminal,
            dynamic_ncols=True,
        )

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        self._thread.join()
        self._bar.close()

    def _show(self) -> None:
        lined = self._begun
        while not self._stop.wait(_LOOK_S):
            try:
                images, failed = self._counts()
            except ray.exceptions.RayError:
                # The run itself says what has become of the cluster.
                continue
            self._bar.set_postfix(failed=self._start.before.failed + failed, refresh=False)
            self._bar.update(self._start.before.images + images - self._bar.n)
            if not self._terminal and time.monotonic() - lined >= _LINE_S:
                lined = time.monotonic()
                print(self._line(images, failed), file=sys.stderr, flush=True)

    def _line(self, images: int, failed: int) -> str:
        rate = images / (time.monotonic() - self._begun)
        done = self._start.before.images + images
        left = f"{(self._start.images - done) / rate / 60:.1f} min left" if rate else "starting"
        return (
            f"mogface-bulk: {done:,} of {self._start.images:,} images, {rate:.1f} a second, "
            f"{self._start.before.failed + failed:,} failed, {left}"
        )


def tally() -> Any:
    """A Tally on this node: it is not lost with another one."""
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), False)
    return ray.remote(Tally).options(num_cpus=0, scheduling_strategy=here).remote()
