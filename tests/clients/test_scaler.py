"""The scaling decision on recorded and on simulated load."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from clients.errors import BadAnswer, UsageError
from clients.scaler import Observation, Policy, State, decide, expected_queue_ms

POLICY = Policy(1, 4, goal_queue_ms=200, up_after_s=5, down_after_s=60)
INTERVAL_S = 1.0

# CenterFace on two cores, idle, then 12 connections for 9 s; seconds, wanted, workers, ready, pending, and the totals
# since the first line: requests, their seconds in the queue, and the seconds that workers were busy.
RECORDED = """
0.02 1 1 1 0 0 0.000 0.000
1.03 1 1 1 0 0 0.000 0.000
2.06 1 1 1 0 0 0.000 0.000
3.08 1 1 1 0 0 0.000 0.000
4.09 1 1 1 4 13 0.001 0.089
5.14 1 1 1 7 21 0.465 1.105
6.15 1 1 1 4 26 4.938 1.652
7.17 1 1 1 8 34 8.979 3.025
8.18 1 1 1 4 38 14.458 3.774
9.20 1 1 1 8 46 20.483 4.772
10.23 1 1 1 4 50 24.417 5.416
11.30 1 1 1 8 58 29.242 5.416
12.40 1 1 1 4 62 35.648 7.031
13.43 1 1 1 8 70 44.585 8.170
14.44 1 1 1 0 74 52.179 9.790
15.46 1 1 1 0 74 54.773 10.816
16.47 1 1 1 0 74 54.773 10.816
17.48 1 1 1 0 74 54.773 10.816
18.50 1 1 1 0 74 54.773 10.816
19.51 1 1 1 0 74 54.773 10.816
"""


@dataclass
class FakeServer:
    """Requests that arrive at random, a queue, workers that take one at a time and need some seconds to start.

    Args:
        rate: requests a second at a time.
        service_s: mean time of one request; exponential, the least regular there is in practice.
    """

    rate: Callable[[float], float]
    service_s: float
    start_s: float = 3.0
    workers: int = 1
    random: random.Random = field(default_factory=lambda: random.Random(1))
    wanted: int = field(init=False)
    queue: deque[float] = field(default_factory=deque)
    busy: list[tuple[float, float]] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    requests: int = 0
    queue_s: float = 0.0
    busy_s: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.wanted = self.workers

    def scale(self, workers: int) -> None:
        assert abs(workers - self.wanted) <= 1
        if workers > self.wanted:
            self.starting.append(self.now + self.start_s)
        elif workers < self.wanted:
            self.workers -= 1
        self.wanted = workers

    def run(self, until: float) -> None:
        """A hundredth of a second at a time."""
        while self.now < until:
            self.now += 0.01
            while self.starting and self.starting[0] <= self.now:
                self.starting.pop(0)
                self.workers += 1
            while self.busy and self.busy[0][0] <= self.now:
                _, took = heapq.heappop(self.busy)
                self.busy_s += took
            for _ in range(self._arrivals(self.rate(self.now) * 0.01)):
                self.requests += 1
                self.queue.append(self.now)
            while self.queue and len(self.busy) < self.workers:
                waited = self.now - self.queue.popleft()
                took = self.random.expovariate(1 / self.service_s)
                heapq.heappush(self.busy, (self.now + took, took))
                # TorchServe counts both when it answers; the wait may be seen earlier here by one service.
                self.queue_s += waited
                self.waits.append((self.now, waited))

    def _arrivals(self, mean: float) -> int:
        # Poisson, by counting exponential gaps.
        count, passed = 0, self.random.expovariate(1.0)
        while passed < mean:
            count += 1
            passed += self.random.expovariate(1.0)
        return count

    def observe(self) -> Observation:
        ready = self.workers
        there = ready + len(self.starting)
        return Observation(
            self.now, self.wanted, there, ready, len(self.queue), self.requests, self.queue_s, self.busy_s
        )


def run(server: FakeServer, seconds: float, policy: Policy = POLICY) -> list[tuple[float, int]]:
    """When which number of workers was asked for."""
    state = State()
    changes = []
    for _ in itertools.takewhile(lambda _: server.now < seconds, itertools.count()):
        server.run(server.now + INTERVAL_S)
        seen = server.observe()
        state, decision = decide(policy, state, seen)
        assert policy.minimum <= decision.workers <= policy.maximum
        assert abs(decision.workers - seen.wanted) <= 1
        if decision.workers != seen.wanted:
            changes.append((server.now, decision.workers))
            server.scale(decision.workers)
    return changes


def recorded(**changes: int) -> list[Observation]:
    rows = [line.split() for line in RECORDED.split("\n") if line]
    seen = [Observation(float(row[0]), *map(int, row[1:5]), *map(float, row[5:])) for row in rows]
    return [replace(each, **changes) for each in seen]


def decided(policy: Policy, seen: list[Observation]) -> list[int]:
    state, workers = State(), []
    for each in seen:
        state, decision = decide(policy, state, each)
        workers.append(decision.workers)
    return workers


def test_recorded_load_asks_for_a_worker_while_it_lasts() -> None:
    seen = recorded()
    asked = [each.at for each, workers in zip(seen, decided(POLICY, seen), strict=True) if workers == 2]
    # The load began between 3.1 and 4.1 s and ended before 15.5 s.
    assert asked
    assert 3.08 < asked[0] <= 4.09 + POLICY.up_after_s + INTERVAL_S
    assert asked[-1] <= 15.46 + POLICY.up_after_s


def test_recorded_load_within_the_goal_asks_for_none() -> None:
    """Requests there waited 0.8 s on the average."""
    assert set(decided(replace(POLICY, goal_queue_ms=3000), recorded())) == {1}


def test_recorded_load_never_takes_the_only_worker_or_one_too_many() -> None:
    quick = replace(POLICY, up_after_s=2, down_after_s=3)
    assert min(decided(quick, recorded())) == 1
    assert set(decided(replace(quick, maximum=1), recorded())) == {1}


def test_recorded_idleness_lets_a_worker_go() -> None:
    two = recorded(wanted=2, workers=2, ready=2)
    quick = replace(POLICY, up_after_s=2, down_after_s=3)
    workers = decided(quick, two)
    # Idle from the beginning, and again from 15.46 s on; the load between needs both.
    assert workers[3] == 1
    assert set(workers[4:15]) <= {2, 3}
    assert decided(quick, two[15:])[3] == 1


@pytest.mark.parametrize("service_s", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("offered", [0.3, 0.7, 0.9, 1.4, 1.8, 2.4, 2.8])
def test_a_steady_load_is_met_and_does_not_make_workers_come_and_go(service_s: float, offered: float) -> None:
    """``offered`` is in workers' worth; an hour, at random intervals, of requests of random length."""
    server = FakeServer(lambda _: offered / service_s, service_s)
    changes = run(server, 3600)
    # At most 16 in the first hour, where the level lies between two numbers of workers, and fewer later: each time one
    # comes back it stays twice as long.
    assert len(changes) <= 16
    assert len([when for when, _ in changes if when > 1800]) <= 8
    late = [waited for when, waited in server.waits if when > 1800]
    mean_ms = 1000 * sum(late) / len(late)
    assert mean_ms <= POLICY.goal_queue_ms or server.wanted == POLICY.maximum
    assert server.wanted >= math.ceil(offered)


