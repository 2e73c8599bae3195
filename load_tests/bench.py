"""This project beside its peers in one run: the same photographs, weights and thresholds, answers compared first.

One system runs at a time: it is started for its cells of a round and stopped after them, so that none takes from
another. Rounds are interleaved: a change of the machine's speed meets all systems alike. The results are written
after every cell, and a cell that is there is not measured again.
"""

from __future__ import annotations

import io
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from archive import checkpoint
from archive.build import Build, Wanted, Workspace, export_centerface
from archive.files import progress, sha256, whole
from load_tests import machine, report, triton
from load_tests.errors import LoadFailed
from load_tests.peers import compare, systems
from load_tests.peers.loops import Load, Timed
from load_tests.peers.systems import Running, Subject
from load_tests.peers.usage import Usage
from load_tests.pictures import PHOTOGRAPH

RESULTS = "results.json"
SEED = 1
#: Width x height of every photograph, px: MogFace's canvas 480x640 and CenterFace's as they are, nothing is scaled.
SIZE = (640, 480)
#: Seeded weights give hundreds of boxes: one of them may lie just at a threshold, where rounding decides.
MOST_DISAGREEMENT = {"mogface": 0.01, "centerface": 0.0}
#: Of what the slowest system answers a second at eight clients: the equal rate at which latencies are compared.
OFFERED = 0.7


@dataclass(frozen=True)
class Level:
    """One load, and in how many of the rounds it is measured: spread over them, first and last among them."""

    load: Load
    rounds: int


#: MogFace takes seconds an image: fewer answers, and 32 clients, of whom each waits for 32 images, in two rounds.
LEVELS = {
    "mogface": (Level(Load(1, answers=3), 5), Level(Load(8, answers=6), 5), Level(Load(32, answers=4), 2)),
    "centerface": (Level(Load(1, answers=80), 5), Level(Load(8, answers=120), 5), Level(Load(32, answers=120), 5)),
}
QUICK = {
    "mogface": (Level(Load(1, answers=1), 1), Level(Load(2, answers=1), 1)),
    "centerface": (Level(Load(1, answers=5), 1), Level(Load(4, answers=12), 1)),
}


@dataclass(frozen=True)
class Order:
    """What is to be measured.

    Attributes:
        models: names.
        levels: of each model.
        rounds: of all.
        offered: requests of a cell at the equal rate, CenterFace's alone: at a rate of seconds a request a standard
            deviation would take hours.
    """

    models: tuple[str, ...] = ("mogface", "centerface")
    levels: Mapping[str, Sequence[Level]] | None = None
    rounds: int = 5
    offered: int = 120

    @classmethod
    def quick(cls, models: Sequence[str]) -> Order:
        """Every step once, as short as can be: its figures mean nothing."""
        return cls(tuple(models), QUICK, 1, 12)

    def groups(self) -> Iterator[tuple[int, str, list[Load]]]:
        """Round, model and the loads it has then."""
        for turn, model in itertools.product(range(self.rounds), self.models):
            loads = [level.load for level in (self.levels or LEVELS)[model] if turn in self._turns(level)]
            yield turn, model, loads

    def _turns(self, level: Level) -> set[int]:
        count = min(level.rounds, self.rounds)
        return {0} if count == 1 else {round(step * (self.rounds - 1) / (count - 1)) for step in range(count)}


def run(order: Order, output: Path) -> Path:
    """Measure what ``output`` lacks; its ``results.json``, from which ``report`` makes tables and pictures.

    Raises:
        EnvironmentFault: no Triton.
        LoadFailed: a system that failed, or answered otherwise than the first one does.
    """
    triton.require()
    subjects = {name: _subject(name, output) for name in order.models}
    pictures = _pictures(output / "pictures")
    bench = _Bench(order, output, subjects, pictures)
    bench.closed()
    if "centerface" in order.models:
        bench.open("centerface")
    for path in report.write(output / RESULTS, output):
        print(path)
    return output / RESULTS


