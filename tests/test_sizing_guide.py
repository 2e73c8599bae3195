"""docs/sizing.md's commands do what it says, run as they stand; only ports are others."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from archive.build import Workspace
from archive.server import Server
from tests.checkout import ROOT, checkout, environment, run

BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, centerface_mar: Path, workspace: Workspace) -> Path:
    made = checkout(tmp_path_factory)
    (made / "model_store").mkdir(exist_ok=True)
    shutil.copy(centerface_mar, made / "model_store")
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Server]:
    with (folder / "console.log").open("wb") as console:
        with Server(folder / "config.properties", ["centerface.mar"], folder, folder / "tmp", console) as server:
            server.wait(["centerface"])
            yield server


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("temp"))


def test_every_block_is_run_here() -> None:
    assert ["--rate 5" in BLOCKS[0], "--max-p99" in BLOCKS[1], "sweep" in BLOCKS[2], len(BLOCKS)] == [True, True, True, 3]


def test_load(served: Server, folder: Path, shell: dict[str, str]) -> None:
    output = run(BLOCKS[0], folder, shell)
    assert "8 users" in output
    assert "5 /s" in output
    assert json.loads((folder / "build" / "load" / "summary.json").read_text())["steps"][0]["answered"] > 0
    assert "answers/s" in run(BLOCKS[1], folder, shell)


def test_sweep_and_tune(folder: Path, shell: dict[str, str]) -> None:
    output = run(BLOCKS[2], folder, shell)
    assert "front" in output
    assert "TorchServe will do what it says" in output
    assert (folder / "build" / "sweep" / "pareto.png").exists()
