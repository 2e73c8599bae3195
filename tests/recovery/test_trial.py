"""What outcomes come to, by hand; and the plain server is hurt by what this project's is not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from archive.build import Build, Wanted, Workspace
from archive.server import java_home
from handler.errors import EnvironmentFault
from tests.recovery import faults, load, report, trial
from tests.recovery.load import Load, NotWell, Outcome
from tests.recovery.subjects import ROOT, Subject, plain
from tests.recovery.trial import Row, row
from tests.requirements import lacking

SEEN = [
    Outcome(1.0, 0.1, "right"),
    Outcome(2.0, 0.1, "worker_died"),
    Outcome(2.5, 0.1, "right"),
    Outcome(3.0, 0.1, "wrong"),
    Outcome(7.0, 4.0, "right"),
    Outcome(8.0, 0.1, "right"),
]


def test_a_row() -> None:
    found = row("plain", "a fault", SEEN, 0.5, sender=Counter(answered=2), workers_lost=1)
    assert found == Row("plain", "a fault", 4, 1, {"worker_died": 1}, {"answered": 2}, 4.5, 6.5, 1)


def test_right_answers_are_counted_in_the_window_alone() -> None:
    assert row("plain", "a fault", SEEN, 0.5, window_s=3.0).right == 2


def test_where_nothing_failed_nothing_had_to_recover() -> None:
    found = row("plain", "none", [SEEN[0], SEEN[2]], 0.5)
    assert (found.recovery_s, found.silence_s, found.failed) == (0.0, 1.5, {})


def test_who_is_given_up_has_not_recovered() -> None:
    found = row("plain", "a fault", SEEN[:2], 0.5, ended=60.0)
    assert (found.recovery_s, found.silence_s) == (None, 59.0)
    assert "never" in str(found)


def test_the_table_has_both_servers_beside_each_other() -> None:
    given_up = row("plain", "a fault", SEEN[:2], 0.5, ended=60.0)
    text = report.table([row("ours", "a fault", SEEN[:1], 0.5), given_up], 12)
    assert text.splitlines()[0].startswith("| fault | ours: right in 12 s | ours: failed |")
    assert text.splitlines()[2] == "| a fault | 1 | none | 0.5 | 0 |  | 1 | 1 × worker_died | 59.0 | **never** |  |"
    assert "**wrong**" in report.table([row("ours", "a fault", SEEN, 0.5)], 12)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        java_home()
    except EnvironmentFault as error:
        lacking("java", error.message)
    folder = tmp_path_factory.mktemp("plain")
    mar, _ = Build(Wanted("centerface"), Workspace(ROOT / "build", folder / "built")).archive()
    with plain(mar, folder / "server") as running:
        yield running


def test_a_damaged_picture_costs_the_plain_servers_neighbours_their_answers(subject: Subject, tmp_path: Path) -> None:
    found = trial.run(subject, load.expected(subject), "damaged picture", faults.damaged_picture)
    assert found.wrong == 0
    assert set(found.sender) == {"503 InternalServerException"}
    assert found.failed.get("InternalServerException", 0) > 0
    assert found.recovery_s
    report.write([found], 0, tmp_path)
    assert json.loads((tmp_path / "recovery.json").read_text())["rows"][0]["failed"] == found.failed


def test_a_wrong_answer_is_seen_and_a_server_that_is_not_well_too(subject: Subject) -> None:
    """By callers who expect other faces than there are."""
    with Load(subject, load.expected(subject)) as running:
        running.expected[0] = [["another face"]]
        with pytest.raises(NotWell, match="wrong"):
            running.more(10_000, seconds=2)
        assert {outcome.kind for outcome in running.outcomes} == {"right", "wrong"}


def test_the_guide_tells_of_every_fault() -> None:
    guide = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert [name for name in faults.ALL if name != "none" and f"| {name} |" not in guide] == []
