"""Both servers' rows, as JSON and as the table of README.md."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from archive.files import whole
from load_tests import machine
from tests.recovery.trial import Row


def write(rows: Sequence[Row], window_s: float, folder: Path) -> str:
    """Write ``recovery.json`` and ``recovery.md``; returns the table.

    Args:
        rows: of all servers, each fault once a server.
        window_s: in which right answers were counted.
        folder: for the files.
    """
    text = f"{machine.describe()}\n\n{table(rows, window_s)}"
    content = {"machine": machine.describe(), "window_s": window_s, "rows": [dataclasses.asdict(each) for each in rows]}
    for name, written in {"recovery.json": json.dumps(content, indent=1) + "\n", "recovery.md": text}.items():
        with whole(folder / name) as draft:
            draft.write_text(written, encoding="utf-8")
    return text


def table(rows: Sequence[Row], window_s: float) -> str:
    """Markdown, a line a fault, the servers beside each other."""
    subjects = list(dict.fromkeys(each.subject for each in rows))
    found = {(each.fault, each.subject): each for each in rows}
    columns = [f"right in {window_s:g} s", "failed", "silent s", "well after s", "sender"]
    head = ["fault", *(f"{subject}: {column}" for subject in subjects for column in columns)]
    lines = [head, ["-"] * len(head)]
    for fault in dict.fromkeys(each.fault for each in rows):
        line = [fault]
        for subject in subjects:
            each = found.get((fault, subject))
            line += _cells(each) if each else [""] * len(columns)
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Row) -> list[str]:
    failed = _counted({"**wrong**": row.wrong} if row.wrong else {}) + _counted(row.failed)
    well = "**never**" if row.recovery_s is None else f"{row.recovery_s:.1f}" if row.recovery_s else "0"
    return [str(row.right), "; ".join(failed) or "none", f"{row.silence_s:.1f}", well, "; ".join(_counted(row.sender))]


def _counted(kinds: Mapping[str, int]) -> list[str]:
    return [f"{count} × {kind}" for kind, count in kinds.items()]
