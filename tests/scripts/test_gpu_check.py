"""The check of a GPU, run on a CPU as far as it goes there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check"
#: Runs the script where only what it says it needs can be imported.
BARE = """
import runpy, sys
for name in ("onnx", "onnxruntime", "ts", "yaml", "tqdm", "httpx", "psutil", "modelscope", "model_archiver", "cv2"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BARE, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_end_to_end_on_a_cpu_with_torch_alone(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    done = run("--device", "cpu", "--size", "64", "--batches", "1", "2", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads(output.read_text())["sections"]
    states = {name: found["state"] for name, found in sections.items()}
    assert states == {
        "machine": "ok",
        "export fp32": "ok",
        "answers fp32": "ok",
        "speed fp32": "ok",
        "tensorrt": "not run",
    }
    answers = sections["answers fp32"]
    assert answers["max_difference"]["scores"] < 1e-4
    assert answers["max_difference"]["offsets"] < 1e-3
    assert answers["found_again"] == answers["boxes"] >= 5
    rows = sections["speed fp32"]["rows"]
    assert [(row["canvas"], row["batch"], row["box_heads"]) for row in rows] == [
        ("64x64", batch, heads) for batch in (1, 2) for heads in ("none", "all")
    ]
    assert all(row["images_s"] > 0 and row["ms_a_batch"] > 0 for row in rows)
    # A floor is a GPU's.
    assert not any("floor_images_s" in row for row in rows)
    assert "not installed: " in sections["tensorrt"]["reason"]
    assert "speed fp32" in done.stdout
    assert str(output) in done.stdout


def test_no_time_is_said_and_no_fault(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    done = run("--device", "cpu", "--size", "64", "--minutes", "0.01", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    states = [found["state"] for found in json.loads(output.read_text())["sections"].values()]
    assert states == ["ok", *["not run"] * 4]


@pytest.mark.parametrize("wrong", [("--size", "8"), ("--batches", "0"), ("--minutes", "0"), ("--device", "cuda")])
def test_wrong_usage(wrong: tuple[str, str], tmp_path: Path) -> None:
    if wrong[1] == "cuda":
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    done = run(*wrong, "--output", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
