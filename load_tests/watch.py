"""Keeps a running server's p99 under a goal by its number of workers.

p99 is what a request waits and what its batch then takes. A worker more shortens the first and not the second, so
the goal of the queue is what a batch leaves of it. The size of batches is fixed while TorchServe runs: it hands a
worker whole batches and takes back whole batches, so that a worker which ran fewer images at once would only answer
all of them later. Where a batch alone takes longer than the goal, this says so, and a sweep finds a smaller one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping

import httpx

from clients.autoscale import Observer, autoscale
from clients.errors import BadAnswer, UsageError
from clients.scaler import Policy

_BUCKET = re.compile(r"mogface_batch_seconds_bucket\{([^}]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
#: How often what a batch takes is looked at again, times the policy's longest period.
_AGAIN = 10
#: Least share of the goal that may be left to the queue.
_LEAST = 0.1


def run(
    observer: Observer,
    buckets: Callable[[], Mapping[float, float]],
    scale: Callable[[int], None],
    p99_ms: float,
    policy: Policy,
    say: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> None:
    """Follow the load until ``stopped``.

    Args:
        observer: of the model.
        buckets: what the server's metrics say now, as :func:`batch_buckets`.
        scale: has so many workers.
        p99_ms: goal of a request, from the server's door to its answer.
        policy: limits and periods; its goal of the queue is replaced.
        say: takes one line a change.
        stopped: waits so many seconds; true ends the loop.

    Raises:
        UsageError: a batch alone takes longer than the goal.
        ClientError: as clients.autoscale.
    """
    before: Mapping[float, float] = {}
    ended = False
    while not ended:
        now = buckets()
        policy = goal(policy, p99_ms, quantile(difference(now, before), 0.99))
        before = now
        say(f"p99 goal {p99_ms:g} ms: {policy.goal_queue_ms:.0f} ms of it for the queue")
        until = time.monotonic() + _AGAIN * policy.down_after_s

        def pause(seconds: float, until: float = until) -> bool:
            nonlocal ended
            ended = stopped(seconds)
            return ended or time.monotonic() > until

        autoscale(observer, scale, policy, say, pause, min(1.0, policy.up_after_s / 3))


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
    return Policy(policy.minimum, policy.maximum, p99_ms - batch_ms, policy.up_after_s, policy.down_after_s)


def batch_buckets(address: str, model: str) -> dict[float, float]:
    """Upper bounds in s to how many batches took at most so long, since the server's start.

    Args:
        address: of the metrics.
        model: whose batches.

    Raises:
        BadAnswer: the address does not answer, or not with this project's metrics.
    """
    try:
        text = httpx.get(f"{address.rstrip('/')}/metrics", timeout=10).raise_for_status().text
    except httpx.HTTPError as error:
        raise BadAnswer(f"{address}: {error}") from error
    found: dict[float, float] = {}
    for labels, value in _BUCKET.findall(text):
        named = dict(_LABEL.findall(labels))
        if named.get("model") == model:
            bound = float(named["le"])
            found[bound] = found.get(bound, 0.0) + float(value)
    if not found:
        raise BadAnswer(
            f"{address} has no mogface_batch_seconds of {model}: is metrics_config=deploy/metrics.yaml set?"
        )
    return dict(sorted(found.items()))


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
