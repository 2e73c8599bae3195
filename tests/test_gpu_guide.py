"""docs/gpu.md's commands that need no real GPU, run as they stand on two pretended ones."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.checkout import ROOT, checkout, environment, ported, run
from tests.fake_plans import as_tensorrt

GUIDE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory)


def ask(served: str, asked: str, folder: Path, shell: dict[str, str]) -> str:
    """Run one block that serves, and while it does another, whose output is returned."""
    log = folder / "serve.log"
    with log.open("wb") as console:
        command = f"exec {ported(served, folder)}"
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=shell, stdout=console, stderr=console, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 180
        while "Ready after" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return run(asked, folder, shell)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)


def test_two_pretended_gpus(folder: Path, tmp_path: Path) -> None:
    built, served, asked, _ = BLOCKS
    # The front end counts GPUs by this; without a driver torch sees none, and the workers run on the CPU.
    shell = environment(tmp_path) | {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert "a10, centerface 1.0" in run(built, folder, shell)
    output = ask(served, asked, folder, shell)
    assert '"score":0.92' in output
    claims = re.findall(r'"device": "cpu", "gpu_claimed": ([01])', output)
    assert sorted(claims) == ["0", "0", "1", "1"]


def test_two_pretended_gpus_with_a_fake_tensorrt(folder: Path, tmp_path: Path) -> None:
    """The same archive on plans, from its build to its first face."""
    _, served, asked, built = BLOCKS
    (tmp_path / "fake").mkdir()
    shell = environment(tmp_path) | {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": str(as_tensorrt(tmp_path / "fake")),
    }
    shutil.rmtree(folder / "logs", ignore_errors=True)
    output = run(built, folder, shell)
    assert "a10, centerface 1.0" in output
    assert (folder / "build" / "plans" / "sm00-tensorrt0.0.fake-fp16" / "centerface.plan").is_file()
    output = ask(served, asked, folder, shell)
    assert '"engine":"trt","precision":"fp16"' in output
    assert '"score":0.92' in output
    assert sorted(re.findall(r'"gpu_claimed": ([01])', output)) == ["0", "0", "1", "1"]
