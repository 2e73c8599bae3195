"""A run of sections within a budget of time: each stands alone, and what was found is on the disk after each."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Found = dict[str, Any]


class Budget:
    """Minutes to spend, and what was found.

    Args:
        minutes: of the whole run.
        output: the JSON file.

    Attributes:
        sections: each one's result by its name; ``state`` is ``ok``, ``failed`` or ``not run``, the latter two with
            a ``reason``.
    """

    def __init__(self, minutes: float, output: Path) -> None:
        self.sections: dict[str, Found] = {}
        self._minutes = minutes
        self._end = time.monotonic() + minutes * 60
        self._output = output

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    @property
    def failed(self) -> bool:
        """Whether a section did."""
        return any(found["state"] == "failed" for found in self.sections.values())

    def section(self, name: str, work: Callable[[Found], None], needs_s: float) -> Found:
        """Run one section, if so many seconds are left; its fault is its own.

        Args:
            name: of the section.
            work: writes what it finds into the result, where it stays if the section fails later; it may say its
                own ``state``.
            needs_s: seconds without which it is not begun.
        """
        started = time.monotonic()
        found: Found = {"state": "ok"}
        if self.left < needs_s:
            found.update(state="not run", reason=f"{max(0.0, self.left):.0f} s left, {needs_s:g} needed")
        else:
            try:
                with self._alarm():
                    work(found)
            except Exception as error:  # noqa: BLE001 - whatever the machine comes up with is the section's result
                found.update(state="failed", reason=f"{type(error).__name__}: {error}"[:2000])
                traceback.print_exc()
        found["seconds"] = round(time.monotonic() - started, 1)
        self.sections[name] = found
        self._output.write_text(json.dumps({"sections": self.sections}, indent=2), encoding="utf-8")
        print(
            f"{name:<12} {found['state']:<8} {found['seconds']:6.1f} s  {found.get('reason', '')}".rstrip(), flush=True
        )
        return found

    @contextmanager
    def _alarm(self) -> Iterator[None]:
        """A TimeoutError in the block when the budget is spent; a call into a library ends first."""

        def ring(*_: object) -> None:
            raise TimeoutError(f"the budget of {self._minutes:g} minutes is spent")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, self.left))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
