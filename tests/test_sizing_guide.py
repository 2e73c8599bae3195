"""docs/sizing.md's commands do what it says, run as they stand; only ports are others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from archive.server import Server
from tests.checkout import ROOT, checkout, environment, run

GUIDE = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shell: dict[str, str]) -> Path:
    made = checkout(tmp_path_factory)
    run(".venv/bin/mogface-archive build centerface", made, shell)
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Server]:
    config = folder / "config.properties"
    with (
        (folder / "console.log").open("wb") as console,
        Server(config, ["centerface.mar"], folder, folder / "tmp", console) as server,
    ):
        server.wait(["centerface"])
        yield server


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("temp"))


def test_every_block_is_run_here() -> None:
    words = ("--rate 5", "--max-p99", "sweep")
    assert len(BLOCKS) == len(words)
    assert all(word in block for word, block in zip(words, BLOCKS, strict=True))


def test_load(served: Server, folder: Path, shell: dict[str, str]) -> None:
    # The commands' own default, on this checkout's port.
    shell = shell | {"MOGFACE_ADDRESS": served.inference}
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
