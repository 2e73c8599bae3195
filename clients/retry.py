"""When a request is sent again."""

from __future__ import annotations

from dataclasses import dataclass

from clients.errors import ClientError, UsageError


@dataclass(frozen=True)
class Retry:
    """Exponential back-off with full jitter, for retryable errors alone.

    Before attempt k+1 a call waits a random time between 0 and ``min(cap_s, base_s * factor ** (k-1))``, so that
    callers turned away together do not come back together.

    Attributes:
        attempts: how often a request is sent at most; 1 never sends again.
        base_s: the longest first wait, s.
        factor: by which the longest wait grows.
        cap_s: which it does not exceed, s.
        budget_s: a wait that would end later than so many seconds after the call's begin is not begun.
    """

    attempts: int = 6
    base_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 5.0
    budget_s: float = 300.0

    def __post_init__(self) -> None:
        for name, low in {"attempts": 1, "base_s": 0.0, "factor": 1.0, "cap_s": 0.0, "budget_s": 0.0}.items():
            value = getattr(self, name)
            if not low <= value < float("inf"):
                raise UsageError(f"retry: {name} is {value}: expected {low:g} or more")

    def delay(self, error: ClientError, attempt: int, elapsed_s: float, chance: float) -> float | None:
        """Seconds to wait before the request is sent again; None to give up.

        Args:
            error: what the last attempt ended with.
            attempt: how many there were, from 1.
            elapsed_s: since the call began, s.
            chance: random, 0..1.
        """
        if not error.retryable or attempt >= self.attempts:
            return None
        wait = chance * self._longest(attempt)
        return wait if elapsed_s + wait <= self.budget_s else None

    def _longest(self, attempt: int) -> float:
        try:
            return min(self.cap_s, self.base_s * self.factor ** (attempt - 1))
        except OverflowError:
            # Over the largest float, so over the cap; but times 0 it would still be 0.
            return self.cap_s if self.base_s else 0.0
