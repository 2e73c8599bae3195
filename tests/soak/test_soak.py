"""Some twenty seconds of a soak, through a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from archive.server import java_home
from handler.errors import EnvironmentFault
from tests.requirements import lacking
from tests.soak import report, run, verdict
from tests.soak.mix import SHARES

SECONDS = 20


def test_twenty_seconds(tmp_path: Path) -> None:
    try:
        java_home()
    except EnvironmentFault as error:
        lacking("java", error.message)
    said: list[str] = []
    passed: list[float] = []
    (tmp_path / "server").mkdir()
    with run.server(tmp_path / "server") as running:
        seen = asyncio.run(run.soak(running, SECONDS, 4.0, said.append, passed.append))
    found = verdict.judge(seen)
    # Of so few requests not every kind has its turn.
    assert [each for each in found.breaches if not each.endswith("was answered")] == [], found.said
    assert found.died == []
    assert found.restarts >= 1
    assert {window.kind for window in seen.windows} == {"kill", "burst", "renew"}
    assert len(found.counts.keys() & SHARES.keys()) >= 5
    assert found.counts["burst"]["right"] > 0
    assert sum(ends.get("right", 0) for ends in found.counts.values()) >= 40
    assert len(seen.samples) >= 4
    assert all(len(sample.workers) in (1, 2) for sample in seen.samples)
    assert all(held.rss > 100 for sample in seen.samples for held in sample.workers.values())
    assert sum(passed) == pytest.approx(SECONDS)
    text = report.write(seen, found, tmp_path / "out")
    assert text == (tmp_path / "out" / "soak.md").read_text()
    assert json.loads((tmp_path / "out" / "soak.json").read_text())["counts"] == found.counts
    assert (tmp_path / "out" / "soak.png").read_bytes().startswith(b"\x89PNG")
