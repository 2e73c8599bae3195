"""A real Prometheus, a real nginx, and the servers of tests/serving."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from archive.server import Server
from tests.deploy.nginx import behind, launch, nginx, untouched
from tests.requirements import lacking
from tests.serving.conftest import ROOT, centerface_mar, start, workspace

__all__ = ["behind", "centerface_mar", "launch", "nginx", "start", "untouched", "workspace"]

PROMETHEUS = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="session")
def promtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    program = shutil.which("promtool")
    if program is None:
        lacking("prometheus", "no promtool on PATH: apt-get install prometheus")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)

    return run


@dataclass(frozen=True)
class Prometheus:
    """A running one.

    Attributes:
        address: of its HTTP API.
    """

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.address}/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> dict[str, float]:
        """Values by those of their labels."""
        found = self.get("query", query=expression)["result"]
        return {" ".join(series["metric"].values()): float(series["value"][1]) for series in found}

    def reaches(self, expression: str, expected: dict[str, float]) -> None:
        deadline = time.monotonic() + 60
        while self.query(expression) != expected:
            assert time.monotonic() < deadline, (expression, self.query(expression), expected)
            time.sleep(0.2)


Watch = Callable[[Server], Prometheus]


def configuration(server: Server) -> str:
    """The shipped one for this server, scraped each second."""
    text = (PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8")
    for shipped, here in {
        "127.0.0.1:8082": server.values["metrics_address"].removeprefix("http://"),
        "_interval: 15s": "_interval: 1s",
    }.items():
        assert shipped in text
        text = text.replace(shipped, here)
    return text


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """Start a Prometheus that scrapes a server under the shipped configuration and rules."""
    program = shutil.which("prometheus")
    if program is None:
        lacking("prometheus", "no prometheus on PATH: apt-get install prometheus")
    started = []

    def begin(server: Server) -> Prometheus:
        folder = tmp_path_factory.mktemp("prometheus")
        (folder / "prometheus.yml").write_text(configuration(server), encoding="utf-8")
        shutil.copy(PROMETHEUS / "alerts.yml", folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
        log = folder / "prometheus.log"
        with log.open("wb") as output:
            process = subprocess.Popen([program, *options], cwd=folder, stdout=output, stderr=output)
        started.append(process)
        deadline = time.monotonic() + 60
        while not _ready(f"http://{address}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return Prometheus(f"http://{address}")

    yield begin
    for process in started:
        process.terminate()
        process.wait(timeout=30)


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/-/ready").status_code == 200
    except httpx.HTTPError:
        return False
