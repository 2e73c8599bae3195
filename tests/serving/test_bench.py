"""The benchmark from its command to its table, over the real systems; the figures of so short a run mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from archive.server import java_home
from handler.errors import EnvironmentFault
from load_tests import triton
from load_tests.peers.systems import ONE_BY_ONE, SYSTEMS
from tests.checkout import ROOT
from tests.requirements import lacking


def test_every_system_side_by_side(tmp_path: Path) -> None:
    for part, require in {"triton": triton.require, "java": java_home}.items():
        try:
            require()
        except EnvironmentFault as error:
            lacking(part, error.message)
    command = [sys.executable, "-m", "load_tests", "bench", "--quick", "--models", "centerface"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    records = json.loads((tmp_path / "results.json").read_text())["records"]
    found = {(each["system"], each["clients"], bool(each["offered_rate"])) for each in records}
    assert found == {(name, clients, False) for name in SYSTEMS for clients in (1, 4)} | {
        (name, 0, True) for name in SYSTEMS | ONE_BY_ONE
    }
    for each in records:
        assert each["disagreement"] == 0
        assert each["rate"] > 0
        assert 0 < each["p50_ms"] <= each["p95_ms"] <= each["p99_ms"]
        assert each["cpu_s_an_image"] > 0.005
        assert each["pss_mb"] > 50
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert sum(line.startswith("| 4 clients |") for line in lines) == len(SYSTEMS)
    with Image.open(tmp_path / "centerface.png") as picture:
        assert picture.size[0] > 500
    assert done.stdout.splitlines() == [str(tmp_path / "results.md"), str(tmp_path / "centerface.png")]


def test_a_readme_without_marks(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no marks")
    (tmp_path / "results.json").write_text(json.dumps({"machine": "m", "triton": "t", "records": []}))
    command = [sys.executable, "-m", "load_tests", "bench", "--table", str(tmp_path / "results.json")]
    done = subprocess.run(
        [*command, "--readme", str(tmp_path / "README.md")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "once each" in done.stderr
