"""``mogface-web`` as it starts, refuses and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.checkout import checkout as new_checkout
from tests.checkout import environment as shell
from tests.serving.conftest import ROOT
from webui.cli import FAILED, USAGE


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOGFACE_")}
    return subprocess.run(
        [sys.executable, "-m", "webui.cli", *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def closed() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"http://127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "config.properties cannot be read"),
        ("inference_address=http://127.0.0.1:1\n", "starts a server on port 1: give that address"),
        ("# none\n", "starts a server on port 8080"),
    ],
)
def test_no_server_is_started_for_another_address(tmp_path: Path, closed: str, config: str | None, words: str) -> None:
    if config is not None:
        (tmp_path / "config.properties").write_text(config)
    done = run(tmp_path, "--port", "0", "--address", closed)
    assert done.returncode == USAGE
    assert words in done.stderr
    assert closed in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "http://", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    done = run(tmp_path, "--address", address)
    assert done.returncode == USAGE
    assert "address" in done.stderr


def test_a_server_that_cannot_start_ends_it(tmp_path: Path, closed: str) -> None:
    # Without a model store, mogface-archive refuses.
    (tmp_path / "config.properties").write_text(f"inference_address={closed}\n")
    done = run(tmp_path, "--port", "0", "--address", closed)
    assert done.returncode == FAILED
    assert "ended before it was ready" in done.stderr
    assert "has no model_store" in done.stderr


def test_a_taken_port_is_named(tmp_path: Path, open_port: int) -> None:
    done = run(tmp_path, "--address", f"http://127.0.0.1:{open_port}", "--port", str(open_port))
    assert done.returncode == USAGE
    assert f"127.0.0.1:{open_port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_make_web_starts_a_server_and_stops_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = new_checkout(tmp_path_factory)
    (folder / ".venv" / ".web").touch()
    environment = shell(tmp_path_factory.mktemp("temp"))
    [line] = [
        line
        for line in (folder / "config.properties").read_text().splitlines()
        if line.startswith("inference_address=")
    ]
    environment["MOGFACE_ADDRESS"] = line.partition("=")[2]
    log = folder / "web.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", "web", "PORT=0"], cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    deadline = time.monotonic() + 180
    while "The page: " not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    address = log.read_text().partition("The page: ")[2].split()[0]
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("java" in each.name() for each in family)
    assert httpx.get(address, follow_redirects=True).status_code == 200
    # As Ctrl-C at the terminal reaches make and the page.
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=90)
    _, alive = psutil.wait_procs(family, timeout=90)
    assert not alive
    assert "Stopped." in log.read_text()
