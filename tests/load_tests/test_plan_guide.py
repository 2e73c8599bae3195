"""docs/capacity.md: its commands run as they stand, and its figures are theirs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

GUIDE = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
#: Of each block, what the text round it says of its answer.
SAID = {
    "--cameras 10": ("plan: 2 t4 in 1 server of 2", "devices 89%"),
    "--p99 200\n": ("physical limit: 9 a10", "plan: 18 a10"),
    "--p99 0.8": ("below the physical limit",),
    "--empty 0.8": ("plan: 5 a10",),
    "--rate 1000 ": ("plan: 12 a100 in 3 servers of 4", "first bottleneck: devices"),
    "--empty 0.7": ("plan: 30 h200 in 15 servers of 2",),
    "--empty 0.9": ("devices 93%, front end 79%, cores 30%",),
    "--measured": ("each server runs centerface w",),
    "--check": ("predicted",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout's place for what a sweep left."""
    made = tmp_path_factory.mktemp("capacity")
    (made / ".venv").symlink_to(sys.prefix)
    for package in ("load_tests", "handler", "archive", "clients"):
        (made / package).symlink_to(ROOT / package)
    (made / "build" / "sweep").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "data" / "plan_centerface.json", made / "build" / "sweep" / "points.json")
    return made


def test_every_block_is_run_here() -> None:
    assert len(BLOCKS) == len(SAID) == 9


@pytest.mark.parametrize("words", SAID)
def test_a_block_says_what_the_text_says(folder: Path, words: str) -> None:
    [block] = [block for block in BLOCKS if words in block and ("cameras 10 " not in block or words == "--cameras 10")]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in SAID[words]:
        assert said in done.stdout, done.stdout


def test_floors_are_those_of_the_table() -> None:
    from handler.geometry import Canvas
    from load_tests.plan_service import PEAK_TFLOPS, floor_ms

    for size, canvas in {"640x640": Canvas(640, 640), "480x640": Canvas(480, 640)}.items():
        [row] = re.findall(rf"^\| {size}, [^|]+((?:\| [\d.]+ )+)\|$", GUIDE, re.MULTILINE)
        written = [float(cell) for cell in row.split("|")[1:]]
        assert written == pytest.approx([floor_ms(card, canvas) for card in PEAK_TFLOPS], rel=0.04)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", GUIDE)
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)
