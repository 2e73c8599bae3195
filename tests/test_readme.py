"""README.md's commands do what it says, run as they stand; only ports are others."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from archive import properties
from archive.serve import isolated
from archive.server import java_home
from handler.errors import EnvironmentFault
from tests.requirements import lacking

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def _checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git would give a new user, on free ports; the environment and the downloads are shared."""
    try:
        java_home()
    except EnvironmentFault as error:
        lacking("java", error.message)
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    # This environment under the checkout's own name, stamped as installed: make must not install into it.
    environment = folder / ".venv"
    environment.mkdir()
    for entry in Path(sys.prefix).iterdir():
        (environment / entry.name).symlink_to(entry)
    for stamp in (".serve", ".mogface", ".dev"):
        (environment / stamp).unlink(missing_ok=True)
        (environment / stamp).touch()
    if (ROOT / "build" / "weights").is_dir():
        shutil.copytree(ROOT / "build" / "weights", folder / "build" / "weights")
    free = properties.read(isolated(folder / "config.properties", tmp_path_factory.mktemp("ports")))
    shipped = properties.read(folder / "config.properties")
    text = (folder / "config.properties").read_text(encoding="utf-8")
    for key in (*properties.ADDRESSES, *properties.GRPC_PORTS):
        text = text.replace(f"{key}={shipped[key]}", f"{key}={free[key]}")
    (folder / "config.properties").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _checkout(tmp_path_factory)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    temp = str(tmp_path_factory.mktemp("temp"))
    kept = {key: value for key, value in os.environ.items() if key not in ("TS_CONFIG_FILE", "MAKEFLAGS", "MAKELEVEL")}
    return {**kept, "TEMP": temp, "TMPDIR": temp}


def _ported(command: str, checkout: Path) -> str:
    """The command with the checkout's ports for the shipped ones."""
    values = properties.read(checkout / "config.properties")
    for key, port in {"inference_address": "8080", "management_address": "8081"}.items():
        command = command.replace(f"127.0.0.1:{port}", values[key].removeprefix("http://"))
    return command


def _run(command: str, checkout: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _ported(command, checkout)],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _block(word: str) -> str:
    [block] = [each for each in BLOCKS if word in each]
    return str(block)


@pytest.fixture(scope="module")
def served(checkout: Path, environment: dict[str, str]) -> Iterator[str]:
    """``make serve`` in the background, once it says that it is ready."""
    assert "make serve " in BLOCKS[0]
    log = checkout / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", "serve"], cwd=checkout, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while "Ready after" not in log.read_text() or "/predictions/" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield log.read_text()
        family = psutil.Process(process.pid).children(recursive=True)
        # Ctrl-C reaches make and what it runs.
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive


def test_every_block_is_run_here() -> None:
    words = (
        "make serve",
        "predictions/centerface",
        "torchserve --start",
        "torchserve --stop",
        "token?type",
        "configure",
        "verify",
    )
    assert all(any(word in block for word in words) for block in BLOCKS)
    assert len(BLOCKS) == len(words)


def test_make_serve_prints_a_command_that_works(served: str, checkout: Path, environment: dict[str, str]) -> None:
    [line] = [line for line in served.splitlines() if "/predictions/" in line]
    assert '"score":0.92' in _run(line, checkout, environment)


def test_the_answer_is_the_one_printed(served: str, checkout: Path, environment: dict[str, str]) -> None:
    answer = json.loads(_run(_block("predictions/centerface"), checkout, environment))
    [printed] = re.findall(r"^```json\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    expected: dict[str, Any] = json.loads(printed)
    assert set(answer.pop("timing_ms")) == set(expected.pop("timing_ms"))
    # Other processors round otherwise in the last digits.
    assert json.dumps(answer)[:200] == json.dumps(expected)[:200]
    assert answer["faces"][0]["box"] == pytest.approx(expected["faces"][0]["box"], abs=0.05)
    for name, point in expected["faces"][0]["landmarks"].items():
        assert answer["faces"][0]["landmarks"][name] == pytest.approx(point, abs=0.05)


def test_tokens_are_renewed(served: str, checkout: Path, environment: dict[str, str]) -> None:
    before = (checkout / "key_file.json").read_text()
    _run(_block("token?type"), checkout, environment)
    assert (checkout / "key_file.json").read_text() != before


def test_archive_and_configuration_commands(served: str, checkout: Path, environment: dict[str, str]) -> None:
    assert "TorchServe will do what it says" in _run(_block("configure"), checkout, environment)
    assert '"minWorkers": 2' in (checkout / "build" / "config.properties").read_text()
    assert "whole, and runs by itself" in _run(_block("verify"), checkout, environment)


# Asks as the README's commands do, until a worker is ready.
_WAIT = """
admin() { python3 -c 'import json; print(json.load(open("key_file.json"))["management"]["key"])'; }
until curl -s -H "Authorization: Bearer $(admin)" http://127.0.0.1:8081/models/centerface | grep -q READY
do sleep 0.2
done
"""


def test_the_bare_command_scaled_and_stopped(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkout = _checkout(tmp_path_factory)
    temp = str(tmp_path_factory.mktemp("temp"))
    # A server's output would hold the pipe of this test open; a person's terminal has no such end.
    start = _block("torchserve --start").rstrip() + " > console.log 2>&1"
    command = f"{start}\n{_WAIT}\n{_block('torchserve --stop')}"
    output = _run(command, checkout, environment | {"TEMP": temp, "TMPDIR": temp})
    assert "Workers scaled to 2" in output
    assert output.count('"status": "READY"') == 2
    assert "TorchServe has stopped" in output
