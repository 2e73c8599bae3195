"""docs/gpu.md's commands that need no real GPU, run as they stand on two pretended ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.checkout import ROOT, checkout, environment, ported, run

GUIDE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_two_pretended_gpus(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    built, served, asked = BLOCKS
    folder = checkout(tmp_path_factory)
    # The front end counts GPUs by this; without a driver torch sees none, and the workers run on the CPU.
    shell = environment(tmp_path) | {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert "a10, centerface 1.0" in run(built, folder, shell)
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
        output = run(asked, folder, shell)
        assert '"score":0.92' in output
        claims = re.findall(r'"device": "cpu", "gpu_claimed": ([01])', output)
        assert sorted(claims) == ["0", "0", "1", "1"]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
