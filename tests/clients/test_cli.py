"""The command line itself, and what it says where there is no server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from clients.cli import main

ROOT = Path(__file__).parents[2]

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token of this machine, and an image at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOGFACE_TOKEN", raising=False)
    (tmp_path / "a.jpg").write_bytes(b"-")


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def hold() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=hold, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for each in held:
            each.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "VERB"),
        (["detect"], "IMAGE"),
        (["detect", "a.jpg", "--concurrency", "0"], "0 is out of range: expected 1 or more"),
        (["detect", "a.jpg", "--timeout", "inf"], "out of range"),
        (["detect", "a.jpg", "--max-faces", "many"], "invalid int value"),
        (["detect", "a.jpg", "--order", "age"], "invalid choice"),
        (["scale"], "--workers --auto is required"),
        (["scale", "--workers", "-1"], "expected 0 or more"),
        (["scale", "--workers", "1", "--auto"], "not allowed with"),
        (["unregister"], "model"),
        (["version"], "invalid choice"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["detect", "missing.jpg"], "'missing.jpg' names no file"),
        (["detect", "a.jpg", "--format", "table", "--output", "x"], "--format table is for stdout"),
        (["detect", "a.jpg", "--address", "ftp://x"], "ftp://x"),
        (["detect", "a.jpg", "--token-file", "nothing.json"], "nothing.json cannot be read"),
        (["detect", ".", "--pictures", "out"], "out lies inside ."),
        (["models", "--management", "somewhere"], "expected http://HOST:PORT"),
        (["scale", "--auto", "--max", "2", "--min", "3"], "from 3 to 2"),
        (["scale", "--auto", "--max", "2", "--interval", "30"], "an interval of 30 s"),
        (["scale", "--auto", "--max", "2", "--up-after", "0"], "up_after_s is 0"),
        (["scale", "--auto"], "--max N"),
        (["scale", "--workers", "2", "--model-version", "all"], "--model-version all is every one"),
        (["scale", "--auto", "--max", "2", "--model-version", "all"], "name one"),
        (["detect", "a.jpg", "--pictures", "a.jpg"], "--pictures a.jpg: a.jpg is no folder; choose another"),
        (["detect", "a.jpg", "--crops", "a.jpg/b"], "--crops a.jpg/b: a.jpg is no folder; choose another"),
        (["detect", "a.jpg", "--pictures", "out", "--crops", "./out"], "--pictures and --crops are both out"),
        (["detect", "a.jpg", "--pictures", "."], "--pictures would write over the image a.jpg"),
        (["detect", "a.jpg", "--address", "http://xn--:80"], "address 'http://xn--:80': "),
        (["scale", "--auto", "--max", "2", "--metrics", "http://xn--:80"], "--metrics 'http://xn--:80': "),
        (["scale", "--auto", "--max", "2", "--metrics", "a:1"], "--metrics 'a:1': "),
        (["models", "--management", "http://a..b:1"], "management address 'http://a..b:1'"),
        (["detect", "a.jpg", "--model", "\udcff"], r"'predictions/\udcff/' cannot be sent"),
        (["unregister", "\udcff"], r"'models/\udcff' cannot be sent"),
    ],
)
def test_what_cannot_be_meant_is_2_and_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"mogface {arguments[0]}: ")
    assert words in told
    assert told.count("\n") == 1


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mogface {metadata.version('mogface-serve')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["detect", "a.jpg", "--address", NOWHERE],
        ["models", "--management", NOWHERE],
        ["scale", "--workers", "2", "--management", NOWHERE],
        ["scale", "--auto", "--max", "2", "--management", NOWHERE],
        ["register", "a.mar", "--management", NOWHERE],
        ["unregister", "centerface", "--management", NOWHERE],
    ],
)
def test_no_server_is_3(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert NOWHERE in captured.err


def test_health_without_a_server_is_3_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--management", NOWHERE]) == 3
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("not ready: centerface: http://127.0.0.1:1 cannot be reached")
    assert captured.out.count("\n") == 1


def test_health_waits_no_longer_than_told(silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert main(["health", "--management", silent, "--timeout", "0.3"]) == 3
    assert time.monotonic() - started < 5
    assert "no answer within 0.3 s" in capsys.readouterr().out


def test_a_second_interruption_ends_at_once(silent: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clients.cli", "detect", "a.jpg", "--output", "o", "--address", silent]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        deadline = time.monotonic() + 60
        while not (tmp_path / "o").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        assert "waiting for what was sent; once more to end at once" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == "mogface detect: interrupted\n"
    assert (tmp_path / "o").read_bytes() == b""


def test_names_of_the_server_come_from_the_environment_and_flags_win(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOGFACE_MANAGEMENT", "http://127.0.0.1:2")
    monkeypatch.setenv("MOGFACE_MODEL", "mogface")
    assert main(["health"]) == 3
    assert "mogface: http://127.0.0.1:2 cannot be reached" in capsys.readouterr().out
    assert main(["health", "--management", NOWHERE, "--model", "centerface"]) == 3
    assert f"centerface: {NOWHERE} cannot be reached" in capsys.readouterr().out
