"""``python -m tests.fuzz image --seconds 60``: coverage-guided fuzzing of one target by atheris.

What it finds stays in build/fuzz/TARGET: inputs that reached new code, and ``crash-*`` for one that failed, which
``python -m tests.fuzz TARGET --input FILE`` runs again.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import warnings
from pathlib import Path

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

# What is instrumented is what is imported here.
with atheris.instrument_imports(include=["handler", "PIL"]):
    from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run one target until its time is over or an input fails; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="coverage-guided fuzzing by atheris")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60, help="at most so long")
    parser.add_argument("--input", type=Path, help="run this one input and nothing else")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    target, seeds = TARGETS[given.target]
    arguments = [sys.argv[0]]
    if given.input:
        arguments.append(str(given.input))
    else:
        folder = ROOT / "build" / "fuzz" / given.target
        folder.mkdir(parents=True, exist_ok=True)
        for seed in seeds():
            (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
        arguments += [f"-max_total_time={given.seconds}", "-max_len=32768", "-timeout=20", "-rss_limit_mb=2048"]
        arguments += [f"-artifact_prefix={folder}/", "-print_final_stats=1", str(folder)]
    atheris.Setup(arguments, target)
    atheris.Fuzz()


main()
