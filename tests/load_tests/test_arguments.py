"""What the command lines take for numbers."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

import pytest

from load_tests.arguments import count, count_from_0, positive, share
from tests.checkout import ROOT

NO_NUMBERS = ["nan", "inf", "-inf", "-1", "", "many", "1e400"]


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (positive, {"0.5": 0.5, "20": 20.0, "1e-3": 0.001}, ["0"]),
        (share, {"0": 0.0, "0.5": 0.5, "1": 1.0}, ["1.001"]),
        (count, {"1": 1, "32": 32}, ["0", "1.5"]),
        (count_from_0, {"0": 0, "8": 8}, ["0.5"]),
    ],
)
def test_numbers(kind: Callable[[str], Any], taken: dict[str, Any], refused: list[str]) -> None:
    assert {text: kind(text) for text in taken} == taken
    for text in [*NO_NUMBERS, *refused]:
        with pytest.raises(ArgumentTypeError, match="expected a"):
            kind(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--max-failures", "nan"),
        ("run", "--max-failures", "1.5"),
        ("run", "--max-p99", "inf"),
        ("run", "--seconds", "nan"),
        ("sweep", "--workers", "0"),
        ("sweep", "--batches", "-1"),
        ("sweep", "--delays", "0"),
        ("tune", "--p99", "nan"),
        ("tune", "--p99", "5", "--watch", "--max", "0"),
        ("server", "--rounds", "0"),
    ],
)
def test_the_command_refuses_what_is_no_number_by_its_flag(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "load_tests", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if "error:" in line]
    assert (
        f"argument {[each for each in arguments if each.startswith('--')][-1]}: '{arguments[-1]}': expected a" in line
    )
