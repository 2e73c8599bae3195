"""The file that a sweep leaves: the conditions it was measured under, and its points."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archive.files import whole
from load_tests.errors import BadResults
from load_tests.points import Measured, Point

FILE = "points.json"


@dataclass(frozen=True)
class Results:
    """What a sweep measured.

    Attributes:
        conditions: by name; only points of equal ones can be compared.
        points: in the order they were measured.
    """

    conditions: Mapping[str, Any]
    points: Sequence[Measured]

    def write(self, file: Path) -> None:
        """Whole or not at all."""
        found = dict(self.conditions) | {"points": [asdict(each) for each in self.points]}
        with whole(file) as draft:
            draft.write_text(json.dumps(found, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Results:
        """The reverse of ``write``.

        Raises:
            BadResults: the file is not there, cannot be read, or has another shape: where, what came, what is expected.
        """
        try:
            found = _mapping(json.loads(file.read_bytes()), "its content")
            rows = _list(_of(found, "points", ""), "points")
            points = [_measured(row, f"points[{index}]") for index, row in enumerate(rows)]
        except FileNotFoundError as error:
            raise BadResults(
                f"{file} is not there: `load_tests sweep` writes it; --results names its folder"
            ) from error
        except OSError as error:
            raise BadResults(f"{file} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise BadResults(
                f"{file} holds no results of a sweep: {error}. Move it away, or name another folder with --results"
            ) from error
        return cls({name: value for name, value in found.items() if name != "points"}, points)


def _measured(value: object, where: str) -> Measured:
    row = _mapping(value, where)
    levels = [
        _level(each, f"{where}.levels[{index}]")
        for index, each in enumerate(_list(_of(row, "levels", where), f"{where}.levels"))
    ]
    if not levels:
        raise ValueError(f"{where}.levels is empty: expected one level or more")
    gpu_mb, lost = row.get("gpu_mb"), _of(row, "lost", where)
    if not isinstance(lost, bool):
        raise ValueError(f"{where}.lost is {_shown(lost)}: expected true or false")
    return Measured(
        _point(_of(row, "point", where), f"{where}.point"),
        levels,
        _number(_of(row, "worker_mb", where), f"{where}.worker_mb"),
        None if gpu_mb is None else _number(gpu_mb, f"{where}.gpu_mb"),
        _number(_of(row, "network_ms", where), f"{where}.network_ms"),
        lost,
    )


def _point(value: object, where: str) -> Point:
    row = _mapping(value, where)
    archive = _of(row, "archive", where)
    if not isinstance(archive, str):
        raise ValueError(f"{where}.archive is {_shown(archive)}: expected a text")
    counts = []
    for name in ("workers", "batch", "delay_ms"):
        count = _of(row, name, where)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{where}.{name} is {_shown(count)}: expected a whole number from 1")
        counts.append(count)
    return Point(archive, *counts)


def _level(value: object, where: str) -> dict[str, Any]:
    row = _mapping(value, where)
    for name in ("level", "rate", "answered", "seconds"):
        _number(_of(row, name, where), f"{where}.{name}")
    for name in ("p50_ms", "p99_ms", "batch_mean"):
        # Where nothing was answered there are none; a batch's size is told by the detector's own answers alone.
        found = _of(row, name, where)
        if found is not None or (row["answered"] and name != "batch_mean"):
            _number(found, f"{where}.{name}")
    for name in ("failures", "stages_ms"):
        for key, number in _mapping(_of(row, name, where), f"{where}.{name}").items():
            _number(number, f"{where}.{name}.{key}")
    return row


def _of(row: Mapping[str, Any], name: str, where: str) -> object:
    if name not in row:
        raise ValueError(f"{f'{where}.' if where else ''}{name} is missing")
    return row[name]


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_shown(value)}: expected an object")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {_shown(value)}: expected a list")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{where} is {_shown(value)}: expected a number from 0")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
