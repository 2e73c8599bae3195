"""``python -m tests.soak --minutes 30``: a real server under a mix of all requests, and everything it must not do.

Two workers; good photographs over REST and gRPC whose faces are compared, options of all kinds, requests of many
images, the whole hostile corpus, clients that leave or crawl, a full queue; workers killed and scaled, tokens renewed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from archive.files import progress
from tests.soak import report, run, verdict


def main() -> None:
    """Soak, write the files; exit with 1 where a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=_over_zero, default=30.0)
    parser.add_argument("--rate", type=_over_zero, help="requests a second; else 60 %% of what the machine carries")
    parser.add_argument("--output", type=Path, default=run.ROOT / "build" / "soak")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="mogface-soak-") as scratch,
        run.server(Path(scratch)) as running,
        progress("soak", round(60 * given.minutes), "s") as bar,
    ):
        seen = asyncio.run(run.soak(running, 60 * given.minutes, given.rate, bar.write, bar.update))
    found = verdict.judge(seen)
    sys.stdout.write(report.write(seen, found, given.output))
    sys.exit(1 if found.breaches else 0)


def _over_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number over 0")
    return value


main()
