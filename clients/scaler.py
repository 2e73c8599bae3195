"""How many workers a model should have: a pure decision from what was observed.

Two quantities decide. The *queue time*, what a request waits before a worker takes it, tells that there are too few
workers. The *use*, the share of their time that workers are busy, tells that there are too many. Up and down have
separate marks, so that no load satisfies both:

- up by one where the queue time is over the goal in each third of the last ``up_after_s``: a burst fills two at most;
- down by one where, for ``down_after_s``, it was at most half the goal and would stay so on one worker fewer, at a
  use of at most ``HIGHEST_USE``. What it would be is the waiting time of an M/M/c queue in Sakasegawa's approximation
  (Sakasegawa, An approximation formula Lq = a b^p/(1-b), 1977): S u^(sqrt(2(c+1)) - 1) / (c (1 - u)), of c workers at
  use u with service time S.

A change starts both periods anew, once every worker is ready: nothing is decided from what was seen before it. Where a
worker that went is soon needed again, the next one stays twice as long before it goes, up to ``LONGEST`` times
``down_after_s``: a load that bursts keeps its workers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from clients.errors import BadAnswer, UsageError

#: Busier than this the workers that stay would have no room for a burst.
HIGHEST_USE = 0.8
#: Times ``down_after_s`` that a worker stays needless at most before it goes.
LONGEST = 16
#: A worker that is needed within so many times the period after which one went is needed again, not anew.
_AGAIN = 8


@dataclass(frozen=True)
class Policy:
    """What is wanted.

    Attributes:
        minimum: workers, at least 1: with none TorchServe refuses every request.
        maximum: workers, at least ``minimum``.
        goal_queue_ms: the queue time over which a worker is added.
        up_after_s: so long requests must have waited longer before a worker is added.
        down_after_s: so long a worker must have been needless before it goes, at first; at least ``up_after_s``.

    Raises:
        UsageError: which of them is out of range.
    """

    minimum: int
    maximum: int
    goal_queue_ms: float = 200.0
    up_after_s: float = 5.0
    down_after_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise UsageError(f"workers from {self.minimum} to {self.maximum}: expected 1 <= minimum <= maximum")
        for name in ("goal_queue_ms", "up_after_s", "down_after_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}: expected a number over 0")
        if self.down_after_s < self.up_after_s:
            raise UsageError(
                f"down_after_s is {self.down_after_s:g} and up_after_s {self.up_after_s:g}: a worker must not go "
                "sooner than it comes"
            )


@dataclass(frozen=True)
class Observation:
    """What a server said at one moment; totals since its start.

    Attributes:
        at: seconds of any steady clock.
        wanted: workers that the server was last told to have.
        workers: that it has.
        ready: of these, those that answer.
        pending: requests in the queue at this moment.
        requests: that arrived, in total.
        queue_s: that requests of REST waited in the queue, in total.
        busy_s: that workers were with batches, in total.

    Raises:
        BadAnswer: a total that is no number from 0 on.
    """

    at: float
    wanted: int
    workers: int
    ready: int
    pending: int
    requests: float
    queue_s: float
    busy_s: float

    def __post_init__(self) -> None:
        for name in ("requests", "queue_s", "busy_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadAnswer(f"{name} of the server's metrics is {getattr(self, name)}: expected 0 or more")

    @property
    def settled(self) -> bool:
        """Whether no worker is coming or going."""
        return self.wanted == self.workers == self.ready

    def restarted_since(self, before: Observation) -> bool:
        """Whether the server began to count anew, which any total that fell tells: others may have risen past."""
        return self.requests < before.requests or self.queue_s < before.queue_s or self.busy_s < before.busy_s


@dataclass(frozen=True)
class State:
    """What is kept between observations.

    Attributes:
        seen: those since the last change, oldest first, as far back as is needed.
        patience: times ``down_after_s`` that a worker must have been needless before it goes; 1 to ``LONGEST``.
        went_at: when the last one went.
    """

    seen: tuple[Observation, ...] = ()
    patience: int = 1
    went_at: float = -math.inf


@dataclass(frozen=True)
class Decision:
    """How many workers there should be, and why.

    Attributes:
        workers: at most one more or fewer than there are.
        reason: one line.
    """

    workers: int
    reason: str


@dataclass(frozen=True)
class Load:
    """What a period of observations shows.

    Attributes:
        queue_ms: mean queue time.
        service_ms: mean time that a worker is busy for a request; None where none has ended.
        use: share of the workers' time that they are busy, 0..1; None where no request that came has ended.
    """

    queue_ms: float
    service_ms: float | None
    use: float | None


def decide(policy: Policy, state: State, now: Observation) -> tuple[State, Decision]:
    """What one more observation leads to.

    Args:
        policy: what is wanted.
        state: of the call before; ``State()`` at first.
        now: later than every observation before.
    """
    waiting = replace(state, seen=())
    if not now.settled:
        return waiting, Decision(now.wanted, f"{now.ready} of {now.wanted} workers are ready")
    inside = min(max(now.workers, policy.minimum), policy.maximum)
    if inside != now.workers:
        step = now.workers + (1 if inside > now.workers else -1)
        return waiting, Decision(step, f"{policy.minimum} to {policy.maximum} workers are wanted")
    down_after_s = policy.down_after_s * state.patience
    state = replace(state, seen=(*_since_change(state, now, now.at - down_after_s), now))
    recent = _load(state, now.at - policy.up_after_s, now.at)
    marks = [now.at - policy.up_after_s * part / 3 for part in (3, 2, 1, 0)]
    thirds = [_load(state, since, until) for since, until in itertools.pairwise(marks)]
    # A third without an observation of its own, where they are slow to come, lies in the next one.
    late = [load.queue_ms > policy.goal_queue_ms for load in (recent, *thirds) if load is not None]
    if recent is None:
        return state, Decision(now.workers, "watching")
    said = f"queue {recent.queue_ms:.0f} ms" + (f", use {recent.use:.0%}" if recent.use is not None else "")
    if all(late):
        if now.workers == policy.maximum:
            return state, Decision(now.workers, f"{said}: over the goal, with all workers that are allowed")
        again = now.at - state.went_at <= _AGAIN * down_after_s
        patience = min(2 * state.patience, LONGEST) if again else 1
        return replace(waiting, patience=patience), Decision(now.workers + 1, f"{said}: over the goal")
    long = _load(state, now.at - down_after_s, now.at)
    if long is not None and now.workers > policy.minimum and _needless(policy, long, now.workers):
        return replace(waiting, went_at=now.at), Decision(now.workers - 1, f"{said}: needless for {down_after_s:g} s")
    return state, Decision(now.workers, said)


def expected_queue_ms(workers: int, use: float, service_ms: float) -> float:
    """Waiting time of an M/M/c queue, by Sakasegawa's approximation; infinite from a use of 1 on.

    Args:
        workers: c, at least 1.
        use: share of their time that they are busy, 0 or more.
        service_ms: mean time of a request with its worker.
    """
    if use >= 1:
        return math.inf
    exponent = math.sqrt(2 * (workers + 1)) - 1
    return service_ms * math.pow(use, exponent) / (workers * (1 - use))


def _since_change(state: State, now: Observation, since: float) -> tuple[Observation, ...]:
    """What of the past still counts: nothing from before a restart or another's change of the workers."""
    seen = state.seen
    if seen and (seen[-1].workers != now.workers or now.restarted_since(seen[-1])):
        return ()
    # The last one from before the period stays: differences start there.
    outside = [index for index, each in enumerate(seen) if each.at <= since]
    return seen[outside[-1] :] if outside else seen


