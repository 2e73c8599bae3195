"""deploy/nginx/mogface.conf in a real nginx before a real TorchServe, set up by the commands of docs/security.md."""

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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from archive import properties
from archive.server import Server
from archive.verify import PHOTOGRAPH
from clients import (
    Answer,
    Client,
    ClientError,
    NotAuthorised,
    NotFound,
    QueueFull,
    Retry,
    TooLarge,
    Unavailable,
    Unreachable,
)
from clients.proto import inference_pb2, inference_pb2_grpc
from tests.photographs import ASTRONAUT, HOPPER
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
    """

    port: int
    prefix: Path
    token: str

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


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Set nginx up as the guide says, in a folder of its own, and start it; ``changes`` to mogface.conf."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        lacking("nginx", "no nginx on PATH: apt-get install nginx")
    with ExitStack() as stack:

        def begin(rest: str, grpc_port: str, changes: Mapping[str, str] | None = None) -> Nginx:
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
            here = {
                "    listen [::]:443 ssl http2 default_server;\n": "",
                "listen 443 ": f"listen 127.0.0.1:{port} ",
                "127.0.0.1:8080": rest,
                "127.0.0.1:7070": f"127.0.0.1:{grpc_port}",
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
            started = Nginx(port, prefix, (prefix / "alice.token").read_text().strip())
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


@pytest.fixture(scope="module")
def behind(start: Start, centerface_mar: Path) -> Iterator[Server]:
    """TorchServe as the guide starts it: without tokens of its own."""
    server = start("centerface", changes={"disable_token_authorization": "true"})
    yield server
    server.stop()


@pytest.fixture(scope="module")
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


def test_the_same_faces_as_directly(nginx: Nginx, behind: Server) -> None:
    direct = httpx.post(f"{behind.inference}/predictions/centerface", content=JPEG, timeout=60)
    expected = faces(direct.json())
    assert len(expected) == 1
    for path in ("/predictions/centerface", "/predictions/centerface/1.0", "//predictions/%63enterface"):
        for method in ("POST", "PUT"):
            answer = nginx.post(path, method=method)
            assert answer.status_code == 200, answer.text
            assert faces(answer.json()) == expected
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-model-weights"] == direct.headers["x-model-weights"]
    several = nginx.post(content=None, files={"image1": JPEG, "image2": ASTRONAUT.path.read_bytes()})
    assert [len(each["faces"]) for each in several.json()["results"]] == [1, 1]
    # Options in headers pass, and the detector's own errors as they are.
    assert nginx.post(headers={"X-Face-Max-Faces": "0"}).json()["error"]["type"] == "invalid_option"
    picture = nginx.post(headers={"X-Face-Output": "image"})
    assert (picture.headers["content-type"], picture.content[:2]) == ("image/jpeg", b"\xff\xd8")
    assert error_of(nginx.post("/ping")) == (405, "method_not_allowed")
    assert nginx.post("/ping", method="GET", content=None).json() == {"status": "Healthy"}
    with nginx.channel() as channel:
        assert faces(json.loads(predict(channel, nginx.token).prediction)) == expected


def test_http_1_0_is_answered(nginx: Nginx) -> None:
    status, headers, body = nginx.raw(f"POST /predictions/centerface HTTP/1.0\nContent-Length: {len(JPEG)}", JPEG)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert len(json.loads(body)["faces"]) == 1


def test_the_guides_calls_and_the_clients(nginx: Nginx, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(PHOTOGRAPH, nginx.prefix / "photo.jpg")
    commands = blocks("grpcs://")
    for shipped, here in {
        "/etc/nginx/mogface/tls.crt": str(nginx.roots),
        "localhost:443": f"localhost:{nginx.port}",
    }.items():
        assert shipped in commands
        commands = commands.replace(shipped, here)
    commands = commands.replace("https://localhost", nginx.address)
    curl, rest, by_grpc = shell(f'curl() {{ command curl "$@"; echo; }}\n{commands}', nginx.prefix).splitlines()
    expected = faces(json.loads(curl))
    assert len(expected) == 1
    assert faces(json.loads(rest)["answer"]) == faces(json.loads(by_grpc)["answer"]) == expected

    monkeypatch.setenv("SSL_CERT_FILE", str(nginx.roots))
    for address in (nginx.address, f"grpcs://localhost:{nginx.port}"):
        outcomes: list[object] = []
        for token, model, image in (
            (nginx.token, "centerface", HOPPER.path),
            ("wrong", "centerface", HOPPER.path),
            (nginx.token, "nobody", HOPPER.path),
            (nginx.token, "centerface", bytes(LIMIT + 1)),
        ):
            with Client(address, model, token=token, retry=ONCE, max_message_bytes=2 * LIMIT) as client:
                outcomes += client.detect_each([image])
        over = TooLarge if address == nginx.address else Unreachable
        assert [type(each) for each in outcomes] == [Answer, NotAuthorised, NotFound, over], address
        assert f"over {LIMIT:,} bytes" in str(outcomes[-1])
    # Whom it does not know it does not talk to.
    monkeypatch.delenv("SSL_CERT_FILE")
    for address in (nginx.address, f"grpcs://localhost:{nginx.port}"):
        with Client(address, token=nginx.token, retry=ONCE) as client, pytest.raises(Unavailable):
            client.detect(HOPPER.path)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("path", ["/predictions/centerface", "/predictions/nobody", "/ping"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_without_a_listed_token_nobody_learns_anything(nginx: Nginx, path: str, method: str) -> None:
    wrong = ["", "Bearer", nginx.token, f"Basic {nginx.token}", f"Bearer {nginx.token}0"]
    wrong += [
        f"Bearer {nginx.token[:-1]}",
        f"Bearer {nginx.token} x",
        f"Bearer  {nginx.token}",
        "Bearer alice",
        "alice",
    ]
    for value in wrong:
        answer = nginx.post(path, method=method, headers={"Authorization": value})
        assert error_of(answer) == (401, "not_authorised"), value
    without = httpx.request(method, nginx.address + path, verify=nginx.trust)
    assert error_of(without) == (401, "not_authorised")


def test_two_tokens_in_one_request_are_none(nginx: Nginx) -> None:
    status, _, body = nginx.raw("GET /ping HTTP/1.1\nHost: localhost\nAuthorization: Bearer wrong")
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request")


@pytest.mark.usefixtures("untouched")
def test_grpc_without_a_listed_token(nginx: Nginx) -> None:
    with nginx.channel() as channel:
        for token in (None, "wrong", nginx.token[:-1]):
            code, details = refused(lambda token=token: predict(channel, token))  # type: ignore[misc]
            assert (code, "no valid token" in details) == ("UNAUTHENTICATED", True)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/models", "/models/centerface", "/models/centerface/invoke", "/metrics", "/token?type=inference"),
        *("/invocations", "/explanations/centerface", "/api-description", "/v1/models/centerface:predict"),
        *("/v2/models/centerface/infer", "/workflows", "/wfpredict/centerface", "/predictions", "/predictions/"),
        *("/predictions/centerface/1.0/more", "/predictions/centerface/", "/predictions/.hidden", "/ping/", "/Ping"),
        *("/predictions/../models", "/predictions/%2e%2e/models", "/predictions/..%2fmodels", "/ping/..;/models"),
        *("//models", "/%6dodels", "/predictions/%2e%2e%2f%2e%2e%2fmodels", "/predictions/center%00face"),
        *("/predictions/centerface%3fx", "/predictions/a%20HTTP%2f1.1", "/predictions/centerface%0d%0ax", "*"),
        *("http://127.0.0.1:8081/models", "/predictions\\centerface", "/predictions/cent\u00e9"),
    ],
)
def test_no_other_path_reaches_torchserve(nginx: Nginx, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        spelled = path.encode().decode("latin-1")
        status, headers, body = nginx.raw(f"{method} {spelled} HTTP/1.1\nHost: localhost\nContent-Length: 0")
        assert status in (400, 404), (method, status)
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["error"]["code"] == status


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_no_other_method_reaches_torchserve(nginx: Nginx, method: str) -> None:
    status, headers, _ = nginx.raw(
        f"{method} /predictions/centerface HTTP/1.1\nHost: localhost\nConnection: close\nContent-Length: 0"
    )
    assert status in ((405,) if method in ("GET", "HEAD", "DELETE", "PATCH", "OPTIONS", "PROPFIND") else (400, 405))
    assert headers["content-type"] == "application/json"
    if status == 405:
        assert headers["allow"] == "POST, PUT"


def test_no_other_grpc_call_reaches_torchserve(nginx: Nginx, behind: Server) -> None:
    """StreamPredictions ends a worker that is not made for it; the management service has another port."""
    pids = worker_pids(behind)
    message = inference_pb2.PredictionsRequest(model_name="centerface", input={"image": JPEG})
    metadata = [("authorization", f"Bearer {nginx.token}")]
    calls = [f"{SERVICE}/{name}" for name in ("StreamPredictions", "StreamPredictions2", "predictions", "Ping/", "")]
    calls += [f"{SERVICE}/StreamPredictions/../Predictions", f"/x/..{SERVICE}/StreamPredictions"]
    calls += ["/org.pytorch.serve.grpc.management.ManagementAPIsService/ListModels", "/grpc.health.v1.Health/Check"]
    with nginx.channel() as channel:
        stream = channel.unary_stream(f"{SERVICE}/StreamPredictions", lambda each: each.SerializeToString(), bytes)
        assert refused(lambda: list(stream(message, metadata=metadata, timeout=60)))[0] == "UNIMPLEMENTED"
        for path in calls:
            call = channel.unary_unary(path, lambda each: each.SerializeToString(), bytes)
            assert refused(lambda call=call: call(message, metadata=metadata, timeout=60))[0] == "UNIMPLEMENTED", path  # type: ignore[misc]
        ping = channel.unary_unary(f"{SERVICE}/Ping", bytes, bytes)
        assert b"Healthy" in ping(b"", metadata=metadata, timeout=60)
        assert len(json.loads(predict(channel, nginx.token).prediction)["faces"]) == 1
    assert worker_pids(behind) == pids


def test_limits_are_those_of_the_configuration() -> None:
    text = CONF.read_text(encoding="utf-8")
    values = properties.read(ROOT / "config.properties")
    [body] = re.findall(r"client_max_body_size (\d+);", text)
    assert int(body) == int(values["max_request_size"]) == LIMIT
    assert f"{LIMIT:,} bytes" in text
    slowest = max(entry["responseTimeout"] for each in properties.models(values).values() for entry in each.values())
    for name in ("proxy_read_timeout", "grpc_read_timeout"):
        [seconds] = re.findall(rf"{name} (\d+)s;", text)
        assert int(seconds) > slowest
    [queue] = {values["job_queue_size"]}
    opened = {int(number) for number in re.findall(r"limit_conn \w+ (\d+);", text)}
    assert max(opened) < int(queue)


def test_a_body_of_the_limit_passes(nginx: Nginx) -> None:
    error = nginx.post(content=bytes(LIMIT)).json()["error"]
    assert (error["type"], "21,000,000" in error["message"]) == ("too_large", True), "the detector's own limit"


@pytest.mark.usefixtures("untouched")
def test_no_body_over_the_limit_reaches_torchserve(nginx: Nginx) -> None:
    assert error_of(nginx.post(content=bytes(LIMIT + 1))) == (413, "too_large")
    # Without a length nginx finds out while it reads.
    assert error_of(nginx.post(content=iter([bytes(10_000_000)] * 4))) == (413, "too_large")
    with nginx.channel() as channel:
        code, details = refused(lambda: predict(channel, nginx.token, bytes(LIMIT + 1)))
    assert (code, "over 30,000,000 bytes" in details) == ("UNAVAILABLE", True)


@pytest.mark.usefixtures("untouched")
def test_a_slow_upload_ends_at_nginx(nginx: Nginx) -> None:
    head = f"POST /predictions/centerface HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(JPEG)}\r\n"
    started = time.monotonic()
    with ExitStack() as stack:
        slow = [stack.enter_context(nginx.connect()) for _ in range(10)]
        for each in slow:
            each.sendall(f"{head}Authorization: Bearer {nginx.token}\r\n\r\n".encode() + JPEG[:1000])
        # Headers that do not end.
        unfinished = stack.enter_context(nginx.connect())
        unfinished.sendall(head.encode())
        for each in (*slow, unfinished):
            each.settimeout(30)
            try:
                received = each.recv(1000)
            except ConnectionError:
                received = b""
            assert not received or b" 408 " in received
    assert 1 < time.monotonic() - started < 30


def test_a_slow_grpc_call_holds_no_worker(nginx: Nginx, behind: Server) -> None:
    """nginx passes a message on as it comes; TorchServe has it whole before a worker does."""
    stop = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b""
        stop.wait(30)

    with nginx.channel() as channel:
        call = channel.stream_unary(f"{SERVICE}/Predictions", bytes, bytes)
        future = call.future(pieces(), metadata=[("authorization", f"Bearer {nginx.token}")], timeout=60)
        answers = [nginx.post() for _ in range(3)]
        assert [len(faces(answer.json())) for answer in answers] == [1, 1, 1]
        assert {answer.json()["batch_size"] for answer in answers} == {1}
        stop.set()
        with pytest.raises(grpc.RpcError):
            future.result(timeout=60)


@pytest.mark.usefixtures("untouched")
def test_floods_of_headers(nginx: Nginx) -> None:
    request = "POST /predictions/centerface HTTP/1.1\nHost: localhost\nContent-Length: 0\n"
    many = "\n".join(f"X-Face-{number}: {'x' * 1000}" for number in range(100))
    for lines, status in (
        (request + many, 431),
        (f"{request}X-Face-Canvas: {'x' * 9000}", 431),
        (request.replace("centerface", "c" * 9000).strip(), 414),
    ):
        found, headers, body = nginx.raw(lines)
        assert (found, headers["content-type"]) == (status, "application/json")
        assert json.loads(body)["error"] == {**json.loads(body)["error"], "code": status, "type": "invalid_request"}


@pytest.mark.usefixtures("untouched")
def test_a_body_of_text_fields_is_told_what_to_do(nginx: Nginx) -> None:
    """What curl says of ``--data-binary`` by itself."""
    answer = nginx.post(headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})
    assert error_of(answer) == (415, "invalid_request")
    assert "curl -T FILE" in answer.json()["error"]["message"]


@pytest.mark.usefixtures("untouched")
def test_what_is_no_request(nginx: Nginx) -> None:
    clear = httpx.get(f"http://localhost:{nginx.port}/ping")
    assert error_of(clear) == (400, "invalid_request")
    for lines in ("GET /ping HTTP/1.1", "GET /ping HTTP/1.1\nHost: a\nHost: b", "HELO you\nHost: localhost"):
        status, _, body = nginx.raw(lines)
        assert (status, json.loads(body)["error"]["code"]) == (400, 400)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_is_refused(nginx: Nginx) -> None:
    for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        trust = ssl.create_default_context(cafile=str(nginx.roots))
        trust.set_ciphers("ALL:@SECLEVEL=0")
        trust.minimum_version = trust.maximum_version = version
        with socket.create_connection(("localhost", nginx.port), timeout=30) as plain:
            try:
                trust.wrap_socket(plain, server_hostname="localhost").close()
                worked = True
            except ssl.SSLError:
                worked = False
        assert worked == works, version


def test_too_much_of_one_address_or_caller(launch: Launch, behind: Server) -> None:
    changes = {"rate=200r/s": "rate=1r/m", "burst=400": "burst=2", "_open 64": "_open 1"}
    narrow = launch(behind.inference.removeprefix("http://"), behind.values["grpc_inference_port"], changes)
    with narrow.connect() as slow:
        head = f"POST /predictions/centerface HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(JPEG)}\r\n"
        slow.sendall(f"{head}Authorization: Bearer {narrow.token}\r\n\r\n".encode())
        time.sleep(0.3)
        assert error_of(narrow.post()) == (429, "rate_limited"), "one is under way"
    deadline = time.monotonic() + 20
    statuses: list[int] = []
    while statuses.count(429) < 2 and time.monotonic() < deadline:
        statuses.append(narrow.post("/ping", method="GET", content=None).status_code)
    assert set(statuses) <= {200, 429}
    with narrow.channel() as channel:
        code, details = refused(lambda: predict(channel, narrow.token))
        assert (code, "too many requests" in details) == ("UNAVAILABLE", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(narrow.roots))
        with Client(narrow.address, token=narrow.token, retry=ONCE) as client, pytest.raises(QueueFull) as caught:
            client.detect(HOPPER.path)
    assert (caught.value.status, caught.value.type, caught.value.retryable) == (429, "rate_limited", True)
    kept = {(line["rate"], line["open"]) for line in narrow.lines() if line["status"] == 429}
    assert {("REJECTED", ""), ("PASSED", "REJECTED")} <= kept


def test_a_server_that_is_not_there(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = launch(f"127.0.0.1:{free_port()}", str(free_port()))
    assert error_of(alone.post()) == (502, "unavailable")
    monkeypatch.setenv("SSL_CERT_FILE", str(alone.roots))
    for address in (alone.address, f"grpcs://localhost:{alone.port}"):
        with Client(address, token=alone.token, retry=ONCE) as client, pytest.raises(ClientError) as caught:
            client.detect(HOPPER.path)
        assert isinstance(caught.value, Unavailable)
        assert "TorchServe cannot be reached" in caught.value.message


def test_logs_find_a_request_and_keep_its_secrets(nginx: Nginx, behind: Server) -> None:
    answer = nginx.post(
        "/predictions/centerface?key=in-the-query", headers={"X-Face-Max-Faces": "3", "Cookie": "crumb"}
    )
    assert answer.status_code == 200
    refusal = nginx.post("/models?key=in-the-query", headers={"Referer": "https://from.example/"})
    wrong = nginx.post(headers={"Authorization": "Bearer not-a-token"})
    deadline = time.monotonic() + 20
    found: dict[str, dict[str, Any]] = {}
    identities = [each.headers["x-request-id"] for each in (answer, refusal, wrong)]
    while not set(identities) <= found.keys():
        assert time.monotonic() < deadline
        found = {line["id"]: line for line in nginx.lines()}
    lines = [found[identity] for identity in identities]
    assert [(line["caller"], line["path"], line["status"]) for line in lines] == [
        ("alice", "/predictions/centerface", 200),
        ("alice", "/models", 404),
        ("", "/predictions/centerface", 401),
    ]
    assert lines[0]["torchserve_status"] == "200"
    assert lines[0]["bytes_in"] > len(JPEG)
    assert identities[0] in (behind.folder / "logs" / "model_log.log").read_text(errors="replace")
    written = [path.read_bytes() for path in (nginx.prefix / "log").iterdir()]
    assert len(written) == 3
    for secret in (nginx.token, "not-a-token", "in-the-query", "crumb", "from.example", "X-Face"):
        assert not any(secret.encode() in each for each in written), secret
    # Nor does TorchServe come to know the token.
    for path in (behind.folder / "logs").iterdir():
        assert nginx.token.encode() not in path.read_bytes()


def test_the_guides_configuration_turns_torchserves_tokens_off(tmp_path: Path) -> None:
    shutil.copy(ROOT / "config.properties", tmp_path)
    commands = [line for line in blocks("disable_token_authorization").splitlines() if "configure" not in line]
    shell("\n".join(commands), tmp_path)
    shipped = properties.read(ROOT / "config.properties")
    changed = properties.read(tmp_path / "build" / "config.properties")
    assert changed == shipped | {"disable_token_authorization": "true"} != shipped


def test_every_block_of_the_guide_is_run_or_needs_a_whole_machine() -> None:
    found = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    run = ("disable_token", "deploy/nginx/mogface.conf", "rand -hex", "openssl req", "nginx -t", "grpcs://")
    machine = ("apt-get install", "useradd")
    for words in (*run, *machine):
        assert len([each for each in found if words in each]) == 1, words
    assert len(found) == len(run) + len(machine)
