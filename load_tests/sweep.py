"""Batch size x delay x workers x precision through the server: one server a point, one file of results."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archive import configure, properties
from archive.files import progress, sha256, whole
from archive.serve import isolated
from archive.server import Server
from handler.errors import ConfigError
from load_tests import figures, launch, machine
from load_tests.memory import Peak
from load_tests.points import Measured, Point, front, is_lost, operations
from load_tests.results import FILE, Results

FIGURE = "pareto.png"
_ROW = "{:>32}  {:>5}  {:>9}  {:>7}  {:>10}  {}"


@dataclass(frozen=True)
class Grid:
    """What is varied, and how long each level is measured.

    Attributes:
        archives: .mar files of one model, each of its own engine or precision.
        workers: in all.
        batches: ``batchSize``.
        delays_ms: ``maxBatchDelay``.
        seconds: of a level; the first one runs a third of it more before, unmeasured.
    """

    archives: Sequence[Path]
    workers: Sequence[int]
    batches: Sequence[int]
    delays_ms: Sequence[int]
    seconds: float

    def points(self) -> Iterator[tuple[Path, Point]]:
        """Every combination. Its archive and its point."""
        for mar, workers, batch, delay in itertools.product(self.archives, self.workers, self.batches, self.delays_ms):
            yield mar, Point(mar.stem, workers, batch, delay)


def run(grid: Grid, base: Path, plan: configure.Plan, arguments: Sequence[str], folder: Path) -> list[Measured]:
    """Measure what the folder's results lack, write them after every point, draw the front.

    Args:
        grid: to go through.
        base: config.properties to take everything else from.
        plan: the machine's kind and GPUs; its workers, batch and delay are the points'.
        arguments: further ones for ``load_tests run``, as ``--photographs``.
        folder: of the results; what is there of the same machine, archives and seconds is kept.

    Raises:
        ConfigError: a point that this machine cannot run, by name.
        BadResults: the folder's file holds no results of a sweep; it is not touched.
    """
    file = folder / FILE
    conditions: dict[str, Any] = {
        "machine": machine.describe(),
        "seconds": grid.seconds,
        "arguments": list(arguments),
        "archives": {mar.stem: sha256(mar) for mar in grid.archives},
    }
    measured = _kept(file, conditions)
    points = list(grid.points())
    with progress("points", len(points), "point") as bar:
        for mar, point in points:
            if point not in [each.point for each in measured]:
                bar.set_postfix_str(point.name)
                measured.append(_measure(mar, point, grid.seconds, base, plan, arguments, measured))
                Results(conditions, measured).write(file)
            bar.update()
    every = operations(measured)
    title = f"{', '.join(conditions['archives'])}: {conditions['machine']}"
    shown = [{"name": op.name, "rate": op.rate, "p99_ms": op.p99_ms} for op in every]
    with whole(folder / FIGURE) as draft:
        figures.sweep(shown, front(every), title, draft)
    return measured


def report(measured: Sequence[Measured], folder: Path) -> None:
    """Print the points as a table, those of the Pareto front marked."""
    every = operations(measured)
    best = set(front(every))
    print(_ROW.format("point", "users", "answers/s", "p99 ms", "workers MB", ""))
    for index, op in enumerate(every):
        numbers = [f"{op.rate:.1f}", f"{op.p99_ms:.0f}", f"{op.measured.worker_mb:.0f}"]
        mark = "front" if index in best else "lost, not measured further" if op.measured.lost else ""
        print(_ROW.format(op.measured.point.name, op.level["level"], *numbers, mark))
    print(f"{folder / FILE}, {FIGURE}")


def _kept(file: Path, conditions: Mapping[str, Any]) -> list[Measured]:
    """What is there and was measured under the same conditions; other results are moved aside, not mixed in."""
    if not file.exists():
        return []
    found = Results.read(file)
    if found.conditions != conditions:
        aside = file.with_suffix(".before.json")
        file.replace(aside)
        print(f"{file} was measured otherwise (machine, archives, seconds or pictures): kept as {aside.name}")
        return []
    return list(found.points)


def _measure(
    mar: Path,
    point: Point,
    seconds: float,
    base: Path,
    plan: configure.Plan,
    arguments: Sequence[str],
    others: Sequence[Measured],
) -> Measured:
    with tempfile.TemporaryDirectory(prefix="mogface-sweep-") as scratch:
        folder = Path(scratch)
        config, archive = configured(mar, point, base, plan, folder)
        with (folder / "console.log").open("wb") as console:
            served = archive.name
            with Server(config, [f"{served}.mar"], folder, folder / "tmp", console) as server:
                server.wait([served])
                levels: list[Mapping[str, Any]] = []
                lost = False
                ask = ["--address", server.inference, "--model", served, "--token-file", str(folder / "key_file.json")]
                launch.run([*ask, *arguments, "--users", str(point.levels()[0]), "--seconds", str(seconds / 3)], folder)
                with Peak(server, served) as peak:
                    for users in point.levels():
                        report = launch.run(
                            [*ask, *arguments, "--users", str(users), "--seconds", str(seconds)], folder
                        )
                        levels += report["steps"]
                        lost = is_lost(levels[0], others)
                        if lost:
                            break
    together = min(levels[0]["batch_mean"] or 1, archive.settings.engine_batch)
    network = levels[0]["stages_ms"].get("network", 0.0) / max(1.0, together)
    return Measured(point, levels, peak.worker_mb, peak.gpu_mb, network, lost)


def configured(
    mar: Path, point: Point, base: Path, plan: configure.Plan, folder: Path
) -> tuple[Path, configure.Archive]:
    """A point's config.properties on free ports in ``folder``, with a model store of its archive alone.

    Raises:
        ConfigError: what cannot run so.
    """
    archive = configure.read_archive(mar)
    store = folder / "model_store"
    store.mkdir()
    shutil.copy(mar, store / f"{archive.name}.mar")
    shared = isolated(base, folder)
    values = properties.parse(configure.configure(properties.read(shared), [archive], planned(point, plan)))
    shared.write_text(properties.render(values | {"model_store": str(store)}), encoding="utf-8")
    return shared, archive


def planned(point: Point, plan: configure.Plan) -> configure.Plan:
    """A machine's plan with a point's workers, batch and delay.

    Raises:
        ConfigError: workers that do not share the GPUs evenly.
    """
    gpus = max(1, plan.gpus)
    if point.workers % gpus:
        raise ConfigError(f"{point.workers} workers on {gpus} GPUs: expected a multiple of {gpus}")
    return replace(plan, workers=point.workers // gpus, batch=point.batch, delay_ms=point.delay_ms)
