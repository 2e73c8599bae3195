"""docs/metrics.md's commands, run as they stand; only ports are others."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from archive import properties
from handler.metrics import FAMILIES
from tests.checkout import ROOT, checkout, environment, run
from tests.deploy.test_rules import ALERTS
from tests.requirements import lacking

GUIDE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new user's, whose Prometheus asks this server's port."""
    if shutil.which("prometheus") is None:
        lacking("prometheus", "no prometheus on PATH: apt-get install prometheus")
    folder = checkout(tmp_path_factory)
    config = folder / "deploy" / "prometheus" / "prometheus.yml"
    config.write_text(_ported(config.read_text(), folder).replace("_interval: 15s", "_interval: 1s"))
    return folder


def _ported(text: str, folder: Path) -> str:
    address = properties.read(folder / "config.properties")["metrics_address"].removeprefix("http://")
    assert "127.0.0.1:8082" in text
    return text.replace("127.0.0.1:8082", address)


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """``make serve``; the shell's variables."""
    shell = environment(tmp_path_factory.mktemp("temp"))
    log = folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", "serve"], cwd=folder, env=shell, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 180
        while "Ready after" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield shell
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)


def test_commands(folder: Path, served: dict[str, str]) -> None:
    scraped, checked, watched = BLOCKS
    assert 'mogface_requests_total{model="centerface",version="1.0",outcome="ok"' in run(
        _ported(scraped, folder), folder, served
    )
    assert run(checked, folder, served).count("SUCCESS") >= 3
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    assert "127.0.0.1:9090" in watched
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        command = f"exec {watched.replace('127.0.0.1:9090', address)}"
        process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=served, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not _up(f"http://{address}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _up(address: str) -> bool:
    try:
        answer = httpx.get(f"{address}/api/v1/query", params={"query": 'up{job="mogface"}'})
    except httpx.HTTPError:
        return False
    return answer.status_code == 200 and [each["value"][1] for each in answer.json()["data"]["result"]] == ["1"]


def test_every_metric_and_alert_is_explained_and_nothing_else() -> None:
    assert {family.name for family in FAMILIES} == _first_cells(r"`(mogface_\w+)`")
    assert set(ALERTS) == _first_cells(r"`(MogFace\w+)`")


def _first_cells(pattern: str) -> set[str]:
    cells = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(pattern, cell)}
