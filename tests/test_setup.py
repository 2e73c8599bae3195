"""The package as it is built: its gRPC stubs are generated, wherever it is installed from."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STUBS = {"clients/proto/inference_pb2.py", "clients/proto/inference_pb2_grpc.py"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build reads, as a clone has it: without stubs."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "clients", folder / "clients", ignore=shutil.ignore_patterns("*_pb2*.py", "__pycache__"))
    return folder


def build(folder: Path, kind: str) -> Path:
    """By the same hooks that pip calls."""
    program = f"from setuptools.build_meta import build_{kind} as build; print(build('dist'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


def test_a_wheel_has_them_and_the_checkout_stays_clean(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, "wheel")
    assert set(zipfile.ZipFile(wheel).namelist()) >= STUBS
    assert not list(checkout.glob("clients/proto/*_pb2*"))
    program = "import clients.proto.inference_pb2_grpc as stubs; print(stubs.__file__, stubs.InferenceAPIsServiceStub)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel))


def test_a_source_distribution_can_generate_them(checkout: Path, tmp_path: Path) -> None:
    archive = build(checkout, "sdist")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
        file.extractall(tmp_path, filter="data")
    assert "clients/proto/inference.proto" in names
    assert not names & STUBS
    [source] = tmp_path.iterdir()
    assert set(zipfile.ZipFile(build(source, "wheel")).namelist()) >= STUBS


def test_an_editable_installation_has_them_beside_its_sources(checkout: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkout, tmp_path / "copy")
    build(copy, "editable")
    assert {str(path.relative_to(copy)) for path in copy.glob("clients/proto/*_pb2*")} == STUBS
