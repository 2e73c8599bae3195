"""A model through a real server: time to ready, memory, answers a second over REST and gRPC by batch size.

A model that does nothing runs beside it in the same server and the same rounds: what TorchServe itself costs.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive import properties
from archive.files import progress
from archive.pack import read_artifacts
from archive.serve import isolated
from archive.server import Server
from handler.config import cores
from load_tests import launch, machine, noop
from load_tests.memory import Peak

_ROW = "{:>12}  {:>6}  {:>5}  {:>5}  {:>9}  {:>8}  {:>8}  {:>10}"
#: One size, so that rates of one machine can be compared with those of another.
_SIZE = "640x480"


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    model: str
    batch: int
    protocol: str
    users: int

    @property
    def served(self) -> str:
        """The model's name in the server."""
        return f"{self.model}-b{self.batch}"


def run(config: Path, model: str, users: Sequence[int], batches: Sequence[int], seconds: float, rounds: int) -> None:
    """Print a table of medians over interleaved rounds; every answer is checked.

    Args:
        config: config.properties to take everything but ports, batches and models from.
        model: to measure.
        users: closed loops at once.
        batches: ``batchSize``.
        seconds: of one round.
        rounds: of each cell.
    """
    cells = [
        Cell(name, batch, protocol, count)
        for name in (model, noop.NAME)
        for batch in batches
        for protocol in ("http", "grpc")
        for count in users
    ]
    found: dict[Cell, list[Mapping[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mogface-load-") as scratch:
        folder = Path(scratch)
        ready = _time_to_ready(config, model, folder / "alone")
        private = _config(config, model, batches, folder)
        # One model at a time is asked, so each may have what a single one would.
        env = {"OMP_NUM_THREADS": str(cores())}
        names = sorted({cell.served for cell in cells})
        models = [f"{name}={name.rpartition('-b')[0]}.mar" for name in names]
        with (
            (folder / "console.log").open("wb") as console,
            Server(private, models, folder, folder / "tmp", console, env) as server,
        ):
            server.wait(names)
            with Peak(server, f"{model}-b{max(batches)}") as peak, progress("rounds", rounds * len(cells)) as bar:
                for _ in range(rounds):
                    for cell in cells:
                        found[cell].append(_measure(server, cell, seconds, folder))
                        bar.update(1)
    print(machine.describe())
    print(f"{model}: server started to ready {ready:.1f} s; worker at most {peak.worker_mb:.0f} MB resident")
    print(_ROW.format("model", "over", "batch", "users", "answers/s", "p50 ms", "p99 ms", "batch mean"))
    for cell in cells:
        numbers = [_median(found[cell], name) for name in ("rate", "p50_ms", "p99_ms", "batch_mean")]
        over = "REST" if cell.protocol == "http" else "gRPC"
        print(_ROW.format(cell.model, over, cell.batch, cell.users, *(f"{number:.1f}" for number in numbers)))


def _median(rounds: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.median(float(each[name]) for each in rounds)


def _time_to_ready(config: Path, model: str, folder: Path) -> float:
    folder.mkdir()
    private = isolated(config, folder)
    with (folder / "console.log").open("wb") as console:
        begun = time.monotonic()
        with Server(private, [f"{model}.mar"], folder, folder / "tmp", console) as server:
            server.wait([model])
            return time.monotonic() - begun


def _config(config: Path, model: str, batches: Sequence[int], folder: Path) -> Path:
    """Each batch size of the model, and of the one that does nothing, as a model of its own."""
    private = isolated(config, folder)
    values = properties.read(private)
    store = folder / "model_store"
    store.mkdir()
    mar = Path(values["model_store"]) / f"{model}.mar"
    shutil.copy(mar, store)
    noop.pack(store)
    versions = {model: str(read_artifacts(mar)["version"]), noop.NAME: noop.VERSION}
    entry = next(iter(properties.models(values)[model].values()))
    models = {
        f"{name}-b{batch}": {version: {**entry, "minWorkers": 1, "maxWorkers": 1, "batchSize": batch}}
        for name, version in versions.items()
        for batch in batches
    }
    values |= {"model_store": str(store), "models": json.dumps(models)}
    private.write_text(properties.render(values), encoding="utf-8")
    return private


def _measure(server: Server, cell: Cell, seconds: float, folder: Path) -> Mapping[str, Any]:
    address = (
        server.inference if cell.protocol == "http" else f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"
    )
    arguments = ["--address", address, "--model", cell.served, "--token-file", str(server.folder / "key_file.json")]
    arguments += ["--sizes", _SIZE, "--users", str(cell.users), "--seconds", str(seconds)]
    # The model that does nothing finds nothing.
    arguments += ["--any-answer"] if cell.model == noop.NAME else []
    report = launch.run(arguments, folder)
    if report["broken"]:
        raise launch.LoadFailed(f"{cell}: {'; '.join(report['broken'])}: the figures would mean nothing")
    step: Mapping[str, Any] = report["steps"][0]
    return step
