"""What a batch leaves of a p99 goal to the queue."""

from __future__ import annotations

import math

import pytest

from clients.errors import UsageError
from clients.scaler import Policy
from load_tests.watch import difference, goal, quantile

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
    policy = Policy(1, 4, up_after_s=2, down_after_s=9)
    assert goal(policy, 500, 0.25) == Policy(1, 4, 250.0, 2, 9)
    assert goal(policy, 500, 0.125).goal_queue_ms == 375
    assert goal(policy, 500, None).goal_queue_ms == 250


def test_a_batch_that_leaves_nothing_is_said() -> None:
    with pytest.raises(UsageError, match="a batch alone takes 480 ms"):
        goal(Policy(1, 4), 500, 0.48)
