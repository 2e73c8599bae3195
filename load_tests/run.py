"""A headless load run: levels one after another, then samples, figures, a picture, and a verdict by limits.

Imports Locust, which makes sockets and threads gevent's: a process that runs this does nothing else.
"""

from __future__ import annotations

# First, as it changes the modules that the others import.
import locust  # isort: skip

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment

from archive.files import progress, whole
from load_tests import figures, machine
from load_tests.samples import Limits, Sample, Step, as_csv
from load_tests.target import Target
from load_tests.transports import connect
from load_tests.users import ClosedLoop, OpenArrival

_ROW = "{:>12}  {:>8}  {:>8}  {:>9}  {:>8}  {:>8}  {:>8}  {:>10}"
SAMPLES, SUMMARY, PICTURE = "samples.csv", "summary.json", "run.png"


def run(target: Target, users: list[int], rates: list[float], seconds: float, limits: Limits, folder: Path) -> int:
    """Drive a server, write ``samples.csv``, ``summary.json`` and ``run.png``, print a table.

    Args:
        target: to ask.
        users: of closed loops, one level each.
        rates: requests a second of open arrival, one level each.
        seconds: in which a level sends; what is under way then is waited for.
        limits: to keep to.
        folder: for the files.

    Returns:
        0, or 1 where a limit is passed.

    Raises:
        ClientError: the server does not answer before the load begins.
    """
    transport = connect(target)
    target = target.referred(transport.detect)
    transport.close()
    levels: list[tuple[str, float]] = [("closed", count) for count in users] + [("open", rate) for rate in rates]
    steps = []
    with progress("load", round(len(levels) * seconds), "s") as bar:
        for kind, level in levels:
            bar.set_postfix_str(f"{kind} {level:g}")
            steps.append(drive(target, kind, level, seconds, bar.update))
    summaries = [step.summary() for step in steps]
    broken = limits.broken(summaries)
    described = machine.describe()
    report = {"machine": described, "address": target.address, "model": target.model, "steps": summaries}
    with whole(folder / SAMPLES) as draft:
        draft.write_text(as_csv(steps), encoding="utf-8")
    with whole(folder / PICTURE) as draft:
        figures.run(steps, f"{target.model}, {transport.name}: {described}", draft)
    with whole(folder / SUMMARY) as draft:
        draft.write_text(json.dumps(report | {"broken": broken}, indent=1), encoding="utf-8")
    print(described)
    print(_ROW.format("load", "answered", "failed", "answers/s", "p50 ms", "p95 ms", "p99 ms", "batch mean"))
    for each in summaries:
        print(_ROW.format(*_cells(each)))
    for sentence in broken:
        print(f"LIMIT {sentence}")
    print(f"{folder / SAMPLES}, {SUMMARY}, {PICTURE}")
    return 1 if broken else 0


def drive(target: Target, kind: str, level: float, seconds: float, tick: Any = lambda seconds: None) -> Step:
    """One level of load.

    Args:
        target: to ask.
        kind: ``closed`` or ``open``.
        level: users, or requests a second.
        seconds: in which it sends.
        tick: called with the seconds that went by, once a second.
    """
    closed = kind == "closed"
    environment = Environment(
        user_classes=[ClosedLoop if closed else OpenArrival],
        events=locust.events,
        host=target.address,
        # Users may end the request they are at, which fails by itself before this is over.
        stop_timeout=target.timeout_s + 10,
    )
    environment.target = target if closed else replace(target, rate=level)
    samples: list[Sample] = []

    def keep(context: dict[str, Any], **_: Any) -> None:
        samples.append(context["sample"])

    environment.events.request.add_listener(keep)
    try:
        runner = environment.create_local_runner()
        count = int(level) if closed else 1
        begun = time.perf_counter()
        runner.start(count, spawn_rate=count)
        while (left := begun + seconds - time.perf_counter()) > 0:
            gevent.sleep(min(1.0, left))
            tick(min(1.0, left))
        runner.quit()
    finally:
        environment.events.request._handlers.remove(keep)
    last = max((sample.at_s + sample.latency_ms / 1000 for sample in samples), default=seconds)
    return Step(kind, level, last, samples, environment.started - len(samples))


def _cells(summary: dict[str, Any]) -> list[str]:
    load = f"{summary['level']:g} {'users' if summary['kind'] == 'closed' else '/s'}"
    numbers = [summary[name] for name in ("rate", "p50_ms", "p95_ms", "p99_ms", "batch_mean")]
    shown = ["-" if number is None else f"{number:.1f}" for number in numbers]
    return [load, str(summary["answered"]), str(sum(summary["failures"].values())), *shown]
