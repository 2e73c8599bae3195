"""The choice among what a sweep measured."""

from __future__ import annotations

from typing import Any

import pytest

from load_tests.errors import NoPoint
from load_tests.points import Measured, Operation, Point, choose, front, is_lost, limit, operations


def level(
    rate: float, p99: float, users: int = 1, failures: int = 0, stages: dict[str, float] | None = None
) -> dict[str, Any]:
    return {
        "level": users,
        "rate": rate,
        "p50_ms": p99 / 2,
        "p99_ms": p99,
        "answered": 100,
        "failures": {"deadline": failures} if failures else {},
        "stages_ms": stages or {"network": 30.0, "decode": 3.0},
    }


def measured(workers: int, *levels: dict[str, Any], batch: int = 1, network_ms: float = 30.0) -> Measured:
    return Measured(Point("centerface", workers, batch, 1), levels, 400.0 * workers, None, network_ms)


def test_a_point_is_measured_saturated_first() -> None:
    assert Point("a", 2, 8, 1).levels() == (32, 16, 1)
    assert Point("a", 1, 1, 1).levels() == (2, 1)


def test_the_front_has_what_nothing_beats_in_both() -> None:
    points = operations([measured(1, level(10, 100), level(20, 90), level(30, 200), level(25, 250), level(5, 40))])
    assert [points[index].rate for index in front(points)] == [5, 20, 30]


def test_equal_points_are_on_the_front_once() -> None:
    points = operations([measured(1, level(10, 100), level(10, 100))])
    assert len(front(points)) == 1


def test_the_highest_rate_within_the_goal_is_chosen() -> None:
    found = [measured(1, level(10, 50), level(20, 150)), measured(2, level(40, 300))]
    assert choose(found, 200).rate == 20
    assert choose(found, 60).rate == 10
    assert choose(found, None).rate == 40


def test_among_equal_rates_fewer_workers_win() -> None:
    found = [measured(2, level(30.5, 90)), measured(1, level(30, 120))]
    assert choose(found, None).measured.point.workers == 1


def test_a_goal_that_nothing_keeps_to_is_refused_with_the_best() -> None:
    with pytest.raises(NoPoint, match="the least is 50 ms"):
        choose([measured(1, level(10, 50), level(20, 150))], 20)


def test_a_level_with_failures_is_no_candidate() -> None:
    with pytest.raises(NoPoint, match="without failures"):
        choose([measured(1, level(99, 1, failures=1))], None)


def test_lost_is_worse_in_both() -> None:
    others = [measured(1, level(100, 100))]
    assert is_lost(level(50, 200), others)
    assert not is_lost(level(50, 90), others)
    assert not is_lost(level(90, 500), others)
    assert not is_lost(level(1, 1000), [])


def test_what_limits_is_named() -> None:
    # 30 answers a second of 30 ms each fill nine tenths of one worker, under half of two.
    busy = Operation(measured(1, level(30, 200)), level(30, 200))
    assert limit(busy, 2, 16_000)[0].startswith("network: it takes 90%")
    idle = Operation(measured(2, level(30, 200)), level(30, 200))
    assert limit(idle, 2, 16_000)[0].startswith("queue: the network takes 45%")
    heavy = level(30, 200, stages={"network": 5.0, "decode": 60.0})
    decoding = Operation(measured(1, heavy, network_ms=5.0), heavy)
    assert limit(decoding, 2, 16_000)[0].startswith("decode: it takes 90%")


def test_memory_for_one_more_worker_is_worked_out() -> None:
    one = Operation(measured(2, level(30, 200)), level(30, 200))
    assert limit(one, 2, 1200)[-1] == "memory: 2 workers hold 800 MB; one more (400 MB) fits"
    assert limit(one, 2, 1199)[-1].endswith("does not fit")