def _load(state: State, since: float, until: float) -> Load | None:
    """From the last observation at or before ``since`` to the last one until ``until``; None where they are one."""
    starts = [index for index, each in enumerate(state.seen) if each.at <= since]
    if not starts:
        return None
    period = [each for each in state.seen[starts[-1] :] if each.at <= until]
    first, last = period[0], period[-1]
    if first is last:
        return None
    seconds = last.at - first.at
    requests = last.requests - first.requests
    queue_s, busy_s = last.queue_s - first.queue_s, last.busy_s - first.busy_s
    pending = sum(each.pending for each in period[1:]) / len(period[1:])
    if requests:
        # Little's law, W = L / lambda, sees also what has not been answered yet, and requests by gRPC, whose waits
        # TorchServe does not count.
        queue_ms = 1000 * max(queue_s, pending * seconds) / requests
    else:
        # Nothing arrived, so that what waits has waited all the while.
        queue_ms = 1000 * seconds if last.pending else 0.0
    if requests and not busy_s:
        return Load(queue_ms, None, None)
    # A batch counts where it ends, which may put more into a short period than it has.
    use = min(1.0, busy_s / seconds / last.workers)
    return Load(queue_ms, 1000 * busy_s / requests if requests else 0.0, use)


def _needless(policy: Policy, load: Load, workers: int) -> bool:
    if load.use is None or load.service_ms is None:
        return False
    use = load.use * workers / (workers - 1)
    allowed = policy.goal_queue_ms / 2
    return (
        use <= HIGHEST_USE
        and load.queue_ms <= allowed
        and expected_queue_ms(workers - 1, use, load.service_ms) <= allowed
    )
