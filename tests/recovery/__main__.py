"""``python -m tests.recovery``: the same faults, under the same load, on this project's server and on a plain one.

The servers run one after the other, so that each has the machine to itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from archive.build import Build, Wanted, Workspace
from archive.files import progress
from tests.recovery import faults, load, report, trial
from tests.recovery.subjects import ROOT, ours, plain
from tests.recovery.trial import Row


def main() -> None:
    """Run every fault on both, write the tables; exit with 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.recovery", description=__doc__)
    parser.add_argument("--window", type=float, default=12.0, help="s in which right answers are counted")
    parser.add_argument("--only", help="faults whose name has this in it")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "recovery")
    given = parser.parse_args()
    acts = {name: act for name, act in faults.ALL.items() if not given.only or given.only in name}
    if not acts:
        parser.error(f"no fault has {given.only!r} in its name: expected a part of one of {', '.join(faults.ALL)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="mogface-recovery-") as scratch:
        mar, _ = Build(Wanted("centerface"), Workspace(ROOT / "build", Path(scratch) / "built")).archive()
        with progress("faults", 2 * len(acts), "fault") as bar:
            for number, start in enumerate((ours, plain)):
                with start(mar, Path(scratch) / str(number)) as subject:
                    expected = load.expected(subject)
                    for name, act in acts.items():
                        rows.append(trial.run(subject, expected, name, act, given.window))
                        bar.write(str(rows[-1]))
                        bar.update(1)
    sys.stdout.write(report.write(rows, given.window, given.output))
    sys.exit(1 if any(each.wrong for each in rows) else 0)


main()
