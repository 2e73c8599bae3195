"""A real TorchServe for the whole session, on free ports, in folders of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from archive import properties
from archive.build import VERSION, Build, Wanted, Workspace
from archive.serve import isolated
from archive.server import Server, java_home
from handler.errors import EnvironmentFault
from tests.requirements import lacking

ROOT = Path(__file__).resolve().parents[2]

Start = Callable[..., Server]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The repository's build folder, so that weights are downloaded once, and a model store of its own."""
    return Workspace(ROOT / "build", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def centerface_mar(workspace: Workspace) -> Path:
    mar, _ = Build(Wanted("centerface"), workspace).archive()
    return mar


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory, workspace: Workspace) -> Iterator[Start]:
    """Start a server: the shipped configuration, free ports, changed as asked."""
    try:
        java_home()
    except EnvironmentFault as error:
        lacking("java", error.message)
    servers = []

    def begin(
        *models: str,
        changes: Mapping[str, str] | None = None,
        entries: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Server:
        folder = tmp_path_factory.mktemp("server")
        config = isolated(ROOT / "config.properties", folder)
        values = properties.read(config) | {"model_store": str(workspace.store)} | dict(changes or {})
        if entries:
            listed = properties.models(values)
            for name in models:
                listed[name][VERSION] |= dict(entries)
            values["models"] = json.dumps(listed)
        config.write_text(properties.render(values), encoding="utf-8")
        console = (folder / "console.log").open("wb")
        server = Server(config, [f"{name}.mar" for name in models], folder, folder / "tmp", console, env)
        servers.append(server)
        server.start()
        if wait:
            server.wait(models)
        return server

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start: Start, centerface_mar: Path) -> Server:
    """One worker on CenterFace, as config.properties ships it."""
    return start("centerface")


@pytest.fixture
def post(server: Server) -> Callable[..., httpx.Response]:
    """POST to CenterFace: keyword arguments as httpx takes them."""

    def send(*, headers: Mapping[str, str] | None = None, **body: Any) -> httpx.Response:
        address = f"{server.inference}/predictions/centerface"
        return httpx.post(address, headers=server.headers() | dict(headers or {}), timeout=120, **body)

    return send


def worker_pids(server: Server, model: str = "centerface") -> list[int]:
    return [worker["pid"] for version in server.describe(model) for worker in version["workers"]]
