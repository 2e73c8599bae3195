"""Sections within a budget."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.budget import Budget, Found


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "x.json"


def written(output: Path) -> dict[str, Any]:
    sections: dict[str, Any] = json.loads(output.read_text())["sections"]
    return sections


def test_a_section_that_fails_keeps_what_it_found_and_the_next_goes_on(output: Path) -> None:
    budget = Budget(1, output)

    def breaks(found: Found) -> None:
        found["rows"] = [1]
        raise ZeroDivisionError("an odd GPU")

    budget.section("first", breaks, 0)
    assert written(output)["first"]["rows"] == [1]
    budget.section("second", lambda found: found.update(two=2), 0)
    assert budget.failed
    first, second = written(output).values()
    assert (first["state"], first["reason"], first["rows"]) == ("failed", "ZeroDivisionError: an odd GPU", [1])
    assert (second["state"], second["two"]) == ("ok", 2)


def test_what_does_not_fit_is_not_begun(output: Path) -> None:
    budget = Budget(0.5, output)
    begun: list[Found] = []
    budget.section("long", begun.append, 31)
    assert begun == []
    assert written(output)["long"]["state"] == "not run"
    assert "30 s left, 31 needed" in written(output)["long"]["reason"]
    assert not budget.failed
    budget.section("short", begun.append, 10)
    assert len(begun) == 1


def test_a_section_ends_with_the_budget(output: Path) -> None:
    budget = Budget(0.01, output)
    started = time.monotonic()
    found = budget.section("endless", lambda found: time.sleep(30), 0)
    assert time.monotonic() - started < 5
    assert found["state"] == "failed"
    assert "budget of 0.01 minutes is spent" in found["reason"]
    assert budget.left < 0
    # And nothing rings later.
    time.sleep(0.2)
