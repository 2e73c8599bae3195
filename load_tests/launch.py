"""A load run in a process of its own: Locust changes the sockets of the one it is in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from load_tests.errors import LoadFailed

__all__ = ["LoadFailed", "run"]


def run(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """``python -m load_tests run ARGUMENTS``.

    Args:
        arguments: of the verb, but for ``--output``.
        folder: for its files.

    Returns:
        What its ``summary.json`` says.

    Raises:
        LoadFailed: it could not run. Limits that are passed are no failure here.
    """
    output = folder / "load"
    done = subprocess.run(
        [sys.executable, "-m", "load_tests", "run", *arguments, "--output", str(output)],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not (output / "summary.json").is_file():
        raise LoadFailed(f"load_tests run {' '.join(arguments)}: {(done.stderr or done.stdout)[-2000:]}")
    report: dict[str, Any] = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    (output / "summary.json").unlink()
    return report
