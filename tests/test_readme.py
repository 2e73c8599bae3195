"""README.md's commands do what it says, run as they stand; only ports are others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from archive import properties
from tests.checkout import ROOT, ported, run
from tests.checkout import checkout as new_checkout
from tests.checkout import environment as shell

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_checkout(tmp_path_factory)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return shell(tmp_path_factory.mktemp("temp"))


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
        "mogface detect",
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
    assert '"score":0.92' in run(line, checkout, environment)


def test_the_answer_is_the_one_printed(served: str, checkout: Path, environment: dict[str, str]) -> None:
    answer = json.loads(run(_block("predictions/centerface"), checkout, environment))
    [printed] = re.findall(r"^```json\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    expected: dict[str, Any] = json.loads(printed)
    assert set(answer.pop("timing_ms")) == set(expected.pop("timing_ms"))
    # Other processors round otherwise in the last digits.
    assert json.dumps(answer)[:200] == json.dumps(expected)[:200]
    assert answer["faces"][0]["box"] == pytest.approx(expected["faces"][0]["box"], abs=0.05)
    for name, point in expected["faces"][0]["landmarks"].items():
        assert answer["faces"][0]["landmarks"][name] == pytest.approx(point, abs=0.05)


def test_the_command_and_the_client(served: str, checkout: Path, environment: dict[str, str]) -> None:
    # Their default addresses are the shipped ports.
    values = properties.read(checkout / "config.properties")
    environment = environment | {
        "MOGFACE_ADDRESS": values["inference_address"],
        "MOGFACE_MANAGEMENT": values["management_address"],
    }
    run(_block("mogface detect"), checkout, environment)
    [line] = (checkout / "build" / "faces.jsonl").read_text().splitlines()
    assert json.loads(line)["answer"]["faces"][0]["score"] == pytest.approx(0.9288, abs=0.001)
    assert (checkout / "build" / "pictures").is_dir()
    [program] = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (checkout / "program.py").write_text(ported(program, checkout))
    assert "0.92" in run(".venv/bin/python program.py", checkout, environment)


def test_tokens_are_renewed(served: str, checkout: Path, environment: dict[str, str]) -> None:
    before = (checkout / "key_file.json").read_text()
    run(_block("token?type"), checkout, environment)
    assert (checkout / "key_file.json").read_text() != before


def test_archive_and_configuration_commands(served: str, checkout: Path, environment: dict[str, str]) -> None:
    assert "TorchServe will do what it says" in run(_block("configure"), checkout, environment)
    assert '"minWorkers": 2' in (checkout / "build" / "config.properties").read_text()
    assert "whole, and runs by itself" in run(_block("verify"), checkout, environment)


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
    checkout = new_checkout(tmp_path_factory)
    temp = str(tmp_path_factory.mktemp("temp"))
    # A server's output would hold the pipe of this test open; a person's terminal has no such end.
    start = _block("torchserve --start").rstrip() + " > console.log 2>&1"
    command = f"{start}\n{_WAIT}\n{_block('torchserve --stop')}"
    output = run(command, checkout, environment | {"TEMP": temp, "TMPDIR": temp})
    assert "Workers scaled to 2" in output
    assert output.count('"status": "READY"') == 2
    assert "TorchServe has stopped" in output
