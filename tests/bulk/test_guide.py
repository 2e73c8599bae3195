"""docs/bulk.md: its commands run as they stand, on the tests' cluster; and what it says of the output."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from archive.verify import PHOTOGRAPH
from bulk import schema
from bulk.arguments import OPTIONS, parser
from tests.bulk.conftest import environment
from tests.checkout import ROOT

GUIDE = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_the_commands(cluster: Any, centerface_mar: Path, tmp_path: Path) -> None:
    job, look = BLOCKS
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for package in ("bulk", "handler"):
        (tmp_path / package).symlink_to(ROOT / package)
    for name in ("model_store", "photos"):
        (tmp_path / name).mkdir()
    shutil.copy(centerface_mar, tmp_path / "model_store")
    shutil.copy(PHOTOGRAPH, tmp_path / "photos")
    command = job.replace("mogface-bulk", "python -m bulk.cli").rstrip() + f" --address {cluster.address}\n"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command + look],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/photos/astronaut.jpg 512 512 [0.93]\n"


def test_columns_and_flags_are_named() -> None:
    named = set(re.findall(r"`([\w-]+)`", GUIDE))
    assert {field.name for field in (*schema.FACES, *schema.ERRORS)} | {"score", "landmarks"} <= named
    flags = {option for action in parser()._actions for option in action.option_strings if option.startswith("--")}
    assert {f"--{name.replace('_', '-')}" for name in OPTIONS} <= flags
    told = set(re.findall(r"--[a-z][\w-]+", GUIDE))
    assert flags - told == {"--help", "--no-landmarks"}


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", GUIDE)
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)
