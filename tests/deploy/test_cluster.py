"""Two real TorchServe servers behind one real nginx, under load: one is killed, then both get another archive.

The load are callers over REST and gRPC who use the project's client as it is: it may send again, but every call has to
end in the right answer. `pytest -s` shows what was seen.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import grpc
import pytest
from PIL import Image

from archive import properties
from archive.build import VERSION, Workspace, export_centerface
from archive.pack import Recipe, pack, read_settings
from archive.serve import isolated
from archive.server import Server
from clients import Answer, Client, ClientError
from handler.geometry import Canvas
from tests.deploy.nginx import LIMIT, Launch, Nginx, asked, predict
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT, Start

NEXT = "2.0"
#: Calls under way at once: each server always has some.
CALLERS = 6
HOSTS = ("127.0.0.2", "127.0.0.3")


def photograph(number: int) -> bytes:
    """A portrait of a size of its own."""
    data = io.BytesIO()
    with Image.open(HOPPER.path) as picture:
        picture.convert("RGB").crop((155, 111, 377, 356)).resize((200 + 16 * number, 240)).save(data, "JPEG")
    return data.getvalue()


@dataclass
class Host:
    """One of the machines behind nginx.

    Attributes:
        address: of loopback, this one's alone.
        folder: its server's.
        server: that runs there now.
    """

    address: str
    folder: Path
    server: Server = field(init=False)

    def begin(self, store: Path, version: str) -> None:
        """Start a server of the store's archive, on the ports it had before."""
        config = self.folder / "config.properties"
        if not config.exists():
            isolated(ROOT / "config.properties", self.folder)
        values = properties.read(config)
        [entry, *_] = properties.models(values)["centerface"].values()
        values |= {
            "model_store": str(store),
            "models": json.dumps({"centerface": {version: entry}}),
            "disable_token_authorization": "true",
            "grpc_inference_address": self.address,
            "grpc_management_address": self.address,
        }
        for key in properties.ADDRESSES:
            values[key] = values[key].replace("127.0.0.1", self.address)
        config.write_text(properties.render(values), encoding="utf-8")
        console = (self.folder / "console.log").open("ab")
        self.server = Server(
            config, ["centerface.mar"], self.folder, self.folder / "tmp", console, {"OMP_NUM_THREADS": "1"}
        ).start()

    def ready(self) -> None:
        self.server.wait(["centerface"])

    def kill(self) -> None:
        """As a machine that loses its power: front end and workers at once."""
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait_until_stopped()

    def serves_more(self, seconds: float = 60) -> None:
        """Wait until nginx sends requests here again."""
        before, deadline = asked(self.server), time.monotonic() + seconds
        while asked(self.server) < before + CALLERS:
            assert time.monotonic() < deadline, f"{self.address} is left out"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def stores(workspace: Workspace, centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two model stores, each with its own version of one detector, at a canvas that takes little time."""
    settings = dataclasses.replace(read_settings(centerface_mar), canvases=(Canvas(320, 320),), long_side=320)
    graphs = export_centerface(workspace)
    made = {}
    for version in (VERSION, NEXT):
        made[version] = tmp_path_factory.mktemp("store")
        pack(Recipe("centerface", version, settings, graphs), made[version] / "centerface.mar")
    return made


@pytest.fixture(scope="module")
def hosts(start: Start, stores: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    made = [Host(address, tmp_path_factory.mktemp("host")) for address in HOSTS]
    try:
        for host in made:
            host.begin(stores[VERSION], VERSION)
        for host in made:
            host.ready()
        yield made
    finally:
        for host in made:
            host.kill()


@pytest.fixture(scope="module")
def cluster(launch: Launch, hosts: list[Host]) -> Nginx:
    """nginx before both, as docs/clusters.md has it: one more line a server."""
    first, second = hosts
    nginx = launch(
        first.server.inference.removeprefix("http://"), first.server.values["grpc_inference_port"], host=first.address
    )
    conf = nginx.prefix / "etc" / "nginx" / "mogface" / "servers.conf"
    text = conf.read_text(encoding="utf-8")
    for port in ("inference_address", "grpc_inference_port"):
        here, there = (each.server.values[port].rpartition(":")[2] for each in (first, second))
        line = f"    server {first.address}:{here} max_fails=0;\n"
        assert line in text
        text = text.replace(line, line + f"    server {second.address}:{there} max_fails=0;\n")
    conf.write_text(text, encoding="utf-8")
    nginx.reload()
    return nginx


@dataclass
class Load:
    """Callers who go on until the context ends.

    Attributes:
        outcomes: the end of each call on the monotonic clock, and the version that answered rightly, "wrong", or the
            error that the client gave up with.
        pause_s: of each caller between two calls; 0 where something must be under way at every moment.
    """

    nginx: Nginx
    expected: list[Answer]
    outcomes: list[tuple[float, str]] = field(default_factory=list)
    pause_s: float = 0.05
    _clients: list[Client] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def retries(self) -> int:
        return sum(client.retries for client in self._clients)

    def _call(self, number: int) -> None:
        image, client = photograph(number), self._clients[number % 2]
        while not self._stop.is_set():
            [outcome] = client.detect_each([image])
            if isinstance(outcome, ClientError):
                kind = f"{outcome.type}: {outcome.message}"
            else:
                kind = outcome.model.version if outcome.faces == self.expected[number].faces else "wrong"
            self.outcomes.append((time.monotonic(), kind))
            self._stop.wait(self.pause_s)

    def __enter__(self) -> Load:
        for address in (self.nginx.address, f"grpcs://localhost:{self.nginx.port}"):
            self._clients.append(Client(address, token=self.nginx.token, timeout_s=60))
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
        for each in self._threads:
            each.start()
        self.more()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(120)
        for client in self._clients:
            client.close()

    def more(self, count: int = 4 * CALLERS, seconds: float = 60) -> None:
        """Wait for so many calls to end from now on."""
        wanted, deadline = len(self.outcomes) + count, time.monotonic() + seconds
        while len(self.outcomes) < wanted:
            assert time.monotonic() < deadline, Counter(kind for _, kind in self.outcomes)
            time.sleep(0.02)

    def told(self, event: str, first: int, retries: int) -> Counter[str]:
        """What callers saw since outcome ``first``; shown where pytest shows output."""
        ends = [at for at, _ in self.outcomes[max(0, first - 1) :]]
        gap = max(later - earlier for earlier, later in itertools.pairwise(ends))
        kinds = Counter(kind for _, kind in self.outcomes[first:])
        sys.stderr.write(
            f"\n{event}: {dict(kinds)}, {self.retries - retries} sent again, {gap:.2f} s without an answer at most\n"
        )
        return kinds


@pytest.fixture(scope="module")
def expected(hosts: list[Host]) -> list[Answer]:
    """Of a server alone."""
    with Client(hosts[0].server.inference) as client:
        answers = [client.detect(photograph(number)) for number in range(CALLERS)]
    assert [len(answer.faces) for answer in answers] == [1] * CALLERS
    assert len({answer.faces[0].box for answer in answers}) == CALLERS
    return answers


@pytest.fixture(scope="module")
def load(cluster: Nginx, expected: list[Answer]) -> Iterator[Load]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(cluster.roots))
        with Load(cluster, expected) as load:
            yield load


def servers(nginx: Nginx, *arguments: str) -> subprocess.CompletedProcess[str]:
    """deploy/nginx/servers as it is, on this nginx."""
    tool = nginx.prefix / "bin" / "nginx"
    if not tool.exists():
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec {nginx.run} "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    return subprocess.run(
        [ROOT / "deploy" / "nginx" / "servers", *arguments],
        env={
            "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
            "NGINX_CONF": str(nginx.prefix / "etc" / "nginx"),
            "NGINX_PID": str(nginx.prefix / "nginx.pid"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def settled(server: Server, seconds: float = 30) -> int:
    """What a server has answered, once its access log says no more: lines come after their answers."""
    deadline = time.monotonic() + seconds
    before = -1
    while (now := asked(server)) != before:
        assert time.monotonic() < deadline, f"{server.inference} is still asked"
        before = now
        time.sleep(1)
    return now


def test_both_servers_answer(load: Load, hosts: list[Host]) -> None:
    for host in hosts:
        host.serves_more()
    assert Counter(kind for _, kind in load.outcomes).keys() == {VERSION}
    assert load.retries == 0


def test_a_server_that_is_killed_loses_nothing(load: Load, hosts: list[Host], stores: dict[str, Path]) -> None:
    load.pause_s = 0
    load.more()
    first, retries = len(load.outcomes), load.retries
    hosts[0].kill()
    load.more(8 * CALLERS)
    load.pause_s = 0.05
    # What it had; all else nginx gave to the other one.
    assert 0 < load.retries - retries <= CALLERS
    hosts[0].begin(stores[VERSION], VERSION)
    hosts[0].ready()
    hosts[0].serves_more()
    assert load.told("one of two servers killed, and started again", first, retries).keys() == {VERSION}


def test_an_archive_is_replaced_server_by_server(
    load: Load, cluster: Nginx, hosts: list[Host], stores: dict[str, Path]
) -> None:
    """Nothing is lost: each server has nothing under way when it is ended, however roughly."""
    first, retries = len(load.outcomes), load.retries
    for host in hosts:
        done = servers(cluster, "out", host.address)
        assert (done.returncode, done.stderr) == (0, "")
        before = settled(host.server)
        load.more()
        assert asked(host.server) == before
        host.kill()
        host.begin(stores[NEXT], NEXT)
        host.ready()
        done = servers(cluster, "in", host.address)
        assert (done.returncode, done.stderr) == (0, "")
        host.serves_more()
    assert load.told("version 1.0 replaced by 2.0", first, retries).keys() == {VERSION, NEXT}
    # A call may begin on a connection that nginx is closing as it reloads; the client sends that one again.
    assert load.retries - retries <= len(hosts) * 2
    first = len(load.outcomes)
    load.more()
    assert load.told("after it", first, load.retries).keys() == {NEXT}


def test_a_callers_fault_takes_no_server_away(load: Load, cluster: Nginx) -> None:
    """TorchServe resets a call whose message is over its limit, which nginx takes for the server's fault."""
    first, retries = len(load.outcomes), load.retries
    with cluster.channel() as channel:
        for _ in range(2 * len(HOSTS)):
            with pytest.raises(grpc.RpcError):
                predict(channel, cluster.token, bytes(LIMIT + 1))
    load.more()
    assert load.told("messages over the limit", first, retries).keys() <= {VERSION, NEXT}
    assert load.retries == retries


def test_what_cannot_be_taken_out_is_told_and_nothing_changes(cluster: Nginx) -> None:
    conf = cluster.prefix / "etc" / "nginx" / "mogface" / "servers.conf"
    before = conf.read_text(encoding="utf-8")
    for arguments, message in {
        (): "usage: servers out|in HOST",
        ("down", HOSTS[0]): "'down': expected out or in",
        ("out", "127.0.0.9"): "servers.conf has no server 127.0.0.9",
        ("out", "127.0.0.2:8080"): "expected a name or an IPv4 address, without a port",
        ("out", ".*"): "expected a name or an IPv4 address",
        ("out", "127x0.0.2"): "has no server 127x0.0.2",
    }.items():
        done = servers(cluster, *arguments)
        assert done.returncode == 1
        assert message in done.stderr
        assert conf.read_text(encoding="utf-8") == before
    assert servers(cluster, "out", HOSTS[0]).returncode == 0
    once = conf.read_text(encoding="utf-8")
    assert once.count(" down;") == 2
    assert servers(cluster, "out", HOSTS[0]).returncode == 0
    assert conf.read_text(encoding="utf-8") == once
    done = servers(cluster, "out", HOSTS[1])
    assert (done.returncode, "is the last server that is in" in done.stderr) == (1, True)
    conf.write_text(once.replace("least_conn;", "least_con;", 1), encoding="utf-8")
    done = servers(cluster, "in", HOSTS[0])
    assert (done.returncode, "nginx refuses the outcome" in done.stderr) == (1, True)
    assert conf.read_text(encoding="utf-8") == once.replace("least_conn;", "least_con;", 1)
    conf.write_text(once, encoding="utf-8")
    assert servers(cluster, "in", HOSTS[0]).returncode == 0
    assert conf.read_text(encoding="utf-8") == before
    assert [path.name for path in conf.parent.iterdir() if path.name.startswith("servers")] == ["servers.conf"]