class _Bench:
    def __init__(self, order: Order, output: Path, subjects: Mapping[str, Subject], pictures: Sequence[Path]) -> None:
        self._order, self._subjects, self._pictures = order, subjects, pictures
        self._file = output / RESULTS
        self._references: dict[str, list[compare.Float32]] = {}
        conditions = {
            "machine": machine.describe(),
            "triton": triton.version(),
            "models": {name: _described(subject) for name, subject in subjects.items()},
            "pictures": [sha256(path) for path in pictures],
            "code": sha256(Path(systems.__file__)) + sha256(Path(systems.__file__).with_name("detector.py")),
        }
        self._results: dict[str, Any] = conditions | {"records": _kept(self._file, conditions)}

    def closed(self) -> None:
        """Every closed loop of every round."""
        groups = list(self._order.groups())
        total = sum(len(loads) for _, _, loads in groups) * len(systems.SYSTEMS)
        with progress("closed loops", total, "cells") as bar:
            for turn, model, loads in groups:
                for system, start in systems.SYSTEMS.items():
                    self._group(turn, model, system, start, loads, bar)

    def open(self, model: str) -> None:
        """Arrivals at one rate for all systems, and for this project without batches."""
        rate = self._rate(model)
        every = systems.SYSTEMS | systems.ONE_BY_ONE
        with progress(f"{rate:g} requests a second", self._order.rounds * len(every), "cell") as bar:
            for turn in range(self._order.rounds):
                for system, start in every.items():
                    self._group(turn, model, system, start, [Load(rate=rate, answers=self._order.offered)], bar)

    def _rate(self, model: str) -> float:
        """Fixed by the closed loops, so that it is the same when a run goes on."""
        levels = [level.load.clients for level in (self._order.levels or LEVELS)[model]]
        clients = sorted(levels)[len(levels) // 2]
        found = [each for each in self._results["records"] if each["model"] == model and each["clients"] == clients]
        slowest = min(
            statistics.median(float(each["rate"]) for each in found if each["system"] == system)
            for system in systems.SYSTEMS
        )
        return round(OFFERED * slowest, 1)

    def _group(self, turn: int, model: str, system: str, start: systems.Start, loads: Sequence[Load], bar: Any) -> None:
        missing = [load for load in loads if not self._has(turn, model, system, load)]
        bar.update(len(loads) - len(missing))
        if not missing:
            return
        with tempfile.TemporaryDirectory(prefix="mogface-bench-") as scratch, ExitStack() as stack:
            bar.set_postfix_str(f"{model}, {system}")
            running = stack.enter_context(start(self._subjects[model], Path(scratch)))
            # A first run of anything takes longer than all later ones.
            self._disagreement(model, system, running.measure(Load(1), self._pictures, 0))
            for load in missing:
                self._keep(self._measure(running, turn, model, system, load))
                bar.update(1)

    def _measure(self, running: Running, turn: int, model: str, system: str, load: Load) -> dict[str, Any]:
        with Usage(running.pid) as usage:
            timed = running.measure(load, self._pictures, turn)
        apart = self._disagreement(model, system, timed)
        seconds = max(each.sent_s + each.latency_ms / 1000 for each in timed)
        # Those that found the load that they were to find.
        latencies = [round(each.latency_ms, 3) for each in timed[load.before :]]
        p50, p95, p99 = np.percentile(latencies, [50, 95, 99]).tolist()
        return {
            "system": system,
            "model": model,
            "clients": load.clients,
            "offered_rate": load.rate,
            "round": turn,
            "answers": len(timed),
            "seconds": round(seconds, 3),
            "rate": round(len(timed) / seconds, 4),
            "p50_ms": round(p50, 2),
            "p95_ms": round(p95, 2),
            "p99_ms": round(p99, 2),
            "stdev_ms": round(float(np.std(latencies)), 2),
            "latencies_ms": latencies,
            "cpu_s_an_image": round(usage.cpu_s / len(timed), 4),
            "pss_mb": round(usage.pss_mb, 1),
            "disagreement": round(apart, 4),
        }

    def _disagreement(self, model: str, system: str, timed: Sequence[Timed]) -> float:
        """The most that an answer differs from the first system's to the same photograph.

        Raises:
            LoadFailed: it is more than rounding explains.
        """
        if model not in self._references:
            self._references[model] = self._refer(model)
        worst = 0.0
        for each in timed:
            apart = compare.disagreement(self._references[model][each.picture], compare.faces(each.body, *SIZE))
            worst = max(worst, apart)
        if worst > MOST_DISAGREEMENT[model]:
            raise LoadFailed(
                f"{system} finds other faces for {model} than {next(iter(systems.SYSTEMS))}: {worst:.1%} of them "
                f"differ, at most {MOST_DISAGREEMENT[model]:.0%} are rounding's; its times would mean nothing"
            )
        return worst

    def _refer(self, model: str) -> list[compare.Float32]:
        start = next(iter(systems.SYSTEMS.values()))
        with (
            tempfile.TemporaryDirectory(prefix="mogface-bench-") as scratch,
            start(self._subjects[model], Path(scratch)) as running,
        ):
            timed = running.measure(Load(1, answers=len(self._pictures)), self._pictures, 0)
        found = {each.picture: compare.faces(each.body, *SIZE) for each in timed}
        references = [found[number] for number in range(len(self._pictures))]
        if not all(len(each) for each in references):
            raise LoadFailed(f"{model}: a photograph without faces would compare nothing")
        return references

    def _has(self, turn: int, model: str, system: str, load: Load) -> bool:
        wanted = {"round": turn, "model": model, "system": system, "clients": load.clients, "offered_rate": load.rate}
        wanted["answers"] = load.requests
        return any(wanted.items() <= record.items() for record in self._comparable())

    def _comparable(self) -> Iterator[dict[str, Any]]:
        for record in self._results["records"]:
            yield {key: value for key, value in record.items() if not isinstance(value, list)}

    def _keep(self, record: Mapping[str, Any]) -> None:
        self._results["records"].append(record)
        with whole(self._file) as draft:
            draft.write_text(json.dumps(self._results, indent=1), encoding="utf-8")


def _kept(file: Path, conditions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Records made under the same conditions; others are moved aside, not mixed in."""
    if not file.exists():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    if any(found.get(name) != value for name, value in conditions.items()):
        aside = file.with_suffix(".before.json")
        file.replace(aside)
        print(f"{file} was measured otherwise (machine, versions, archives or photographs): kept as {aside.name}")
        return []
    records: list[dict[str, Any]] = found["records"]
    return records


def _subject(name: str, output: Path) -> Subject:
    """The archive and the peer's weights of a model; MogFace's are random numbers, the same for both."""
    workspace = Workspace(Path("build"), output / "model_store")
    weights = f"seeded:{SEED}" if name == "mogface" else "hub"
    mar, _ = Build(Wanted(name, weights=weights), workspace).archive()
    if name == "centerface":
        return Subject(name, mar, export_centerface(workspace)["centerface.onnx"])
    file = output / "weights" / f"seeded-{SEED}.pt"
    if not file.exists():
        state = dict(checkpoint.seeded(SEED).state)
        with whole(file) as draft:
            # With the parts that never act, as the released file has them.
            torch.save(state | {key: torch.zeros(shape) for key, shape in checkpoint.DEAD.items()}, draft)
    return Subject(name, mar, file)


def _described(subject: Subject) -> dict[str, str]:
    return {"archive": sha256(subject.mar), "weights": sha256(subject.weights)}


def _pictures(folder: Path) -> list[Path]:
    """Three photographs of one size, made of the one that is carried: one face, mirrored, two small ones."""
    with Image.open(PHOTOGRAPH) as file:
        portrait = file.convert("RGB")
    width, height = SIZE
    one, two = Image.new("RGB", SIZE, (120, 120, 120)), Image.new("RGB", SIZE, (90, 110, 130))
    one.paste(portrait.resize((height, height)), (0, 0))
    for left in (0, width // 2):
        two.paste(portrait.resize((width // 2, width // 2)), (left, (height - width // 2) // 2))
    paths = []
    for number, page in enumerate((one, ImageOps.mirror(one), two)):
        data = io.BytesIO()
        page.save(data, "JPEG", quality=90)
        paths.append(folder / f"{number}.jpg")
        with whole(paths[-1]) as draft:
            draft.write_bytes(data.getvalue())
    return paths