def test_without_patience_the_same_load_would_flap() -> None:
    """The check above can fail: the decision without its memory of what came back."""
    state, changes = State(), 0
    server = FakeServer(lambda _: 35.0, 0.02)
    while server.now < 3600:
        server.run(server.now + INTERVAL_S)
        seen = server.observe()
        state, decision = decide(POLICY, replace(state, patience=1), seen)
        if decision.workers != seen.wanted:
            changes += 1
            server.scale(decision.workers)
    assert changes > 40


def test_more_load_is_reacted_to_within_the_stated_time() -> None:
    server = FakeServer(lambda now: 1.0 if now < 120 else 35.0, 0.1)
    changes = run(server, 200)
    assert changes[0][1] == 2
    # One more interval for the queue to grow, one to be seen.
    assert 120 < changes[0][0] <= 120 + POLICY.up_after_s + 2 * INTERVAL_S
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(changes)]
    # Each next one only once the one before it is ready and had its time.
    assert [workers for _, workers in changes] == [2, 3, 4]
    assert all(gap >= server.start_s + POLICY.up_after_s for gap in gaps)


def test_less_load_lets_the_workers_go_one_by_one() -> None:
    server = FakeServer(lambda now: 35.0 if now < 120 else 0.5, 0.1)
    changes = [change for change in run(server, 600) if change[0] > 120]
    assert [workers for _, workers in changes][-3:] == [3, 2, 1]
    first = next(when for when, workers in changes if workers == 3)
    assert 120 + POLICY.down_after_s <= first <= 120 + 2 * POLICY.down_after_s


def test_a_burst_shorter_than_the_time_asks_for_nothing() -> None:
    server = FakeServer(lambda now: 300.0 if 60 < now % 300 < 60.1 else 1.0, 0.02)
    assert run(server, 1500) == []
    assert max(waited for _, waited in server.waits) > POLICY.goal_queue_ms / 1000


def test_load_between_two_levels_of_day_and_night_follows() -> None:
    server = FakeServer(lambda now: 20 + 15 * math.sin(2 * math.pi * now / 7200), 0.1)
    changes = run(server, 7200)
    assert {workers for _, workers in changes} >= {2, 3}
    assert len(changes) <= 24


def test_nothing_is_decided_while_a_worker_starts_or_is_gone() -> None:
    waiting = recorded(workers=2, wanted=2, ready=1)
    assert set(decided(POLICY, waiting)) == {2}


