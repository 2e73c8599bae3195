"""The benchmark's order of cells, and how it goes on; its systems are fakes here, tests/serving has the real ones."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from load_tests import bench, triton
from load_tests.bench import Level, Order
from load_tests.errors import LoadFailed
from load_tests.peers import systems
from load_tests.peers.loops import Load, Timed
from load_tests.peers.systems import Running, Subject

FACE = {"box": [10, 10, 50, 50], "score": 0.9}
LEVELS = {"centerface": (Level(Load(1, answers=2), 2), Level(Load(3, answers=3), 1))}


class FakeSystems:
    """Answers one face after a hundred milliseconds, without any server."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.faces: dict[str, list[dict[str, Any]]] = {}

    def start(self, name: str) -> systems.Start:
        @contextlib.contextmanager
        def run(subject: Subject, folder: Path) -> Iterator[Running]:
            self.started.append(name)

            def measure(load: Load, pictures: Sequence[Path], seed: int) -> list[Timed]:
                body = json.dumps({"faces": self.faces.get(name, [FACE])})
                count = len(pictures)
                return [Timed(number / 10, 100.0 + number, number % count, body) for number in range(load.requests)]

            # Of a process that is there: this one.
            yield Running(os.getpid(), measure)

        return run


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> FakeSystems:
    fakes = FakeSystems()
    monkeypatch.setattr(systems, "SYSTEMS", {name: fakes.start(name) for name in ("one", "two")})
    monkeypatch.setattr(systems, "ONE_BY_ONE", {"three": fakes.start("three")})
    monkeypatch.setattr(triton, "require", lambda: None)
    monkeypatch.setattr(triton, "version", lambda: "no Triton")
    return fakes


@pytest.fixture
def order() -> Order:
    return Order(("centerface",), LEVELS, rounds=2, offered=4)


def test_levels_are_spread_over_the_rounds() -> None:
    levels = {"mogface": (Level(Load(1), 5), Level(Load(8), 3), Level(Load(32), 2))}
    found = {turn: [load.clients for load in loads] for turn, _, loads in Order(("mogface",), levels, 5).groups()}
    assert found == {0: [1, 8, 32], 1: [1], 2: [1, 8], 3: [1], 4: [1, 8, 32]}
    # With fewer rounds than a level has, each of them.
    assert [len(loads) for _, _, loads in Order(("mogface",), levels, 2).groups()] == [3, 3]


def test_the_whole_order_has_every_level_of_both_models() -> None:
    seen = {(model, load.clients) for _, model, loads in Order().groups() for load in loads}
    assert seen == {(model, clients) for model in ("mogface", "centerface") for clients in (1, 8, 32)}


def test_every_cell_is_measured_once_and_kept(fakes: FakeSystems, order: Order, tmp_path: Path) -> None:
    file = bench.run(order, tmp_path)
    records = json.loads(file.read_text())["records"]
    cells = [(each["round"], each["system"], each["clients"], each["offered_rate"]) for each in records]
    assert len(cells) == len(set(cells)) == 2 * 2 + 2 + 2 * 3
    # Rounds are interleaved: both systems of a round come before the next round.
    assert [(turn, system) for turn, system, clients, _ in cells if clients == 1] == [
        (0, "one"), (0, "two"), (1, "one"), (1, "two"),
    ]  # fmt: skip
    first = records[0]
    # Requests sent 0, 0.1 and 0.2 s after the start; the last one answered 0.102 s later.
    assert (first["answers"], first["seconds"], first["rate"]) == (3, 0.302, pytest.approx(3 / 0.302, abs=1e-3))
    # The first request met no load.
    assert first["latencies_ms"] == [101.0, 102.0]
    assert first["p50_ms"] == 101.5
    assert first["stdev_ms"] == 0.5
    assert first["disagreement"] == 0
    # 0.7 of the slowest's at the most clients of a level in the middle: 6 answers in 0.605 s.
    [rate] = {each["offered_rate"] for each in records if not each["clients"]}
    assert rate == pytest.approx(0.7 * 6 / 0.605, abs=0.1)
    assert (tmp_path / "results.md").exists()


def test_what_is_there_is_not_measured_again(fakes: FakeSystems, order: Order, tmp_path: Path) -> None:
    file = bench.run(order, tmp_path)
    before = file.read_bytes()
    fakes.started.clear()
    bench.run(order, tmp_path)
    assert fakes.started == []
    assert file.read_bytes() == before
    results = json.loads(before)
    gone = results["records"].pop(2)
    file.write_text(json.dumps(results))
    bench.run(order, tmp_path)
    # The first gives the answers to compare with.
    assert fakes.started == [gone["system"], "one"]
    assert len(json.loads(file.read_text())["records"]) == len(results["records"]) + 1


def test_results_of_other_conditions_are_put_aside(fakes: FakeSystems, order: Order, tmp_path: Path) -> None:
    file = bench.run(order, tmp_path)
    results = json.loads(file.read_text())
    file.write_text(json.dumps(results | {"machine": "another"}))
    fakes.started.clear()
    bench.run(order, tmp_path)
    assert len(fakes.started) > 5
    assert json.loads((tmp_path / "results.before.json").read_text())["machine"] == "another"


def test_other_faces_end_the_run_before_their_times_are_kept(fakes: FakeSystems, order: Order, tmp_path: Path) -> None:
    fakes.faces["two"] = [FACE | {"box": [90, 90, 130, 130]}]
    with pytest.raises(LoadFailed, match=r"two finds other faces for centerface than one: 100\.0% of them differ"):
        bench.run(order, tmp_path)
    records = json.loads((tmp_path / "results.json").read_text())["records"]
    assert {each["system"] for each in records} == {"one"}


def test_no_faces_would_compare_nothing(fakes: FakeSystems, order: Order, tmp_path: Path) -> None:
    fakes.faces["one"] = fakes.faces["two"] = []
    with pytest.raises(LoadFailed, match="would compare nothing"):
        bench.run(order, tmp_path)
