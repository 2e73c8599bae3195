"""The repository as a new user has it, for documents whose commands are run as they stand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archive import properties
from archive.serve import isolated
from archive.server import java_home
from handler.errors import EnvironmentFault
from tests.requirements import lacking

ROOT = Path(__file__).resolve().parents[1]
#: As config.properties ships them.
_PORTS = {
    "inference_address": "8080",
    "management_address": "8081",
    "metrics_address": "8082",
    "grpc_inference_port": "7070",
    "grpc_management_port": "7071",
}


def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    # What the package's build generated.
    for stub in (ROOT / "clients" / "proto").glob("*_pb2*.py"):
        shutil.copy(stub, folder / "clients" / "proto")
    if (ROOT / "build" / "weights").is_dir():
        shutil.copytree(ROOT / "build" / "weights", folder / "build" / "weights")
    free = properties.read(isolated(folder / "config.properties", tmp_path_factory.mktemp("ports")))
    shipped = properties.read(folder / "config.properties")
    text = (folder / "config.properties").read_text(encoding="utf-8")
    for key in (*properties.ADDRESSES, *properties.GRPC_PORTS):
        text = text.replace(f"{key}={shipped[key]}", f"{key}={free[key]}")
    (folder / "config.properties").write_text(text, encoding="utf-8")
    return folder


def environment(temp: Path) -> dict[str, str]:
    """A shell's variables, with nothing of the process that runs the tests."""
    inherited = ("TS_CONFIG_FILE", "MAKEFLAGS", "MAKELEVEL", "WEIGHTS", "CONFIG", "PHOTO")
    kept = {key: value for key, value in os.environ.items() if key not in inherited}
    return {**kept, "TEMP": str(temp), "TMPDIR": str(temp)}


def ported(command: str, folder: Path) -> str:
    """The command with the checkout's ports for the shipped ones."""
    values = properties.read(folder / "config.properties")
    for key, port in _PORTS.items():
        address = values[key].removeprefix("http://")
        command = command.replace(f"127.0.0.1:{port}", address if ":" in address else f"127.0.0.1:{address}")
    return command


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", ported(command, folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
