"""Faults of a real server under a light load: what callers see, and how long until it answers again.

The load are four callers, two over REST and two over gRPC, who send one photograph each again and again and never send
one twice: every answer has to be the right one, and every refusal is counted. `pytest -s` shows the rows;
`python -m tests.recovery` puts them beside a plain TorchServe's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archive.server import java_home
from handler.errors import EnvironmentFault
from tests.recovery import faults, trial
from tests.recovery.faults import Act
from tests.recovery.load import expected
from tests.recovery.subjects import RESPONSE_S, Subject, ours
from tests.recovery.trial import Row
from tests.requirements import lacking

Measure = Callable[[str, Act], Row]


@pytest.fixture(scope="module")
def subject(centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        java_home()
    except EnvironmentFault as error:
        lacking("java", error.message)
    with ours(centerface_mar, tmp_path_factory.mktemp("faults") / "ours") as running:
        yield running


@pytest.fixture(scope="module")
def rows(pytestconfig: pytest.Config) -> Iterator[list[Row]]:
    seen: list[Row] = []
    yield seen
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stderr.write("\n".join(["", *map(str, seen), ""]))


@pytest.fixture(scope="module")
def measure(subject: Subject, rows: list[Row]) -> Measure:
    """Do something to the server under load; what callers saw from then on until all was well again."""
    told = expected(subject)

    def run(fault: str, act: Act) -> Row:
        row = trial.run(subject, told, fault, act)
        rows.append(row)
        assert row.wrong == 0
        assert row.right >= 12
        assert row.recovery_s is not None
        return row

    return run


@pytest.mark.parametrize(
    ("act", "sender"),
    [
        (faults.nothing, set()),
        (faults.damaged_picture, {"400 invalid_image"}),
        (faults.engine_error, {"500 engine"}),
        (faults.out_of_memory, {"503 out_of_memory"}),
        (faults.answer_too_large, {"413 too_large"}),
        (faults.stream_call, {"1 answer"}),
        (faults.clients_gone, set()),
        (faults.slow_uploads, set()),
    ],
)
def test_what_costs_nobody_else_anything(measure: Measure, act: Act, sender: set[str]) -> None:
    row = measure(act.__name__, act)
    assert row.failed == {}
    assert row.workers_lost == 0
    assert set(row.sender) == sender


def test_batch_past_its_deadline(measure: Measure) -> None:
    """Eight images of a second in one batch, of which the deadline of 2 s lets two or three begin."""
    row = measure("slow batch", faults.slow_batch)
    assert set(row.sender) == {"answered", "503 deadline"}
    assert row.sender["answered"] >= 4
    assert sum(row.sender.values()) == 20
    # Whoever shares a batch with them may be late, and is told so.
    assert set(row.failed) <= {"deadline"}
    assert row.workers_lost == 0


def test_worker_killed(measure: Measure) -> None:
    row = measure("worker killed", faults.worker_killed)
    # Those that it had; those in the queue wait for the next worker.
    assert set(row.failed) <= {"worker_died"}
    assert row.failed.get("worker_died", 0) <= 4
    assert row.silence_s < 30
    assert row.workers_lost == 1


def test_worker_stopped(measure: Measure) -> None:
    """A worker that hangs: responseTimeout ends it."""
    row = measure("worker stopped", faults.worker_stopped)
    assert set(row.failed) == {"worker_died"}
    assert row.failed["worker_died"] <= 4
    assert RESPONSE_S <= row.silence_s < RESPONSE_S + 30
    assert row.workers_lost == 1


def test_front_end_killed_and_started_again(measure: Measure) -> None:
    row = measure("front end killed, started again", faults.front_end_killed)
    # A new front end has new tokens: whoever has the file reads them again.
    assert set(row.failed) <= {"unreachable", "not_authorised", "usage"}
    assert row.failed["unreachable"] > 0
    assert row.workers_lost == 1
