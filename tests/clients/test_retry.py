"""When a request is sent again: a pure function, so every value is literal."""

from __future__ import annotations

import pytest

from clients import errors
from clients.errors import UsageError
from clients.retry import Retry

FULL = errors.QueueFull("full")


def test_waits_grow_to_the_cap() -> None:
    retry = Retry(attempts=9)
    waits = [retry.delay(FULL, attempt, 0.0, 1.0) for attempt in range(1, 9)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize("factor", [2.0, 2, 1e308])
def test_any_attempt_has_a_wait(factor: float) -> None:
    """2 to the power of 1024 is over the largest float."""
    retry = Retry(attempts=10_000, factor=factor)
    assert retry.delay(FULL, 9_999, 0.0, 1.0) == 5.0
    assert Retry(attempts=10_000, factor=factor, base_s=0.0).delay(FULL, 9_999, 0.0, 1.0) == 0.0


def test_jitter_takes_the_whole_range() -> None:
    assert Retry().delay(FULL, 3, 0.0, 0.0) == 0.0
    assert Retry().delay(FULL, 3, 0.0, 0.5) == 0.2


def test_attempts_end() -> None:
    assert Retry().delay(FULL, 5, 0.0, 1.0) == 1.6
    assert Retry().delay(FULL, 6, 0.0, 0.0) is None
    assert Retry(attempts=1).delay(FULL, 1, 0.0, 0.0) is None


def test_no_wait_is_begun_that_ends_after_the_budget() -> None:
    retry = Retry(base_s=2.0, budget_s=10.0)
    assert retry.delay(FULL, 1, 8.0, 1.0) == 2.0
    assert retry.delay(FULL, 1, 8.01, 1.0) is None


@pytest.mark.parametrize("name", ["QueueFull", "DeadlineMissed", "WorkerDied", "Unreachable", "Unavailable"])
def test_what_may_be_sent_again(name: str) -> None:
    assert Retry().delay(getattr(errors, name)("why"), 1, 0.0, 1.0) == 0.1


@pytest.mark.parametrize(
    "name", ["UsageError", "InvalidImage", "TooLarge", "NotAuthorised", "NotFound", "ServerFault", "BadAnswer"]
)
def test_what_may_not(name: str) -> None:
    assert Retry().delay(getattr(errors, name)("why"), 1, 0.0, 0.0) is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("attempts", 0), ("base_s", -0.1), ("factor", 0.5), ("cap_s", float("inf")), ("budget_s", float("nan"))],
)
def test_values_are_checked(name: str, wrong: float) -> None:
    with pytest.raises(UsageError, match=f"retry: {name} is {wrong}"):
        Retry(**{name: wrong})  # type: ignore[arg-type]
