"""Predictions against what real servers did: recorded in tests/data, and by command on the machine at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from load_tests import plan_calibration as calibration
from load_tests.plan import Box
from load_tests.plan_measured import predictions
from load_tests.plan_model import Service
from load_tests.results import Results

DATA = Path(__file__).resolve().parents[1] / "data"
#: A model that waits, by `load_tests plan --calibrate --seconds 20 --save`, on two cores of an AMD EPYC that had other
#: work to do.
WAITING = json.loads((DATA / "plan_waiting.json").read_text())


def test_the_queue_is_torchserves() -> None:
    compared = calibration.compare(WAITING)
    assert len(compared) == 7
    for each in compared:
        assert abs(each.rate_miss) <= 0.15, each
        assert abs(each.p99_miss) <= 0.30, each
        assert each.predicted.refused == pytest.approx(each.refused, abs=0.05), each
        # How many requests go together is what the delay, the lock and the workers make of it.
        assert each.predicted.batch_mean == pytest.approx(each.level["batch_mean"], rel=0.15), each
        assert each.good
    assert {each.level["kind"] for each in compared} == {"closed", "open"}
    assert max(each.refused for each in compared) > 0.3


def test_a_sweeps_own_levels_are_predicted() -> None:
    """CenterFace on two cores of an AMD EPYC that had other work to do, by `load_tests sweep --seconds 12`."""
    found = predictions(Results.read(DATA / "plan_centerface.json").points, Box())
    assert [(each.point.workers, each.point.batch, each.level["level"]) for each in found] == [
        (1, 4, 4),
        (2, 1, 2),
        (2, 4, 8),
    ]
    for each in found:
        assert abs(each.rate_miss) <= 0.15, each
        assert abs(each.p99_miss) <= 0.30, each


@pytest.mark.parametrize("change", [{"workers": 1}, {"batch": 1}, {"delay_ms": 1}, {"queue": 1}])
def test_another_server_would_not_be_taken_for_it(change: dict[str, int]) -> None:
    """The comparison can fail: of each of these settings at least one level is missed."""
    cases = [{**each, "case": {**each["case"], **change}} for each in WAITING["cases"]]
    compared = calibration.compare({**WAITING, "cases": cases})
    assert not all(each.good for each in compared), calibration.table(compared)


def test_a_wrong_service_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(lone: Any, saturated: Any) -> Service:
        return Service(3.0, 0.0, 60.0, 8.0)

    monkeypatch.setattr(calibration, "_service", slower)
    assert "MISS" in calibration.table(calibration.compare(WAITING))
