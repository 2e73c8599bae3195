"""Archives that are none, that end in their midst, or that the server may not read: the others are served."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from archive.build import Workspace
from archive.server import Server
from tests.photographs import HOPPER
from tests.serving.conftest import Start
from tests.serving.unprivileged import unprivileged


def statuses(server: Server, model: str) -> set[str]:
    return {worker["status"] for version in server.describe(model) for worker in version["workers"]}


def test_archives_that_are_none_cost_the_others_nothing(
    start: Start, workspace: Workspace, centerface_mar: Path
) -> None:
    whole = centerface_mar.read_bytes()
    contents = {
        "half": whole[: len(whole) // 2],
        # As a copy that is under way.
        "zeros": whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2),
        "text": b"no archive",
        "empty": b"",
    }
    paths = [workspace.store / f"{name}.mar" for name in contents]
    try:
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_bytes(content)
        server = start("centerface", *contents, wait=False)
        server.wait(["centerface"])
        for name in contents:
            assert "READY" not in statuses(server, name)
        assert _faces(server) == 1
        for name in ("half", "zeros"):
            refused = httpx.post(f"{server.inference}/predictions/{name}", headers=server.headers(), timeout=60)
            assert refused.status_code == 404, refused.text
        # What is no zip at all TorchServe takes for a model whose worker never starts.
        for name in ("text", "empty"):
            assert len(server.describe(name)) == 1
        server.stop()
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def test_an_archive_that_the_server_may_not_read(
    start: Start, workspace: Workspace, centerface_mar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = workspace.store / "closed.mar"
    shutil.copy(centerface_mar, closed)
    closed.chmod(0)
    try:
        with unprivileged(monkeypatch):
            server = start("centerface", "closed", wait=False)
        server.wait(["centerface"])
        assert "AccessDeniedException" in (server.folder / "logs" / "ts_log.log").read_text(errors="replace")
        assert "READY" not in statuses(server, "closed")
        assert _faces(server) == 1
        server.stop()
    finally:
        closed.unlink()


def _faces(server: Server) -> int:
    answer = httpx.post(
        f"{server.inference}/predictions/centerface",
        content=HOPPER.path.read_bytes(),
        headers=server.headers(),
        timeout=60,
    )
    return len(answer.json()["faces"])
