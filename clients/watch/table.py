"""A run as people watch it: a table that lives on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from clients.watch.tally import Tally

_REFRESH_S = 0.5
_LINE_S = 10.0
_COLUMNS = ("source", "", "in", "detected", "dropped", "failed", "faces", "lag ms", "p99 ms")


async def show(tallies: Sequence[Tally], stream: IO[str], live: bool) -> None:
    """Show the run until cancelled.

    Args:
        tallies: of the sources.
        stream: that is written to.
        live: whether it is a terminal that nothing else writes to.
    """
    if not live:
        while True:
            await asyncio.sleep(_LINE_S)
            print(_sum(tallies), file=stream, flush=True)
    with Live(console=Console(file=stream), auto_refresh=False, transient=True) as view:
        while True:
            view.update(table(tallies), refresh=True)
            await asyncio.sleep(_REFRESH_S)


def table(tallies: Sequence[Tally]) -> Table:
    """A row a source."""
    rows = Table(box=None, pad_edge=False)
    for index, column in enumerate(_COLUMNS):
        rows.add_column(column, justify="left" if index < 2 else "right", no_wrap=index > 1)
    for tally in tallies:
        counts = (tally.read, tally.detected, tally.dropped, tally.failed, tally.faces)
        lags = ["" if lag is None else f"{1000 * lag:.0f}" for lag in map(tally.lag, (0.5, 0.99))]
        rows.add_row(tally.name, tally.state, *map(str, counts), *lags)
    return rows


def _sum(tallies: Sequence[Tally]) -> str:
    counts = {
        name: sum(getattr(tally, name) for tally in tallies) for name in ("read", "detected", "dropped", "failed")
    }
    playing = sum(tally.state == "playing" for tally in tallies)
    told = ", ".join(f"{count} {'frames in' if name == 'read' else name}" for name, count in counts.items())
    away = [f"{tally.name} is away: {tally.error or 'it ended'}" for tally in tallies if tally.state == "away"]
    return "; ".join([f"mogface watch: {playing} of {len(tallies)} sources playing, {told}", *away])
