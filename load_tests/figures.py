"""Pictures of what was measured; matplotlib draws them without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from load_tests.samples import OK, STAGES, Step

_KINDS = {"closed": "closed loop", "open": "open arrival"}


def run(steps: Sequence[Step], title: str, path: Path) -> None:
    """Throughput against latency, latency's distribution, batch sizes and stages of a run, as one PNG.

    Args:
        steps: of the run.
        title: over the picture: what was run, on what.
        path: of the file.
    """
    summaries = [step.summary() for step in steps]
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(title, fontsize=10)
    _throughput(axes[0, 0], summaries)
    _latencies(axes[0, 1], steps)
    _batches(axes[1, 0], summaries)
    _stages(axes[1, 1], summaries)
    figure.savefig(path, dpi=110, format="png")


def sweep(points: Sequence[Mapping[str, Any]], front: Sequence[int], title: str, path: Path) -> None:
    """Every point of a sweep, rate against p99, its Pareto front joined, as one PNG.

    Args:
        points: with ``name``, ``rate`` and ``p99_ms``.
        front: indexes of those on the front, by rising rate.
        title: over the picture.
        path: of the file.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    axis = figure.subplots()
    axis.set_title(title, fontsize=10)
    axis.scatter([p["rate"] for p in points], [p["p99_ms"] for p in points], color="0.6", label="measured")
    best = [points[index] for index in front]
    axis.plot([p["rate"] for p in best], [p["p99_ms"] for p in best], "o-", color="tab:green", label="Pareto front")
    for point in best:
        axis.annotate(
            point["name"], (point["rate"], point["p99_ms"]), fontsize=7, xytext=(4, 4), textcoords="offset points"
        )
    axis.set(xlabel="answers a second", ylabel="p99, ms", ylim=(0, None), xlim=(0, None))
    axis.legend()
    figure.savefig(path, dpi=110, format="png")


def _label(summary: Mapping[str, Any]) -> str:
    return f"{summary['level']:g} {'users' if summary['kind'] == 'closed' else 'a second'}"


def _throughput(axis: Any, summaries: Sequence[Mapping[str, Any]]) -> None:
    for kind, line in (("closed", "o-"), ("open", "s--")):
        told = sorted((e for e in summaries if e["answered"] and e["kind"] == kind), key=lambda each: each["rate"])
        axis.set_prop_cycle(None)
        for name in ("p50_ms", "p95_ms", "p99_ms") if told else ():
            rates, times = [each["rate"] for each in told], [each[name] for each in told]
            axis.plot(rates, times, line, label=f"{name.removesuffix('_ms')}, {_KINDS[kind]}")
        for each in told:
            axis.annotate(_label(each), (each["rate"], each["p99_ms"]), fontsize=7)
    axis.set(xlabel="answers a second", ylabel="latency, ms", title="throughput against latency")
    axis.set(xlim=(0, None), ylim=(0, None))
    if axis.lines:
        axis.legend(fontsize=7)


def _latencies(axis: Any, steps: Sequence[Step]) -> None:
    for step in steps:
        latencies = np.sort([sample.latency_ms for sample in step.samples if sample.outcome == OK])
        if len(latencies):
            shares = np.arange(1, len(latencies) + 1) / len(latencies)
            axis.plot(latencies, shares, label=_label({"level": step.level, "kind": step.kind}))
    axis.set(xlabel="latency, ms", ylabel="share of answers", title="latencies", xlim=(0, None), ylim=(0, 1))
    if axis.lines:
        axis.legend()


def _batches(axis: Any, summaries: Sequence[Mapping[str, Any]]) -> None:
    sizes = sorted({int(size) for each in summaries for size in each["batch_sizes"]})
    width = 0.8 / max(1, len(summaries))
    for number, each in enumerate(summaries):
        places = np.arange(len(sizes)) + number * width
        axis.bar(places, [each["batch_sizes"].get(str(size), 0) for size in sizes], width, label=_label(each))
    axis.set_xticks(np.arange(len(sizes)) + 0.4 - width / 2, [str(size) for size in sizes])
    axis.set(xlabel="batch size", ylabel="answers", title="batch sizes")
    if sizes:
        axis.legend()


def _stages(axis: Any, summaries: Sequence[Mapping[str, Any]]) -> None:
    told = [each for each in summaries if each["stages_ms"]]
    left = np.zeros(len(told))
    names = [_label(each) for each in told]
    for stage in STAGES:
        values = np.array([each["stages_ms"][stage] for each in told])
        axis.barh(names, values, left=left, label=stage)
        left += values
    axis.set(xlabel="ms, mean of a request", title="stages inside the worker")
    if told:
        axis.legend(fontsize=7)
