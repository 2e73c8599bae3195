"""Tables and pictures of the benchmark's results, and README.md's own table of them."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from archive.files import whole

TABLE = "results.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_NAMES = {"mogface": "MogFace, seeded, 480x640", "centerface": "CenterFace, 640x480"}
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One system under one load: medians over its rounds, and quantiles of all its latencies together.

    Attributes:
        model: name.
        load: for people.
        system: name.
        rounds: that it was measured in.
        rate: images a second, median.
        p50_ms: of all latencies of all rounds.
        p95_ms: likewise.
        p99_ms: likewise; of few latencies it is their greatest.
        stdev_ms: of each round's latencies, median.
        latencies: how many there are.
        cpu_s: processor seconds an image, median.
        pss_mb: the most of any round.
        ratio: its rate over the first system's in the same round: least, median, greatest; None for that system.
    """

    model: str
    load: str
    system: str
    rounds: int
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    stdev_ms: float
    latencies: int
    cpu_s: float
    pss_mb: float
    ratio: tuple[float, float, float] | None


def rows(results: Mapping[str, Any]) -> list[Row]:
    """By model, load and system, each in the order in which it was first measured."""
    return [
        _row(group, [each for each in results["records"] if _key(each)[:2] == key[:2]])
        for key, group in _groups(results["records"])
    ]


def table(results: Mapping[str, Any]) -> str:
    """All of it as Markdown."""
    lines = [f"{results['machine']}, {results['triton']}", ""]
    models = None
    for row in rows(results):
        if row.model != models:
            models = row.model
            lines += ["", f"## {_NAMES[row.model]}", "", _HEAD, "|-|-|-|-|-|-|-|-|-|-|-|"]
        numbers = [f"{number:.0f}" for number in (row.p50_ms, row.p95_ms, row.p99_ms, row.stdev_ms)]
        cells = [row.load, row.system, f"{row.rate:.3g}", *numbers, str(row.latencies), f"{row.cpu_s:.3g}"]
        lines.append(_line([*cells, f"{row.pss_mb:.0f}", _ratio(row)]))
    return "\n".join(lines) + "\n"


_HEAD = (
    "| load | system | images/s | p50 ms | p95 ms | p99 ms | stdev ms | latencies | CPU s an image | PSS MB | "
    "rate over the first system's |"
)


def brief(results: Mapping[str, Any]) -> str:
    """README.md's table: a line a model and load, a column a system: images a second, p99, times the first's rate."""
    found = rows(results)
    systems = list(dict.fromkeys(row.system for row in found if _closed(row)))
    lines = [f"{results['machine']}, {results['triton']}.", "", _line(["", *systems]), "|-" * (len(systems) + 1) + "|"]
    by_load: dict[tuple[str, str], dict[str, Row]] = {}
    for row in filter(_closed, found):
        by_load.setdefault((row.model, row.load), {})[row.system] = row
    for (model, load), columns in by_load.items():
        cells = [_cell(columns[system]) if system in columns else "-" for system in systems]
        lines.append(_line([f"{_NAMES[model]}, {load}", *cells]))
    offered = [row for row in found if not _closed(row)]
    if offered:
        lines += ["", f"{_NAMES[offered[0].model]}, {offered[0].load} for all; latency, ms:", ""]
        lines += [_line(["", "p50", "p99", "standard deviation"]), "|-|-|-|-|"]
        lines += [
            _line([row.system, f"{row.p50_ms:.0f}", f"{row.p99_ms:.0f}", f"{row.stdev_ms:.1f}"]) for row in offered
        ]
    return "\n".join(lines)


def write(file: Path, folder: Path) -> list[Path]:
    """``results.md`` and a picture a model, of a file of results; their paths.

    Args:
        file: results.json.
        folder: for them.
    """
    results = json.loads(file.read_text(encoding="utf-8"))
    paths = [folder / TABLE]
    with whole(paths[0]) as draft:
        draft.write_text(table(results), encoding="utf-8")
    for model in dict.fromkeys(record["model"] for record in results["records"]):
        paths.append(folder / f"{model}.png")
        with whole(paths[-1]) as draft:
            _picture(model, results, draft)
    return paths


def rewrite(file: Path, readme: Path) -> bool:
    """Put the table of a file of results between README.md's marks; whether that changed it.

    Raises:
        ValueError: the marks are not there, or not once each.
    """
    before = readme.read_text(encoding="utf-8")
    results = json.loads(file.read_text(encoding="utf-8"))
    if before.count(BEGIN) != 1 or before.count(END) != 1 or before.index(BEGIN) > before.index(END):
        raise ValueError(f"{readme}: expected {BEGIN} and {END} after it, once each")
    block = f"{BEGIN}\n{brief(results)}\n{END}"
    after = re.sub(f"{BEGIN}.*{END}", lambda _: block, before, flags=re.DOTALL)
    if after != before:
        with whole(readme) as draft:
            draft.write_text(after, encoding="utf-8")
    return after != before


