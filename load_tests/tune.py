"""A point of a sweep -> the config.properties that runs it, with the figures it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from archive import configure, properties
from archive.files import whole
from handler.config import cores
from handler.errors import ConfigError
from load_tests import machine, sweep
from load_tests.points import Operation, choose, limit
from load_tests.results import FILE, Results

#: What a level has to last for its p99 to mean much.
_SHORT_S = 8.0


def run(
    folder: Path, archives: Sequence[Path], p99_ms: float | None, base: Path, plan: configure.Plan, output: Path
) -> Operation:
    """Choose, explain, write.

    Args:
        folder: of the sweep's results.
        archives: that it measured.
        p99_ms: what p99 is to keep to; None for the highest rate.
        base: config.properties to take everything else from.
        plan: the machine's kind and GPUs.
        output: the file to write.

    Raises:
        NoPoint: no point keeps to the goal; with the best there is.
        BadResults: there are no results, or the file holds others.
        ConfigError: the archive is not there any more, or this machine cannot run the point.
    """
    best = choose(Results.read(folder / FILE).points, p99_ms)
    point = best.measured.point
    mar = next((mar for mar in archives if mar.stem == point.archive), None)
    if mar is None:
        raise ConfigError(f"the best point runs {point.archive}.mar, which is not among the archives given")
    memory_mb = configure.memory_bytes() / 1e6
    goal = "the highest rate" if p99_ms is None else f"the highest rate with a p99 of {p99_ms:g} ms or less"
    lines = [
        f"Tuned for {goal}, by a sweep on {machine.describe()}.",
        f"{best.name}: {best.rate:.1f} answers a second, p99 {best.p99_ms:.0f} ms, "
        f"{best.measured.image_ms:.1f} ms an image, {best.measured.worker_mb:.0f} MB of workers.",
        *limit(best, cores(), memory_mb),
    ]
    if min(float(level["seconds"]) for level in best.measured.levels) < _SHORT_S:
        lines.append(f"Levels were measured for less than {_SHORT_S:g} s: a longer sweep may choose another point.")
    text = configure.configure(properties.read(base), [configure.read_archive(mar)], sweep.planned(point, plan))
    with whole(output) as draft:
        draft.write_text("".join(f"# {line}\n" for line in lines) + text, encoding="utf-8")
    print("\n".join(lines))
    print(f"{output}: workers {point.workers}, batch {point.batch}, delay {point.delay_ms} ms, of {mar}")
    return best
