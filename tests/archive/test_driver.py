"""The driver's check, and what `make` does on a GPU host, with a fake nvidia-smi on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archive import driver
from handler.errors import EnvironmentFault

ROOT = Path(__file__).parents[2]
TWO = "NVIDIA A10, 580.65.06\nNVIDIA A10, 580.65.06\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def fake_smi(folder: Path, says: str, code: int = 0) -> None:
    """An ``nvidia-smi`` that answers so, whatever is asked."""
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\nexit {code}\n", encoding="utf-8")
    script.chmod(0o755)


def test_gpus_and_driver(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_smi(path, TWO)
    assert driver.gpus() == [driver.Gpu("NVIDIA A10", "580.65.06")] * 2
    assert driver.main() == 0
    assert capsys.readouterr().out == "NVIDIA driver 580.65.06, 2 GPUs: NVIDIA A10, NVIDIA A10\n"


@pytest.mark.parametrize(("version", "fits"), [("580.65.06", True), ("600.1", True), ("575.57", False), ("99", False)])
def test_the_oldest_driver(version: str, fits: bool) -> None:
    found = [driver.Gpu("NVIDIA A10", version)]
    if fits:
        driver.require(found)
        return
    with pytest.raises(EnvironmentFault, match=rf"driver is {version}.*need r580 or newer"):
        driver.require(found)


def test_an_older_driver_hears_of_cuda_12() -> None:
    with pytest.raises(EnvironmentFault, match=r"r535 or newer.*has none.*GPU=0"):
        driver.require([driver.Gpu("Tesla T4", "550.54.15")])
    with pytest.raises(EnvironmentFault) as caught:
        driver.require([driver.Gpu("Tesla T4", "470.1")])
    assert "535" not in str(caught.value)


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9, "has failed because"),
        ("", 0, "names no GPU"),
        ("NVIDIA A10, [N/A]\n", 0, "'\\[N/A\\]': expected one such as"),
    ],
)
def test_a_driver_that_does_not_answer(
    path: Path, capsys: pytest.CaptureFixture[str], says: str, code: int, words: str
) -> None:
    fake_smi(path, says, code)
    with pytest.raises(EnvironmentFault, match=words):
        driver.require(driver.gpus())
    assert driver.main() == 1
    assert capsys.readouterr().out == ""


def test_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"nvidia-smi.*GPU=0"):
        driver.gpus()


def test_it_needs_nothing_installed(path: Path) -> None:
    """It runs before there is an environment."""
    fake_smi(path, TWO)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "archive.driver"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 GPUs" in done.stdout


def make(*arguments: str) -> str:
    """What make would run, in an environment that is not there."""
    kept = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "HOST", "GPU")}
    done = subprocess.run(
        ["make", "--dry-run", "VENV=none", *arguments], cwd=ROOT, env=kept, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_make_follows_the_machine(path: Path) -> None:
    fake_smi(path, "no devices\n", 6)
    plan = make("setup")
    assert "constraints/cpu.txt -e '.[cpu," in plan
    assert "archive.driver" not in plan
    assert "tensorrt" not in plan
    fake_smi(path, TWO)
    plan = make("setup")
    assert plan.index("archive.driver") < plan.index("constraints/gpu.txt -e '.[gpu,")
    assert "constraints/gpu.txt -e '.[tensorrt]'" in plan
    assert "cpu" not in plan.replace("on a CPU host", "")
    assert "tensorrt" not in make("setup", "TENSORRT=0")
    assert "constraints/cpu.txt" in make("setup", "GPU=0")


def test_make_takes_ones_word_for_a_gpu(path: Path) -> None:
    fake_smi(path, "no devices\n", 6)
    plan = make("setup", "GPU=1")
    assert "archive.driver" in plan
    assert "constraints/gpu.txt" in plan
