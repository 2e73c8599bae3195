"""The file of a sweep: what is read is what was written, and anything else is refused by place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from load_tests import sweep, tune
from load_tests.errors import BadResults
from load_tests.points import Measured, Point
from load_tests.results import FILE, Results

LEVEL = {
    "kind": "closed",
    "level": 8,
    "seconds": 10.0,
    "rate": 25.0,
    "answered": 250,
    "failures": {},
    "p50_ms": 300.0,
    "p99_ms": 400.0,
    "batch_mean": 4.0,
    "stages_ms": {"network": 120.0},
}
NOBODY = LEVEL | {"rate": 0.0, "answered": 0, "failures": {"deadline": 3}, "p50_ms": None, "p99_ms": None}
MEASURED = Measured(Point("centerface", 2, 4, 1), [LEVEL, NOBODY], 800.0, None, 30.0)
RESULTS = Results({"machine": "m", "seconds": 10.0}, [MEASURED])


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    RESULTS.write(tmp_path / FILE)
    assert Results.read(tmp_path / FILE) == RESULTS


def change(*path: str | int, to: Any) -> Callable[[Any], Any]:
    def changed(value: Any) -> Any:
        value = copy.deepcopy(value)
        inner = value
        for name in path[:-1]:
            inner = inner[name]
        if to is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = to
        return value

    return changed


WRONG = [
    (lambda value: [], "its content is []: expected an object"),
    (lambda value: {"a": 1}, "points is missing"),
    (change("points", to={}), "points is {}: expected a list"),
    (change("points", 0, to=7), "points[0] is 7: expected an object"),
    (change("points", 0, "point", to=None), "points[0].point is missing"),
    (change("points", 0, "point", "workers", to=0), "points[0].point.workers is 0: expected a whole number from 1"),
    (change("points", 0, "point", "archive", to=5), "points[0].point.archive is 5: expected a text"),
    (change("points", 0, "levels", to=[]), "points[0].levels is empty"),
    (change("points", 0, "levels", 0, "rate", to="fast"), 'points[0].levels[0].rate is "fast": expected a number'),
    (change("points", 0, "levels", 0, "rate", to=float("nan")), "points[0].levels[0].rate is NaN: expected a number"),
    (change("points", 0, "levels", 0, "p99_ms", to=None), "points[0].levels[0].p99_ms is missing"),
    (change("points", 0, "levels", 1, "answered", to=1), "points[0].levels[1].p50_ms is null: expected a number"),
    (change("points", 0, "levels", 0, "failures", to=[1]), "points[0].levels[0].failures is [1]: expected an object"),
    (change("points", 0, "lost", to="no"), 'points[0].lost is "no": expected true or false'),
    (change("points", 0, "network_ms", to=-1), "points[0].network_ms is -1: expected a number"),
    (change("points", 0, "gpu_mb", to=True), "points[0].gpu_mb is true: expected a number"),
]


@pytest.mark.parametrize(("changed", "words"), WRONG, ids=[words for _, words in WRONG])
def test_another_shape_is_refused_by_place(tmp_path: Path, changed: Callable[[Any], Any], words: str) -> None:
    RESULTS.write(tmp_path / FILE)
    file = tmp_path / FILE
    file.write_text(json.dumps(changed(json.loads(file.read_text()))))
    with pytest.raises(BadResults) as refused:
        Results.read(file)
    assert str(refused.value).startswith(f"{file} holds no results of a sweep: {words}")
    assert "--results" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BadResults, match="holds no results of a sweep"):
        Results.read(tmp_path / FILE)


def test_none_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadResults, match="is not there: `load_tests sweep` writes it"):
        Results.read(tmp_path / FILE)
    (tmp_path / FILE).mkdir()
    with pytest.raises(BadResults, match="cannot be read: Is a directory"):
        Results.read(tmp_path / FILE)


def test_both_verbs_refuse_it_and_leave_it(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_text('{"points": 5}')
    with pytest.raises(BadResults):
        sweep._kept(file, {})
    with pytest.raises(BadResults):
        tune.run(tmp_path, [], None, tmp_path, None, tmp_path / "out")  # type: ignore[arg-type]
    assert file.read_text() == '{"points": 5}'
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_results_of_other_conditions_are_moved_aside(tmp_path: Path) -> None:
    RESULTS.write(tmp_path / FILE)
    assert sweep._kept(tmp_path / FILE, RESULTS.conditions) == [MEASURED]
    assert sweep._kept(tmp_path / FILE, {"machine": "another", "seconds": 10.0}) == []
    assert [each.name for each in tmp_path.iterdir()] == ["points.before.json"]
