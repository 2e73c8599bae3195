"""Figures of load runs, against numbers worked out by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from load_tests.samples import Limits, Sample, Step, as_csv


def step(latencies: list[float], outcome: str = "ok", seconds: float = 2.0, left: int = 0) -> Step:
    samples = [Sample(number / 10, ms, outcome, "p", 4, {"network": 10.0}) for number, ms in enumerate(latencies)]
    return Step("closed", 4, seconds, samples, left)


def test_a_rate_is_answers_over_wall_time() -> None:
    # Eight requests that overlapped in two seconds: the sum of their latencies, eight seconds, is no duration.
    summary = step([1000.0] * 8).summary()
    assert summary["rate"] == 4.0
    assert summary["answered"] == 8


def test_percentiles() -> None:
    summary = step([float(ms) for ms in range(1, 102)]).summary()
    assert (summary["p50_ms"], summary["p95_ms"], summary["p99_ms"], summary["max_ms"]) == (51, 96, 100, 101)


def test_failures_are_counted_by_kind_and_are_no_answers() -> None:
    mixed = Step(
        "open",
        5,
        1.0,
        [Sample(0, 10, "ok", "p", 2), Sample(0, 9000, "queue_full", "p"), Sample(0, 1, "deadline", "p")],
        3,
    )
    summary = mixed.summary()
    assert summary["failures"] == {"deadline": 1, "queue_full": 1, "unanswered": 3}
    assert (summary["requests"], summary["answered"], summary["max_ms"]) == (6, 1, 10)


def test_batches_and_stages_are_of_the_answers_that_tell() -> None:
    summary = step([5.0, 5.0]).summary()
    assert summary["batch_sizes"] == {"4": 2}
    assert summary["batch_mean"] == 4
    assert summary["stages_ms"]["network"] == 10
    assert summary["stages_ms"]["decode"] == 0


def test_a_step_without_an_answer_has_no_latencies() -> None:
    summary = step([5.0], "deadline").summary()
    assert summary["p99_ms"] is None
    assert summary["rate"] == 0
    assert summary["stages_ms"] == {}


def test_every_sample_is_a_row() -> None:
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(as_csv([step([1.5, 2.5]), step([3.5])]))))
    assert [row["latency_ms"] for row in rows] == ["1.50", "2.50", "3.50"]
    assert [row["step"] for row in rows] == ["0", "0", "1"]
    assert rows[0]["network_ms"] == "10.0"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(p99_ms=50), "p99 is 100 ms, the limit is 50 ms"),
        (Limits(rate=2), "1.5 answers a second at best, the least allowed is 2"),
    ],
)
def test_a_limit_that_is_passed_is_said_with_both_numbers(limits: Limits, words: str) -> None:
    [sentence] = limits.broken([step([100.0] * 3).summary()])
    assert words in sentence


def test_limits_that_are_kept_say_nothing() -> None:
    assert Limits(p99_ms=100, rate=1.5).broken([step([100.0] * 3).summary()]) == []


def test_no_failure_is_allowed_by_default() -> None:
    bad = Step("closed", 1, 1.0, [Sample(0, 1, "ok", "p"), Sample(0, 1, "wrong_answer", "p")])
    [sentence] = Limits().broken([bad.summary()])
    assert "50.00% failed (1 wrong_answer)" in sentence
    assert Limits(failures=0.5).broken([bad.summary()]) == []
    assert Limits(failures=1.0).broken([step([], seconds=1).summary()]) != []
