"""A real nginx under deploy/nginx/mogface.conf, set up by the commands of docs/security.md."""

from __future__ import annotations

import functools
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from archive.server import Server
from clients import (
    Retry,
)
from clients.proto import inference_pb2, inference_pb2_grpc
from tests.photographs import HOPPER
from tests.requirements import lacking
from tests.serving.conftest import ROOT, Start, worker_pids

CONF = ROOT / "deploy" / "nginx" / "mogface.conf"
GUIDE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
JPEG = HOPPER.path.read_bytes()
LIMIT = 30_000_000
ONCE = Retry(attempts=1)
#: Of a main configuration; everything that matters here is in mogface.conf.
MAIN = """
user {user};
worker_processes 1;
daemon off;
pid {prefix}/nginx.pid;
error_log {prefix}/log/error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    access_log off;
    include conf.d/*.conf;
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A running one.

    Attributes:
        port: for TLS, on loopback.
        prefix: the folder that stands for the machine's: ``etc/nginx``, ``log``.
        token: of the caller alice.
        run: the command line that it runs under.
    """

    port: int
    prefix: Path
    token: str
    run: str

    @property
    def roots(self) -> Path:
        return self.prefix / "etc" / "nginx" / "mogface" / "tls.crt"

    @property
    def address(self) -> str:
        return f"https://localhost:{self.port}"

    @functools.cached_property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.roots))

    def bearer(self, token: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {token or self.token}"}

    def post(self, path: str = "/predictions/centerface", **given: Any) -> httpx.Response:
        headers = self.bearer() | dict(given.pop("headers", {}))
        return httpx.request(
            given.pop("method", "POST"),
            self.address + path,
            headers=headers,
            verify=self.trust,
            timeout=60,
            **({"content": JPEG} | given),
        )

    def connect(self) -> ssl.SSLSocket:
        return self.trust.wrap_socket(
            socket.create_connection(("localhost", self.port), timeout=60), server_hostname="localhost"
        )

    def raw(self, lines: str, body: bytes = b"") -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the answer to a request as it is spelled; the token is added."""
        head = f"{lines}\nAuthorization: Bearer {self.token}\n\n".replace("\n", "\r\n")
        with self.connect() as connection:
            connection.sendall(head.encode("latin-1") + body)
            answer = http.client.HTTPResponse(connection, method=lines.split()[0])
            answer.begin()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def channel(self) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(self.roots.read_bytes())
        options = [("grpc.max_send_message_length", 2 * LIMIT)]
        return grpc.secure_channel(f"localhost:{self.port}", credentials, options)

    def reload(self) -> None:
        shell(f"{self.run} -s reload", self.prefix)

    def lines(self) -> list[dict[str, Any]]:
        text = (self.prefix / "log" / "mogface.log").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


def blocks(words: str) -> str:
    """The one block of shell commands of the guide that has these words."""
    [found] = [each for each in re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE) if words in each]
    return str(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shell(command: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("MOGFACE_", "SSL_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


Launch = Callable[..., Nginx]


@pytest.fixture(scope="package")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Set nginx up as the guide says, in a folder of its own, and start it; ``changes`` to mogface.conf."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        lacking("nginx", "no nginx on PATH: apt-get install nginx")
    with ExitStack() as stack:

        def begin(
            rest: str, grpc_port: str, changes: Mapping[str, str] | None = None, host: str = "127.0.0.1"
        ) -> Nginx:
            prefix = tmp_path_factory.mktemp("nginx")
            port = free_port()
            etc = prefix / "etc" / "nginx"
            for folder in (etc / "conf.d", prefix / "log", prefix / "deploy"):
                folder.mkdir(parents=True)
            shutil.copytree(CONF.parent, prefix / "deploy" / "nginx")
            user = pwd.getpwuid(os.geteuid()).pw_name
            (etc / "nginx.conf").write_text(MAIN.format(user=user, prefix=prefix))
            run = f"{program} -p {prefix} -c {etc}/nginx.conf -e {prefix}/log/error.log"
            # The guide's own paths and programs, here.
            for words in ("deploy/nginx/mogface.conf", "rand -hex", "openssl req"):
                shell(blocks(words).replace("/etc/nginx", str(etc)), prefix)
            conf = etc / "conf.d" / "mogface.conf"
            text = conf.read_text(encoding="utf-8")
            servers = etc / "mogface" / "servers.conf"
            place = servers.read_text(encoding="utf-8")
            assert place.count("127.0.0.1:8080") == place.count("127.0.0.1:7070") == 1
            place = place.replace("127.0.0.1:8080", rest).replace("127.0.0.1:7070", f"{host}:{grpc_port}")
            servers.write_text(place, encoding="utf-8")
            here = {
                "    listen [::]:443 ssl http2 default_server;\n": "",
                "listen 443 ": f"listen 127.0.0.1:{port} ",
                "/var/log/nginx": f"{prefix}/log",
                # So that what is too slow is seen in seconds.
                "client_header_timeout 10s": "client_header_timeout 2s",
                "client_body_timeout 10s": "client_body_timeout 2s",
                **(changes or {}),
            }
            for shipped, changed in here.items():
                assert shipped in text, shipped
                text = text.replace(shipped, changed)
            conf.write_text(text, encoding="utf-8")
            shell(
                f'nginx() {{ {run} "$@"; }}\nsystemctl() {{ test "$*" = "reload nginx"; }}\n{blocks("nginx -t")}',
                prefix,
            )
            process = subprocess.Popen(run.split())
            stack.callback(process.wait, timeout=30)
            stack.callback(process.terminate)
            started = Nginx(port, prefix, (prefix / "alice.token").read_text().strip(), run)
            deadline = time.monotonic() + 30
            while True:
                try:
                    started.connect().close()
                    return started
                except OSError:
                    assert process.poll() is None, (prefix / "log" / "error.log").read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)

        yield begin


@pytest.fixture(scope="package")
def behind(start: Start, centerface_mar: Path) -> Iterator[Server]:
    """TorchServe as the guide starts it: without tokens of its own."""
    server = start("centerface", changes={"disable_token_authorization": "true"})
    yield server
    server.stop()


@pytest.fixture(scope="package")
def nginx(launch: Launch, behind: Server) -> Nginx:
    return launch(behind.inference.removeprefix("http://"), behind.values["grpc_inference_port"])


def asked(server: Server) -> int:
    """How many requests TorchServe has answered, over REST and gRPC, but for descriptions."""
    log = server.folder / "logs" / "access_log.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return sum("/models/" not in line for line in lines)


@pytest.fixture
def untouched(behind: Server) -> Iterator[None]:
    """Nothing of the test reaches TorchServe, and its worker is none the worse."""
    before, pids = asked(behind), worker_pids(behind)
    yield
    assert httpx.get(f"{behind.inference}/ping").status_code == 200
    deadline = time.monotonic() + 20
    while asked(behind) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert asked(behind) == before + 1
    assert worker_pids(behind) == pids


def error_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert list(content) == ["error"]
    assert list(content["error"]) == ["code", "type", "message"]
    assert content["error"]["code"] == answer.status_code
    assert content["error"]["message"]
    return answer.status_code, content["error"]["type"]


def faces(content: Mapping[str, Any]) -> Any:
    assert content["faces"], content
    return content["faces"]


def predict(channel: grpc.Channel, token: str | None, image: bytes = JPEG) -> Any:
    message = inference_pb2.PredictionsRequest(model_name="centerface", input={"image": image})
    metadata = None if token is None else [("authorization", f"Bearer {token}")]
    return inference_pb2_grpc.InferenceAPIsServiceStub(channel).Predictions(message, metadata=metadata, timeout=60)


def refused(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details()
