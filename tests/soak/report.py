"""A soak's files: ``soak.json``, ``soak.md`` and ``soak.png``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from archive.files import whole
from load_tests import machine
from tests.soak.trend import Trend
from tests.soak.verdict import ALLOWED, LEAST_S, Run, Verdict, judged


def write(run: Run, verdict: Verdict, folder: Path) -> str:
    """All three, each whole or not at all; returns the text."""
    written = text(run, verdict)
    content = {
        "machine": machine.describe(),
        "seconds": run.ended - run.began,
        "rate": run.rate,
        **dataclasses.asdict(verdict),
        "windows": [
            {"kind": each.kind, "began": each.began - run.began, "ended": each.ended - run.began}
            for each in run.windows
        ],
        "samples": [
            {"at": each.at - run.began, "front": dataclasses.asdict(each.front)}
            | {"workers": {pid: dataclasses.asdict(held) for pid, held in each.workers.items()}}
            for each in run.samples
        ],
        "heap_mb": [(at - run.began, size) for at, size in run.heap],
    }
    with whole(folder / "soak.json") as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with whole(folder / "soak.md") as draft:
        draft.write_text(written, encoding="utf-8")
    with whole(folder / "soak.png") as draft:
        _plot(run, verdict, draft)
    return written


def text(run: Run, verdict: Verdict) -> str:
    """Markdown."""
    minutes = (run.ended - run.began) / 60
    hostile = sum(verdict.counts.get("hostile image", {}).values())
    lines = [
        machine.describe(),
        "",
        f"{len(run.outcomes)} requests in {minutes:.1f} minutes, {run.rate:.1f} a second beside bursts; "
        f"{verdict.restarts} workers began anew, {len(verdict.died)} ended by themselves. {hostile} hostile images "
        f"were sent, of {run.corpus} in the corpus.",
        "",
        *(f"**Breach: {each}.**" for each in verdict.breaches),
        *([] if verdict.breaches else ["No rule was broken."]),
        "",
    ]
    ends = list(dict.fromkeys(end for found in verdict.counts.values() for end in found))
    lines += _table(
        ["requests", *ends],
        [[kind, *(str(found.get(end, 0)) for end in ends)] for kind, found in verdict.counts.items()],
    )
    lines += _table(
        ["minute", "right", "p50 ms", "p99 ms", "meanwhile"],
        [
            [str(each.minute), str(each.right), f"{each.p50_ms:.0f}", f"{each.p99_ms:.0f}", ", ".join(each.done)]
            for each in verdict.minutes
        ],
    )
    since = (judged(run) - run.began) / 60
    lines += [
        f"Trends from minute {since:.1f} on: a line through the floors, MB or number an hour, with its standard error. "
        f"What rises by more than three of them, and by over {ALLOWED:.0%} of its mean, in {LEAST_S / 60:.0f} minutes "
        "or more is a breach.",
        "",
    ]
    lines += _table(
        ["", "mean", "an hour", "standard error", "within noise"],
        [[name, *_cells(trend)] for name, trend in verdict.trends.items()],
    )
    lines += [f"- {each}" for each in verdict.said]
    return "\n".join(lines).rstrip() + "\n"


def _cells(trend: Trend | None) -> list[str]:
    if trend is None:
        return ["too few samples", "", "", ""]
    noise = "yes" if trend.noise else "no"
    return [f"{trend.mean:.1f}", f"{trend.per_hour:+.1f}", f"{trend.error:.1f}", noise]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["-"] * len(head), *rows)] + [""]


def _plot(run: Run, verdict: Verdict, path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (latency, memory, files) = plt.subplots(3, sharex=True, figsize=(10, 9), layout="constrained")
    at = [each.minute + 0.5 for each in verdict.minutes]
    latency.plot(at, [each.p99_ms for each in verdict.minutes], label="p99")
    latency.plot(at, [each.p50_ms for each in verdict.minutes], label="p50")
    latency.set_ylabel("ms, good photographs")
    times = [(each.at - run.began) / 60 for each in run.samples]
    for pid in sorted({pid for each in run.samples for pid in each.workers}):
        _line(memory, run, f"worker {pid}", lambda each, pid=pid: getattr(each.workers.get(pid), "rss", None))
        _line(files, run, f"worker {pid}", lambda each, pid=pid: getattr(each.workers.get(pid), "files", None))
    memory.plot(times, [each.front.rss for each in run.samples], label="front end")
    files.plot(times, [each.front.files for each in run.samples], label="front end")
    if run.heap:
        memory.plot([(at - run.began) / 60 for at, _ in run.heap], [size for _, size in run.heap], label="live heap")
    memory.set_ylabel("resident, MB")
    files.set_ylabel("open files")
    files.set_xlabel("minutes")
    for axis in (latency, memory, files):
        for window in run.windows:
            axis.axvspan((window.began - run.began) / 60, (window.ended - run.began) / 60, color="grey", alpha=0.2)
        axis.legend(fontsize="x-small", ncols=4)
        axis.set_ylim(bottom=0)
    figure.savefig(path, format="png", dpi=120)
    plt.close(figure)


def _line(axis: Any, run: Run, label: str, of: Any) -> None:
    values = [of(each) for each in run.samples]
    axis.plot(
        [(each.at - run.began) / 60 for each in run.samples],
        [float("nan") if v is None else v for v in values],
        label=label,
    )
