"""A collection, and ``mogface-bulk`` on it as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from load_tests.pictures import carried
from tests.checkout import ROOT
from tests.serving.conftest import centerface_mar, server, start, workspace

__all__ = ["centerface_mar", "server", "start", "workspace"]

# Before Ray is imported anywhere: its nodes listen on loopback alone.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

Bulk = Callable[..., "subprocess.CompletedProcess[str]"]
BAD = {"broken.jpg": b"no picture", "empty.png": b"", "half.jpg": carried(((320, 240),))[0].data[:2000]}


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three sizes in two folders, some of them bad."""
    folder = tmp_path_factory.mktemp("collection")
    (folder / "deep").mkdir()
    pictures = carried(((160, 120), (120, 160), (320, 240)))
    for number in range(60):
        place = folder / "deep" if number % 2 else folder
        (place / f"{number:03}.jpg").write_bytes(pictures[number % 3].data)
    for name, data in BAD.items():
        (folder / "deep" / name).write_bytes(data)
    (folder / "notes.txt").write_text("no picture, and not looked for")
    return folder


@pytest.fixture(scope="session")
def bulk(centerface_mar: Path) -> Bulk:
    """Run the command to its end."""

    def run(*arguments: str | Path, address: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(centerface_mar, *arguments, address=address),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head that runs nothing, and two nodes of one core each; all real Ray processes."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, node_ip_address="127.0.0.1")
    yield made
    made.shutdown()


def command(mar: Path, *arguments: str | Path, address: str = "") -> list[str]:
    given = ["--archive", str(mar), *(["--address", address] if address else [])]
    return [sys.executable, "-m", "bulk.cli", *map(str, arguments), *given]


def environment() -> dict[str, str]:
    """Nothing but the command's own care keeps its Ray on loopback."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Every row of an output's ``faces`` or ``errors``, in the order of its parts."""
    files = sorted((folder / kind).iterdir())
    if any(file.suffix == ".jsonl" for file in files):
        return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
