"""A disk that is full, or that the server may not write to: it does not become ready; mended, it serves."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archive import properties
from archive.build import Workspace
from archive.serve import isolated
from archive.server import NotReady, Server
from tests.requirements import lacking
from tests.serving.conftest import ROOT, Start
from tests.serving.unprivileged import unprivileged

#: s in which a sound server would be ready.
REFUSED_S = 8


def written(server: Server) -> str:
    return (server.folder / "logs" / "ts_log.log").read_text(errors="replace")


def test_no_room_for_the_archive(start: Start, centerface_mar: Path) -> None:
    """No file may grow over 1 MB, as on a full disk: the network's graph does not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        server = start("centerface", wait=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(NotReady):
        server.wait(["centerface"], seconds=REFUSED_S)
    assert "File too large" in written(server)
    server.stop()
    # With room it starts, out of the same folder.
    server.start()
    server.wait(["centerface"])
    server.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB, less than an archive needs."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mounted)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lacking("mount", done.stderr.strip())
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@contextmanager
def not_started(workspace: Workspace, mar: Path, folder: Path, temporary: Path) -> Iterator[Server]:
    """A server as it is shipped, whose temporary folder is the one given."""
    config = isolated(ROOT / "config.properties", folder)
    values = properties.read(config) | {"model_store": str(workspace.store)}
    config.write_text(properties.render(values), encoding="utf-8")
    with (folder / "console.log").open("wb") as console:
        server = Server(config, [mar.name], folder, temporary, console)
        try:
            yield server
        finally:
            server.stop()


def test_temporary_folder_on_a_full_disk(
    small_disk: Path, workspace: Workspace, centerface_mar: Path, tmp_path: Path
) -> None:
    with not_started(workspace, centerface_mar, tmp_path, small_disk / "tmp") as server:
        server.start()
        with pytest.raises(NotReady):
            server.wait(["centerface"], seconds=REFUSED_S)
        assert "No space left on device" in written(server)
        server.stop()
        subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
        server.start()
        server.wait(["centerface"])


def test_temporary_folder_that_cannot_be_written(
    workspace: Workspace, centerface_mar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir(0o555)
    with not_started(workspace, centerface_mar, tmp_path, temporary) as server, unprivileged(monkeypatch):
        server.start()
        with pytest.raises(NotReady):
            server.wait(["centerface"], seconds=REFUSED_S)
        server.stop()
        temporary.chmod(0o755)
        server.start()
        server.wait(["centerface"])
