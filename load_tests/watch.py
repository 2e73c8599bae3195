"""Keeps a running server's p99 under a goal by its number of workers.

p99 is what a request waits and what its batch then takes. A worker more shortens the first and not the second, so
what a batch leaves of the goal is the queue's p99. The scaler keeps the queue's mean: of requests that come at random
to a server that is nearly full the waits are distributed exponentially, whose p99 is ln 100 = 4.6 times their mean. A
closed loop's waits are more alike, and get a worker earlier than they need it.

The size of batches is fixed while TorchServe runs: it hands a worker whole batches and takes back whole batches, so
that a worker which ran fewer images at once would only answer all of them later. Where a batch alone takes longer than
the goal, this says so, and a sweep finds a smaller one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from clients.autoscale import Observer, autoscale, number
from clients.errors import BadAnswer, UsageError
from clients.scaler import Policy

_BUCKET = re.compile(r"(mogface_batch_seconds_bucket)\{([^}]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
#: Of an exponential distribution, times the mean.
_P99 = math.log(100)
#: What a batch takes is looked at again so many seconds later, once so many came: of fewer, p99 is the longest alone.
_AGAIN_S, _ENOUGH = 10.0, 100
#: Least share of the goal that may be left to the queue.
_LEAST = 0.1
#: A goal of the queue that moved by less is the same, to whom reads of it.
_SAME = 0.1


def run(
    observer: Observer,
    model: str,
    scale: Callable[[int], None],
    p99_ms: float,
    policy: Policy,
    say: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> None:
    """Follow the load until ``stopped``.

    Args:
        observer: of the model.
        model: its name.
        scale: has so many workers, as clients.autoscale.
        p99_ms: goal of a request, from the server's door to its answer.
        policy: limits and periods; its goal of the queue is replaced.
        say: takes one line a change.
        stopped: waits so many seconds; true ends the loop.

    Raises:
        UsageError: a batch alone takes longer than the goal when this begins. Later that is said, and a worker comes
            only where the wait alone is over the goal: on cores that are full it would make batches slower yet.
        BadAnswer: the metrics have no batches of the model.
        ClientError: as clients.autoscale.
    """
    before: Mapping[float, float] = batch_buckets(observer.metrics(), model)
    if not before:
        raise BadAnswer(
            f"the metrics have no mogface_batch_seconds of {model}: is it served, and is "
            "metrics_config=deploy/metrics.yaml set?"
        )
    first = goal(policy, p99_ms, quantile(before, 0.99))
    shown, looked, too_slow = first.goal_queue_ms, time.monotonic(), False
    say(f"p99 goal {p99_ms:g} ms: a mean wait of {shown:.0f} ms")

    def revised(policy: Policy) -> Policy:
        nonlocal before, shown, looked, too_slow
        if time.monotonic() - looked < _AGAIN_S:
            return policy
        looked = time.monotonic()
        now = batch_buckets(observer.metrics(), model)
        fresh = difference(now, before)
        # A server that has just started anew shows none yet.
        if max(fresh.values(), default=0.0) < _ENOUGH:
            return policy
        before = now
        try:
            policy = goal(policy, p99_ms, quantile(fresh, 0.99))
        except UsageError as error:
            if not too_slow:
                say(error.message)
            too_slow = True
            return replace(policy, goal_queue_ms=p99_ms)
        if too_slow or abs(policy.goal_queue_ms - shown) > _SAME * shown:
            shown = policy.goal_queue_ms
            say(f"p99 goal {p99_ms:g} ms: a mean wait of {shown:.0f} ms")
        too_slow = False
        return policy

    autoscale(observer, scale, first, say, stopped, min(1.0, policy.up_after_s / 3), revised)


def goal(policy: Policy, p99_ms: float, batch_s: float | None) -> Policy:
    """The policy with what a batch leaves to the queue.

    Args:
        policy: limits and periods.
        p99_ms: goal of a request.
        batch_s: p99 of a batch; None before the first one: half the goal is taken for it.

    Raises:
        UsageError: it leaves nothing.
    """
    batch_ms = p99_ms / 2 if batch_s is None else 1000 * batch_s
    if batch_ms > (1 - _LEAST) * p99_ms:
        raise UsageError(
            f"a batch alone takes {batch_ms:.0f} ms (p99), the goal is {p99_ms:g} ms: no number of workers reaches it. "
            "A smaller batchSize, canvas or precision would: `load_tests sweep`, then `tune --p99`"
        )
    return replace(policy, goal_queue_ms=(p99_ms - batch_ms) / _P99)


def batch_buckets(text: str, model: str) -> dict[float, float]:
    """Upper bounds in s to how many batches took at most so long, since the server's start.

    Args:
        text: of a server's metrics, in Prometheus's format.
        model: whose batches.

    Returns:
        None of them where no worker of the model has begun yet.

    Raises:
        BadAnswer: they are no numbers.
    """
    found: dict[float, float] = {}
    for name, labels, value in _BUCKET.findall(text):
        named = dict(_LABEL.findall(labels))
        if named.get("model") == model:
            bound = _bound(named.get("le", ""), name)
            found[bound] = found.get(bound, 0.0) + number(value, name)
    return dict(sorted(found.items()))


def _bound(text: str, name: str) -> float:
    return math.inf if text == "+Inf" else number(text, f"le of {name}")


def difference(now: Mapping[float, float], before: Mapping[float, float]) -> dict[float, float]:
    """Counts since ``before``; all of ``now`` where the server started anew meanwhile."""
    if any(now.get(bound, 0.0) < count for bound, count in before.items()):
        return dict(now)
    return {bound: count - before.get(bound, 0.0) for bound, count in now.items()}


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """As Prometheus's histogram_quantile: within its bucket a value is taken to lie evenly.

    Args:
        buckets: upper bounds, the last infinite, to cumulative counts.
        share: 0..1.

    Returns:
        None where nothing was counted; the last finite bound where the quantile lies over it.
    """
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    low, below = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= share * total:
            return low if math.isinf(bound) else low + (bound - low) * (share * total - below) / (count - below)
        low, below = bound, count
    return low
