"""What became of a source's frames."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

#: Of the latest results, over which the lag is told.
_RECENT = 200


@dataclass
class Tally:
    """Counts of one source; by any thread.

    Attributes:
        name: of the source.
        state: in words: what it is doing.
        read: frames decoded.
        asked: frames of those that were asked for: every Nth, so many a second.
        dropped: asked for, and pushed out by newer ones while the server was busy.
        detected: answered.
        failed: answered by an error.
        damaged: that could not be decoded.
        faces: in all answers.
        opened: how often the source was opened.
        error: why it ended, where that is a fault.
    """

    name: str
    state: str = "opening"
    read: int = 0
    asked: int = 0
    dropped: int = 0
    detected: int = 0
    failed: int = 0
    damaged: int = 0
    faces: int = 0
    opened: int = 0
    error: str | None = None
    _lags: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **by: int) -> None:
        """Add to counts, by name."""
        with self._lock:
            for name, amount in by.items():
                setattr(self, name, getattr(self, name) + amount)

    def answered(self, faces: int, lag_s: float) -> None:
        """One more frame is detected.

        Args:
            faces: found on it.
            lag_s: from its decoding to its result, s.
        """
        with self._lock:
            self.detected += 1
            self.faces += faces
            self._lags.append(lag_s)

    def lag(self, share: float) -> float | None:
        """The lag that this share of the latest results did not exceed, s; None before the first one."""
        with self._lock:
            lags = sorted(self._lags)
        return lags[min(len(lags) - 1, int(share * len(lags)))] if lags else None

    def line(self) -> str:
        """The whole of it on a line."""
        lag = self.lag(0.5)
        told = (
            f"{self.name}: {self.state}; {self.read} frames in, {self.detected} detected, {self.dropped} dropped, "
            f"{self.failed} failed, {self.faces} faces"
        )
        told += f", {self.damaged} damaged" if self.damaged else ""
        told += f", lag {1000 * lag:.0f} ms" if lag is not None else ""
        return told + (f": {self.error}" if self.error else "")
