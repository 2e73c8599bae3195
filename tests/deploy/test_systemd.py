"""deploy/systemd/mogface.service, as far as systemd's own tools tell without running it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.requirements import lacking
from tests.serving.conftest import ROOT

UNIT = ROOT / "deploy" / "systemd" / "mogface.service"
#: systemd's own figure, 0 the safest. What is left: loopback, code made while running, a view of the host's files.
EXPOSURE = 15


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with this repository in the place of the installed one."""
    text = UNIT.read_text(encoding="utf-8")
    [program] = re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program == "/opt/mogface/.venv/bin/mogface-archive"
    here = shutil.which("mogface-archive") or str(ROOT / ".venv" / "bin" / "mogface-archive")
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(program, here), encoding="utf-8")
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        lacking("systemd", "no systemd-analyze on PATH: apt-get install systemd")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_systemd_understands_every_line(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("RestartSec=2", "RestartSecs=2"))
    assert "'RestartSecs'" in analyze("verify", str(unit)).stderr


def test_the_sandbox_is_closed(unit: Path) -> None:
    given = ["security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}"]
    done = analyze(*given, str(unit))
    assert done.returncode == 0, done.stdout
    unit.write_text(unit.read_text().replace("ProtectSystem=strict\n", "").replace("NoNewPrivileges=true\n", ""))
    assert analyze(*given, str(unit)).returncode != 0


def test_the_guide_installs_what_the_unit_names() -> None:
    text, guide = UNIT.read_text(encoding="utf-8"), (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for path in ("/opt/mogface", "/var/lib/mogface", "/etc/mogface/config.properties"):
        assert path in text
        assert path in guide
