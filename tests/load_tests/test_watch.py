"""What a batch leaves of a p99 goal to the queue."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from clients.errors import BadAnswer, UsageError
from clients.scaler import Observation, Policy
from load_tests import watch
from load_tests.watch import batch_buckets, difference, goal, quantile

BUCKETS = {0.1: 50.0, 0.2: 90.0, 0.5: 100.0, math.inf: 100.0}


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0.05), (0.5, 0.1), (0.7, 0.15), (0.95, 0.35), (1.0, 0.5)])
def test_a_quantile_lies_evenly_in_its_bucket(share: float, expected: float) -> None:
    assert quantile(BUCKETS, share) == pytest.approx(expected)


def test_over_the_last_bound_is_the_last_bound() -> None:
    assert quantile({0.1: 1.0, math.inf: 100.0}, 0.99) == 0.1
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.99) is None


def test_only_what_came_since_counts() -> None:
    assert difference(BUCKETS, {0.1: 50.0, 0.2: 80.0, 0.5: 85.0, math.inf: 85.0}) == {
        0.1: 0.0,
        0.2: 10.0,
        0.5: 15.0,
        math.inf: 15.0,
    }
    assert difference({0.1: 3.0}, {0.1: 5.0}) == {0.1: 3.0}


def test_the_queue_has_what_a_batch_leaves() -> None:
    """Of an exponential distribution 1 in 100 is over 4.605 times the mean."""
    policy = Policy(1, 4, up_after_s=2, down_after_s=9)
    left = goal(policy, 500, 0.25)
    assert left.goal_queue_ms == pytest.approx(250 / 4.605, rel=1e-3)
    assert replace(left, goal_queue_ms=policy.goal_queue_ms) == policy
    assert goal(policy, 500, 0.125).goal_queue_ms == pytest.approx(375 / 4.605, rel=1e-3)
    assert goal(policy, 500, None).goal_queue_ms == pytest.approx(250 / 4.605, rel=1e-3)


def test_waits_of_a_queue_with_that_mean_keep_the_goal() -> None:
    """One server, random arrivals and service at 90 % use: the scaler's mean against the p99 that callers meet."""
    source, free, now = random.Random(3), 0.0, 0.0
    waits = []
    for _ in range(200_000):
        now += source.expovariate(0.9)
        begun = max(now, free)
        waits.append(begun - now)
        free = begun + source.expovariate(1.0)
    mean, p99 = sum(waits) / len(waits), sorted(waits)[len(waits) * 99 // 100]
    assert p99 == pytest.approx(math.log(100) * mean, rel=0.1)


def test_a_batch_that_leaves_nothing_is_said() -> None:
    with pytest.raises(UsageError, match="a batch alone takes 480 ms"):
        goal(Policy(1, 4), 500, 0.48)


def text(counts: dict[str, float], model: str = "faces") -> str:
    return "".join(
        f'mogface_batch_seconds_bucket{{model="{model}",version="1.0",le="{le}",Hostname="h",}} {count}\n'
        for le, count in counts.items()
    )


def test_buckets_of_one_model() -> None:
    both = text({"0.1": 3.0, "+Inf": 4.0}) + text({"0.1": 100.0, "+Inf": 100.0}, "others")
    assert batch_buckets(both, "faces") == {0.1: 3.0, math.inf: 4.0}
    assert batch_buckets(both, "nobody") == {}


@pytest.mark.parametrize("wrong", ["many", "NaN", "-1", "+Inf"])
def test_counts_that_are_none_are_said(wrong: str) -> None:
    with pytest.raises(BadAnswer, match="mogface_batch_seconds_bucket of the server's metrics is"):
        batch_buckets(text({"0.1": 3.0}).replace("3.0", wrong), "faces")


class FakeObserver:
    """A server with one worker that is never busy, whose batches take what ``texts`` say, one a look."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._at = 0.0

    def metrics(self) -> str:
        return self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]

    def observe(self) -> Observation:
        self._at += 1.0
        return Observation(self._at, 1, 1, 1, 0, 0.0, 0.0, 0.0)


def watched(texts: list[str], monkeypatch: pytest.MonkeyPatch, looks: int) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(watch, "_AGAIN_S", 0.0)
    turns: Iterator[bool] = iter([False] * looks + [True])
    watch.run(
        FakeObserver(texts),  # type: ignore[arg-type]
        "faces",
        lambda workers: pytest.fail(f"{workers} workers are asked for"),
        500.0,
        Policy(1, 4),
        said.append,
        lambda seconds: next(turns),
    )
    return said


def test_what_a_batch_takes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"0.1": 0.0, "0.2": 0.0, "0.5": 0.0, "+Inf": 0.0}
    few = nothing | {"0.5": 50.0, "+Inf": 50.0}
    # 150 more: their p99 lies at the end of the second bucket.
    quick = {"0.1": 0.0, "0.2": 150.0, "0.5": 200.0, "+Inf": 200.0}
    slow = quick | {"0.5": 400.0, "+Inf": 400.0}
    said = watched([text(each) for each in (nothing, few, quick, slow)], monkeypatch, 5)
    # Half the goal at first; of 200 the 198th lies 48 fiftieths up from 200 to 500 ms; then none is quicker.
    assert said[:1] == ["p99 goal 500 ms: a mean wait of 54 ms"]
    assert said[1:] == [
        "a batch alone takes 488 ms (p99), the goal is 500 ms: no number of workers reaches it. A "
        "smaller batchSize, canvas or precision would: `load_tests sweep`, then `tune --p99`"
    ]


def test_a_goal_that_moves_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"0.1": 0.0, "0.2": 0.0, "0.5": 0.0, "+Inf": 0.0}
    quick = {"0.1": 1000.0, "0.2": 1000.0, "0.5": 1000.0, "+Inf": 1000.0}
    said = watched([text(nothing), text(quick)], monkeypatch, 3)
    # 500 ms less 99, by 4.605.
    assert said == ["p99 goal 500 ms: a mean wait of 54 ms", "p99 goal 500 ms: a mean wait of 87 ms"]


def test_a_server_that_starts_anew_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a worker of its has begun there are no batches in its metrics."""
    quick = text({"0.1": 1000.0, "0.2": 1000.0, "0.5": 1000.0, "+Inf": 1000.0})
    assert watched([quick, "", "", quick], monkeypatch, 4) == ["p99 goal 500 ms: a mean wait of 87 ms"]
    with pytest.raises(BadAnswer, match="no mogface_batch_seconds of faces: is it served"):
        watched([""], monkeypatch, 1)


def test_a_batch_that_is_too_slow_asks_for_no_worker_before_the_wait_alone_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def follow(*arguments: Any) -> None:
        policy, revised = arguments[2], arguments[-1]
        for _ in range(2):
            policy = revised(policy)
            given.append(policy.goal_queue_ms)

    monkeypatch.setattr(watch, "autoscale", follow)
    fast = {"0.1": 1000.0, "0.5": 1000.0, "+Inf": 1000.0}
    slow, again = fast | {"0.5": 2000.0, "+Inf": 2000.0}, {"0.1": 2000.0, "0.5": 3000.0, "+Inf": 3000.0}
    said = watched([text(fast), text(slow), text(again)], monkeypatch, 1)
    assert given == [500.0, pytest.approx(87, abs=1)]
    assert len(said) == 3
    assert said[1].startswith("a batch alone takes 496 ms")
    assert said[2] == said[0]