def _key(record: Record) -> tuple[str, tuple[int, float], str]:
    return record["model"], (record["clients"], record["offered_rate"]), record["system"]


def _groups(records: Sequence[Record]) -> Iterator[tuple[tuple[str, tuple[int, float], str], list[Record]]]:
    groups: dict[tuple[str, tuple[int, float], str], list[Record]] = {}
    for record in records:
        groups.setdefault(_key(record), []).append(record)
    order = [list(dict.fromkeys(key[place] for key in groups)) for place in (0, 2)]
    # Closed loops by their clients, then what came at a rate.
    for key in sorted(groups, key=lambda k: (order[0].index(k[0]), k[1][0] == 0, k[1], order[1].index(k[2]))):
        yield key, groups[key]


def _row(group: Sequence[Record], peers: Sequence[Record]) -> Row:
    one = group[0]
    first = {each["round"]: each["rate"] for each in peers if each["system"] == peers[0]["system"]}
    ratios = sorted(each["rate"] / first[each["round"]] for each in group if each["round"] in first)
    latencies = [latency for each in group for latency in each["latencies_ms"]]
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99]).tolist()
    itself = one["system"] == peers[0]["system"]
    clients = one["clients"]
    load = f"{clients} client{'s' if clients > 1 else ''}" if clients else f"{one['offered_rate']:g} a second"
    return Row(
        one["model"],
        load,
        one["system"],
        len(group),
        statistics.median(each["rate"] for each in group),
        p50,
        p95,
        p99,
        statistics.median(each["stdev_ms"] for each in group),
        len(latencies),
        statistics.median(each["cpu_s_an_image"] for each in group),
        max(each["pss_mb"] for each in group),
        None if itself or not ratios else (ratios[0], statistics.median(ratios), ratios[-1]),
    )


def _closed(row: Row) -> bool:
    return "client" in row.load


def _ratio(row: Row) -> str:
    return f"{row.ratio[1]:.2f} ({row.ratio[0]:.2f} .. {row.ratio[2]:.2f})" if row.ratio else "1"


def _cell(row: Row) -> str:
    told = f"{row.rate:.3g} / {row.p99_ms:.0f} ms"
    return f"{told} / x{row.ratio[1]:.2f}" if row.ratio else told


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _picture(model: str, results: Mapping[str, Any], path: Path) -> None:
    records = [record for record in results["records"] if record["model"] == model]
    found = [row for row in rows(results) if row.model == model and _closed(row)]
    systems = list(dict.fromkeys(row.system for row in found))
    loads = list(dict.fromkeys(row.load for row in found))
    figure = Figure(figsize=(12, 5), layout="constrained")
    figure.suptitle(f"{_NAMES[model]}: {results['machine']}", fontsize=8)
    bars, curves = figure.subplots(1, 2)
    for place, system in enumerate(systems):
        own = {row.load: row for row in found if row.system == system}
        heights = [own[load].rate if load in own else 0 for load in loads]
        spread = [_spread(records, system, own.get(load)) for load in loads]
        at = np.arange(len(loads)) + place / (len(systems) + 1)
        bars.bar(at, heights, 1 / (len(systems) + 1.5), yerr=np.array(spread).T, capsize=2, label=system)
        most = max(record["clients"] for record in records)
        latencies = np.sort(
            [
                latency
                for record in records
                if record["system"] == system and record["clients"] == most
                for latency in record["latencies_ms"]
            ]
        )
        curves.plot(latencies, np.arange(1, len(latencies) + 1) / max(1, len(latencies)), label=system)
        curves.set_title(f"latency of {most} clients", fontsize=9)
    bars.set_xticks(np.arange(len(loads)) + 0.3, loads)
    bars.set(ylabel="images a second", title="rate: median, least and greatest round")
    curves.set(xlabel="ms", ylabel="share of answers", xlim=(0, None), ylim=(0, 1))
    bars.legend(fontsize=7)
    curves.legend(fontsize=7)
    figure.savefig(path, dpi=110, format="png")


def _spread(records: Sequence[Record], system: str, row: Row | None) -> tuple[float, float]:
    if row is None:
        return 0.0, 0.0
    rates = [
        record["rate"]
        for record in records
        if record["system"] == system and row.load.split()[0] == str(record["clients"])
    ]
    return row.rate - min(rates), max(rates) - row.rate
