"""Is the queueing model TorchServe's? A real server runs a model that only waits, and what it does is predicted.

A model that waits takes a known time and next to no processor, so that what is left to compare is the queue, the
batches, the delay and the refusals; a machine's other work hardly disturbs it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive

from archive import properties
from archive.files import progress
from archive.serve import isolated
from archive.server import Server
from load_tests import launch, machine, plan_service
from load_tests.plan_model import Service, Serving
from load_tests.plan_simulation import Arrivals, Outcome, Users, simulate

NAME = "waiting"
_VERSION = "1.0"
#: What its batches take, ms: long beside what a busy machine adds, short enough for hundreds of requests.
BATCH_MS, IMAGE_MS = 30.0, 8.0
#: By which a prediction may miss, as a share of what was measured.
RATE_MISS, P99_MISS = 0.15, 0.30
_HANDLER = '''\
"""Answers every request alike, after a known time."""
import json
import time
from ts.torch_handler.base_handler import BaseHandler


class WaitingHandler(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        milliseconds = {batch_ms} + {image_ms} * len(data)
        time.sleep(milliseconds / 1000)
        answer = {{
            "model": {{"name": "waiting", "version": "1.0", "weights": "none", "engine": "none", "precision": "none"}},
            "image": {{"width": 1, "height": 1}}, "canvas": "1x1", "scale": 1.0, "faces": [],
            "timing_ms": {{"network": milliseconds}}, "batch_size": len(data),
        }}
        for index in range(len(data)):
            context.set_response_content_type(index, "application/json")
        return [json.dumps(answer)] * len(data)
'''


@dataclass(frozen=True)
class Case:
    """One server and the loads on it.

    Attributes:
        workers: of the model.
        batch: ``batchSize``.
        delay_ms: ``maxBatchDelay``.
        queue: ``job_queue_size``.
        users: closed loops, one level each.
        rates: requests a second, one level each.
    """

    workers: int
    batch: int
    delay_ms: int
    queue: int
    users: Sequence[int]
    rates: Sequence[float]


#: Lone requests, full and half-filled batches, several workers at one queue, a delay that is waited out, a full queue.
CASES = (
    Case(1, 1, 1, 100, (1, 4), (15,)),
    Case(2, 4, 100, 100, (1, 16), (30,)),
    Case(4, 8, 1, 100, (48,), (120,)),
    Case(1, 1, 1, 4, (), (40,)),
)


@dataclass(frozen=True)
class Compared:
    """One level, measured and predicted.

    Attributes:
        case: of the server.
        level: as ``load_tests run`` summarises it.
        predicted: by the simulation.
    """

    case: Case
    level: Mapping[str, Any]
    predicted: Outcome

    @property
    def rate_miss(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted.rate / float(self.level["rate"]) - 1

    @property
    def p99_miss(self) -> float:
        """Likewise."""
        return self.predicted.p99_ms / float(self.level["p99_ms"]) - 1

    @property
    def refused(self) -> float:
        """Share of the requests that were refused, as measured."""
        return float(sum(self.level["failures"].values()) / self.level["requests"])

    @property
    def good(self) -> bool:
        """Whether it is as near as it has to be."""
        near = abs(self.rate_miss) <= RATE_MISS and abs(self.p99_miss) <= P99_MISS
        return near and abs(self.predicted.refused - self.refused) <= RATE_MISS


def measure(base: Path, cases: Sequence[Case], seconds: float) -> dict[str, Any]:
    """Run the cases on real servers, one after the other.

    Args:
        base: config.properties to take everything else from.
        cases: to run.
        seconds: of each level.

    Returns:
        ``machine``, ``seconds``, and ``cases``: each with ``case`` and ``levels``.
    """
    found: list[dict[str, Any]] = []
    levels = sum(len(case.users) + len(case.rates) for case in cases)
    with progress("levels", levels, "level") as bar:
        for case in cases:
            bar.set_postfix_str(f"{case.workers} workers, batches of {case.batch}, delay {case.delay_ms} ms")
            with tempfile.TemporaryDirectory(prefix="mogface-plan-") as scratch:
                found.append({"case": asdict(case), "levels": _levels(base, case, seconds, Path(scratch))})
            bar.update(len(case.users) + len(case.rates))
    return {"machine": machine.describe(), "seconds": seconds, "cases": found}


def compare(measured: Mapping[str, Any]) -> list[Compared]:
    """Predict what was measured.

    The first case's two closed loops, one user and a saturated worker, say what a request and a batch cost beside the
    waiting, and how this machine spreads it. From these alone every other level is predicted.

    Args:
        measured: of ``measure``.
    """
    cases = [(Case(**each["case"]), each["levels"]) for each in measured["cases"]]
    lone, saturated, *others = cases[0][1]
    service = _service(lone, saturated)
    unseen = [(cases[0][0], others), *cases[1:]]
    return [
        Compared(case, level, _predicted(service, case, level))
        for case, levels in unseen
        for level in levels
        if level["answered"]
    ]


def _service(lone: Mapping[str, Any], saturated: Mapping[str, Any]) -> Service:
    cycle = 1000 / float(saturated["rate"])
    front = max(0.0, float(lone["p50_ms"]) - cycle)
    spread = plan_service.spread([(lone[name] - front) / (lone["p50_ms"] - front) for name in plan_service.QUANTILES])
    # What a batch takes over its waiting, of which a cycle's mean has the spread's share too.
    return Service(front, 0.0, max(0.0, cycle / spread.mean - IMAGE_MS), IMAGE_MS, spread)


def table(compared: Sequence[Compared]) -> str:
    """Every level, measured beside predicted."""
    row = "{:>26}  {:>9}  {:>9}  {:>9}  {:>6}  {:>9}  {:>9}  {:>6}  {:>15}  {}"
    lines = [
        row.format("server", "load", "rate", "predicted", "", "p99 ms", "predicted", "", "refused", "").rstrip(),
    ]
    for each in compared:
        server = f"w{each.case.workers} b{each.case.batch} d{each.case.delay_ms} q{each.case.queue}"
        load = f"{each.level['level']:g} {'users' if each.level['kind'] == 'closed' else '/s'}"
        rates = [f"{each.level['rate']:.1f}", f"{each.predicted.rate:.1f}", f"{each.rate_miss:+.0%}"]
        tails = [f"{each.level['p99_ms']:.0f}", f"{each.predicted.p99_ms:.0f}", f"{each.p99_miss:+.0%}"]
        refused = f"{each.refused:.0%} / {each.predicted.refused:.0%}"
        lines.append(row.format(server, load, *rates, *tails, refused, "" if each.good else "MISS").rstrip())
    return "\n".join(lines)


def _predicted(service: Service, case: Case, level: Mapping[str, Any]) -> Outcome:
    serving = Serving(case.workers, case.batch, case.delay_ms, case.queue, devices=case.workers, cores=1)
    load = Users(int(level["level"])) if level["kind"] == "closed" else Arrivals(float(level["level"]))
    # As many requests as were sent, from a server that was idle: a short run's tail is that of a short run.
    return simulate(service, serving, load, requests=int(level["requests"]), warm_up=0.0)


def _levels(base: Path, case: Case, seconds: float, folder: Path) -> list[Mapping[str, Any]]:
    store = folder / "model_store"
    store.mkdir()
    _pack(store)
    config = isolated(base, folder)
    entry = {"minWorkers": case.workers, "maxWorkers": case.workers, "batchSize": case.batch}
    entry |= {"maxBatchDelay": case.delay_ms, "responseTimeout": 120}
    values = properties.read(config) | {"model_store": str(store), "job_queue_size": str(case.queue)}
    values |= {"models": json.dumps({NAME: {_VERSION: entry}})}
    config.write_text(properties.render(values), encoding="utf-8")
    with (
        (folder / "console.log").open("wb") as console,
        Server(config, [f"{NAME}.mar"], folder, folder / "tmp", console) as server,
    ):
        server.wait([NAME])
        ask = ["--address", server.inference, "--model", NAME, "--token-file", str(folder / "key_file.json")]
        ask += ["--any-answer", "--sizes", "64x48"]
        # The front end's first hundreds of requests are slow, while Java compiles itself.
        launch.run([*ask, "--users", str(2 * case.workers * case.batch), "--seconds", "3"], folder)
        loads = [("--users", str(users)) for users in case.users] + [("--rate", str(rate)) for rate in case.rates]
        return [launch.run([*ask, *load, "--seconds", str(seconds)], folder)["steps"][0] for load in loads]


def _pack(store: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        handler = Path(scratch) / "waiting_handler.py"
        handler.write_text(_HANDLER.format(batch_ms=BATCH_MS, image_ms=IMAGE_MS), encoding="utf-8")
        generate_model_archive(
            ModelArchiverConfig(
                model_name=NAME, version=_VERSION, handler=str(handler), export_path=str(store), force=True
            )
        )