def test_workers_outside_the_limits_come_inside_one_at_a_time() -> None:
    seen = recorded()[0]
    assert decided(Policy(3, 4), [seen]) == [2]
    assert decided(POLICY, [replace(seen, wanted=0, workers=0, ready=0)]) == [1]
    assert decided(Policy(1, 2), [replace(seen, wanted=4, workers=4, ready=4)]) == [3]


def test_a_server_that_started_anew_is_watched_from_the_beginning() -> None:
    seen = recorded()[:12]
    anew = [replace(each, at=each.at + 20) for each in recorded()[:3]]
    assert decided(POLICY, [*seen[:8], *anew])[-3:] == [1, 1, 1]


@pytest.mark.parametrize("fallen", ["requests", "queue_s", "busy_s"])
def test_any_total_that_falls_is_a_start_of_the_server(fallen: str) -> None:
    """Between two looks it may start and answer more than before: the other totals have risen past what they were."""
    before = [Observation(float(at), 2, 2, 2, 0, 5.0 * at, 0.2 * at, 1.9 * at) for at in range(1, 12)]
    anew = [replace(each, at=each.at + 11, requests=each.requests + 60, queue_s=each.queue_s + 3) for each in before]
    anew = [replace(each, busy_s=each.busy_s + 25) for each in anew]
    anew = [replace(each, **{fallen: getattr(each, fallen) / 1000}) for each in anew]
    quick = Policy(1, 4, up_after_s=3, down_after_s=4)
    state, reasons = State(), []
    for each in [*before, *anew]:
        state, decision = decide(quick, state, each)
        reasons.append(decision.reason)
    # Watched from there on, and as long as after the first look.
    assert reasons[:3] == ["watching"] * 3
    assert reasons[3] != "watching"
    assert reasons[11:14] == ["watching"] * 3
    assert reasons[14] != "watching"


@pytest.mark.parametrize("name", ["requests", "queue_s", "busy_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_totals_that_are_none(name: str, value: float) -> None:
    with pytest.raises(BadAnswer, match=f"{name} of the server's metrics is"):
        replace(recorded()[0], **{name: value})  # type: ignore[arg-type]


def test_two_scalers_of_one_policy_ask_for_no_more_than_one_does() -> None:
    """They see each other's changes as somebody's, and come to the same numbers; only their patience is not shared."""
    server = FakeServer(lambda now: 35.0 if now < 600 else 0.5, 0.1)
    states, asked = [State(), State()], []
    while server.now < 1500:
        for index in range(2):
            server.run(server.now + INTERVAL_S / 2)
            seen = server.observe()
            states[index], decision = decide(POLICY, states[index], seen)
            if decision.workers != seen.wanted:
                asked.append(decision.workers)
                server.scale(decision.workers)
    assert asked == [2, 3, 4, 3, 2, 1]


def test_requests_by_grpc_whose_waits_are_not_counted() -> None:
    quick = Policy(1, 4, up_after_s=2, down_after_s=3)
    seen = [Observation(float(at), 2, 2, 2, 0, 5.0 * at, 0.0, 1.9 * at) for at in range(20)]
    assert set(decided(quick, seen)) == {2}, "they keep both workers busy"
    assert 3 in decided(quick, [replace(each, pending=9) for each in seen]), "what waits is seen"
    assert 1 in decided(quick, [replace(each, busy_s=each.busy_s / 10) for each in seen])


def test_as_long_as_nothing_has_ended_nobody_is_called_needless() -> None:
    quick = Policy(1, 4, up_after_s=2, down_after_s=3)
    seen = [Observation(float(at), 2, 2, 2, 0, 1.0 if at else 0.0, 0.0, 0.0) for at in range(4)]
    assert set(decided(quick, seen)) == {2}


def test_requests_that_wait_while_none_arrives_are_late() -> None:
    seen = [Observation(float(at), 1, 1, 1, 3, 8.0, 0.0, 0.0) for at in range(10)]
    assert decided(POLICY, seen)[5] == 2


@pytest.mark.parametrize(("workers", "use"), [(1, 0.5), (1, 0.9), (2, 0.7), (4, 0.8)])
def test_expected_queue_time_is_near_the_exact_one(workers: int, use: float) -> None:
    """Against Erlang's C formula, written out; Sakasegawa states some per cent."""
    offered = workers * use
    terms = [offered**n / math.factorial(n) for n in range(workers)]
    last = offered**workers / math.factorial(workers) / (1 - use)
    exact = last / (sum(terms) + last) * 100 / (workers * (1 - use))
    assert expected_queue_ms(workers, use, 100) == pytest.approx(exact, rel=0.1)
    assert expected_queue_ms(workers, 1.0, 100) == math.inf


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"minimum": 0}, "1 <= minimum"),
        ({"minimum": 5}, "5 to 4"),
        ({"goal_queue_ms": 0}, "goal_queue_ms is 0"),
        ({"up_after_s": math.nan}, "up_after_s is nan"),
        ({"down_after_s": 1}, "not go sooner"),
    ],
)
def test_policies_that_cannot_be_meant(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(POLICY, **wrong)  # type: ignore[arg-type]
