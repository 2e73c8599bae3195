"""A bare TorchServe under the shipped configuration: who is let in, what is loaded, what is written down."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import torch
from PIL import Image

from archive import checkpoint
from archive.build import Workspace
from archive.server import NotReady, Server
from clients.proto import inference_pb2, inference_pb2_grpc
from handler.errors import ArtifactError
from tests.photographs import HOPPER
from tests.serving.conftest import Start
from tests.serving.test_faces import assert_portrait
from tests.support import chunk

JPEG = HOPPER.path.read_bytes()
MANAGEMENT = "/org.pytorch.serve.grpc.management.ManagementAPIsService"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def predict(server: Server, token: str | None, image: bytes = JPEG) -> dict[str, Any]:
    """The answer over gRPC."""
    message = inference_pb2.PredictionsRequest(model_name="centerface", input={"image": image})
    metadata = None if token is None else [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(f"127.0.0.1:{server.values['grpc_inference_port']}") as channel:
        reply = inference_pb2_grpc.InferenceAPIsServiceStub(channel).Predictions(message, metadata=metadata, timeout=60)
    return dict(json.loads(reply.prediction))


def call(server: Server, port: str, path: str, token: str | None = None) -> str:
    """The name of the status with which a gRPC call without an argument ends."""
    metadata = None if token is None else [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(f"127.0.0.1:{server.values[port]}") as channel:
        try:
            channel.unary_unary(path, bytes, bytes)(b"", metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def strangers(server: Server, api: str) -> list[dict[str, str]]:
    """Headers that are no token of this API; those of the others are none either."""
    others = [key for key in ("inference", "management", "API") if key != api]
    given = [bearer(server.key(other)) for other in others]
    return [*given, {}, bearer("wrong"), {"Authorization": server.key(api)}, {"Authorization": "Bearer"}]


def test_every_port_is_on_loopback(server: Server) -> None:
    assert server._process is not None
    family = psutil.Process(server._process.pid).children(recursive=True)
    listening = [each.laddr for process in family for each in process.net_connections() if each.status == "LISTEN"]
    assert len(listening) >= 5
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_keys_are_for_their_owner_alone(server: Server) -> None:
    assert stat.S_IMODE(os.stat(server.folder / "key_file.json").st_mode) == 0o600
    assert len({server.key(api) for api in ("inference", "management", "API")}) == 3


def test_predictions_need_the_inference_token(server: Server) -> None:
    address = f"{server.inference}/predictions/centerface"
    for headers in strangers(server, "inference"):
        for answer in (
            httpx.post(address, content=JPEG, headers=headers),
            httpx.get(f"{server.inference}/ping", headers=headers),
        ):
            assert (answer.status_code, answer.json()["type"]) == (400, "InvalidKeyException"), headers
    for token in (None, "wrong", server.key("management"), server.key("API")):
        with pytest.raises(grpc.RpcError) as caught:
            predict(server, token)
        assert caught.value.code().name == "PERMISSION_DENIED"
    assert len(predict(server, server.key())["faces"]) == 1


def test_management_needs_its_own_token(server: Server) -> None:
    calls = [("GET", "/models"), ("GET", "/models/centerface"), ("PUT", "/models/centerface?min_worker=0")]
    calls += [("POST", "/models?url=x.mar"), ("DELETE", "/models/centerface"), ("POST", "/workflows?url=x.war")]
    for method, path in calls:
        for headers in strangers(server, "management"):
            answer = httpx.request(method, server.management + path, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (400, "InvalidKeyException"), (method, path, headers)
    for headers in strangers(server, "API"):
        for api in ("inference", "management"):
            answer = httpx.get(f"{server.management}/token?type={api}", headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (400, "InvalidKeyException"), headers
    for name in ("ListModels", "RegisterModel", "UnregisterModel", "ScaleWorker", "SetDefault", "DescribeModel"):
        for token in (None, "wrong", server.key()):
            assert call(server, "grpc_management_port", f"{MANAGEMENT}/{name}", token) == "PERMISSION_DENIED", name


def test_management_is_not_on_the_port_of_predictions(server: Server) -> None:
    for method, path in (
        ("GET", "/models"),
        ("GET", "/models/centerface"),
        ("POST", "/models?url=x.mar"),
        ("PUT", "/models/centerface?min_worker=0"),
        ("DELETE", "/models/centerface"),
        ("GET", "/metrics"),
        ("GET", "/token?type=inference"),
        ("POST", "/workflows?url=x.war"),
    ):
        for api in ("inference", "management", "API"):
            answer = httpx.request(method, server.inference + path, headers=server.headers(api))
            assert answer.status_code in (400, 404, 405), (method, path, api, answer.text)
    for api in ("inference", "management"):
        name = f"{MANAGEMENT}/ListModels"
        assert call(server, "grpc_inference_port", name, server.key(api)) in ("UNIMPLEMENTED", "PERMISSION_DENIED")
    [described] = server.describe("centerface")
    assert len(described["workers"]) == 1


class _Listener:
    """Somewhere else, which notes who comes for what, and gives an archive."""

    def __init__(self, content: bytes) -> None:
        self.asked: list[str] = []
        note = self.asked.append

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                note(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(content)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def elsewhere(centerface_mar: Path) -> Iterator[_Listener]:
    listener = _Listener(centerface_mar.read_bytes())
    yield listener
    listener.server.shutdown()
    listener.server.server_close()


@pytest.fixture(scope="module")
def open_server(start: Start, centerface_mar: Path) -> Iterator[Server]:
    """Models may be registered, and tokens end after six seconds; else as shipped."""
    server = start("centerface", changes={"enable_model_api": "true", "token_expiration_min": "0.1"}, wait=False)
    yield server
    server.stop()


def renewed(server: Server, api: str) -> dict[str, str]:
    """The header with a new token."""
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = httpx.get(f"{server.management}/token?type={api}", headers=server.headers("API"), timeout=5)
            assert answer.status_code == 200, answer.text
            return server.headers(api)
        except (httpx.HTTPError, NotReady):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_tokens_end(open_server: Server) -> None:
    address = f"{open_server.inference}/predictions/centerface"
    headers = renewed(open_server, "inference")
    # It waits for the worker; the token is looked at when it comes.
    assert_portrait(httpx.post(address, content=JPEG, headers=headers, timeout=60), HOPPER)
    headers = renewed(open_server, "inference")
    token = open_server.key()
    started = time.monotonic()
    while (answer := httpx.post(address, content=JPEG, headers=headers, timeout=60)).status_code == 200:
        assert time.monotonic() - started < 60
        time.sleep(0.5)
    assert time.monotonic() - started > 4
    assert (answer.status_code, answer.json()["type"]) == (400, "InvalidKeyException")
    assert "expired" in answer.json()["message"].lower()
    with pytest.raises(grpc.RpcError) as caught:
        predict(open_server, token)
    assert caught.value.code().name == "PERMISSION_DENIED"
    assert_portrait(httpx.post(address, content=JPEG, headers=renewed(open_server, "inference"), timeout=60), HOPPER)


def _model_files(server: Server) -> set[str]:
    return {path.name for path in Path(server.values["model_store"]).iterdir()}


def test_models_come_from_the_store_alone(
    open_server: Server, elsewhere: _Listener, centerface_mar: Path, tmp_path: Path
) -> None:
    """Even where models may be registered: no path out of the store, no other folder, no address is taken."""
    outside = tmp_path / "outside.mar"
    outside.write_bytes(centerface_mar.read_bytes())
    store = Path(open_server.values["model_store"])
    urls = [
        *(f"{elsewhere.address}/evil.mar", elsewhere.address.replace("http", "https") + "/evil.mar"),
        *(f"file://{outside}", f"file:{outside}", f"FILE://{outside}", str(outside)),
        os.path.relpath(outside, store),
        *(f"../{tmp_path.name}/outside.mar", "..%2foutside.mar", "%2e%2e/outside.mar", "x/../../outside.mar"),
        f"file:///model_store_only/../../..{outside}",
        f"file:///model_store_only#{elsewhere.address}",
        f"{elsewhere.address}/?file:///model_store_only",
        *(
            "ftp://127.0.0.1/evil.mar",
            "s3://bucket/evil.mar",
            "jar:file:///x.jar!/evil.mar",
            "/etc/passwd",
            ".",
            "",
            "/",
        ),
    ]
    before = _model_files(open_server)
    for url in urls:
        given: dict[str, str] = {"url": url, "model_name": "evil", "initial_workers": "0"}
        for path in ("/models", "/workflows"):
            answer = httpx.post(
                open_server.management + path, params=given, headers=renewed(open_server, "management"), timeout=60
            )
            assert answer.status_code >= 400, (path, url, answer.text)
            assert answer.json()["type"] != "InvalidKeyException"
    listed = httpx.get(f"{open_server.management}/models", headers=renewed(open_server, "management")).json()
    assert [each["modelName"] for each in listed["models"]] == ["centerface"]
    assert elsewhere.asked == []
    assert _model_files(open_server) == before
    # The same call is taken of an archive in the store.
    given = {"url": "centerface.mar", "model_name": "again", "initial_workers": "0"}
    answer = httpx.post(
        f"{open_server.management}/models", params=given, headers=renewed(open_server, "management"), timeout=60
    )
    assert answer.status_code == 200, answer.text


def test_workflows_cannot_be_registered_as_shipped(server: Server, elsewhere: _Listener) -> None:
    """The other call that takes an address."""
    parameters = {"url": f"{elsewhere.address}/evil.war", "workflow_name": "evil"}
    answer = httpx.post(f"{server.management}/workflows", params=parameters, headers=server.headers("management"))
    assert answer.status_code >= 400, answer.text
    assert elsewhere.asked == []


def test_a_damaged_archive_never_becomes_ready(start: Start, workspace: Workspace, centerface_mar: Path) -> None:
    """One bit of the network: its member's checksum is another."""
    data = bytearray(centerface_mar.read_bytes())
    with zipfile.ZipFile(centerface_mar) as archive:
        info = archive.getinfo("graphs/centerface.onnx")
    name, extra = struct.unpack_from("<2H", data, info.header_offset + 26)
    data[info.header_offset + 30 + name + extra + info.compress_size // 2] ^= 1
    (workspace.store / "damaged.mar").write_bytes(data)
    server = start("damaged", wait=False)
    with pytest.raises(NotReady):
        server.wait(["damaged"], seconds=8)
    written = (server.folder / "logs" / "ts_log.log").read_text(errors="replace")
    assert "invalid entry CRC" in written
    server.stop()
    (workspace.store / "damaged.mar").unlink()


def test_a_changed_member_never_becomes_ready(start: Start, workspace: Workspace, centerface_mar: Path) -> None:
    """One word of a setting, in an archive whose checksums are right again."""
    changed = workspace.store / "changed.mar"
    with zipfile.ZipFile(centerface_mar) as good, zipfile.ZipFile(changed, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name).replace(b"score_threshold: 0.5", b"score_threshold: 0.1"))
    server = start("changed", wait=False)
    with pytest.raises(NotReady, match=r"ArtifactError: detector\.yaml has sha256 \w{64}, artifacts\.json says"):
        server.wait(["changed"], seconds=10)
    server.stop()
    changed.unlink()


class _Malicious:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._folder),)


def test_weights_run_no_code(tmp_path: Path) -> None:
    proof, path = tmp_path / "it-ran", tmp_path / "weights.pt"
    torch.save({"conv1.weight": torch.zeros(1), "extra": _Malicious(proof)}, path)
    with pytest.raises(ArtifactError, match=r"holds posix\.mkdir beside tensors; only plain tensors are loaded"):
        checkpoint.from_file(path)
    assert not proof.exists()
    # It is no harmless file.
    torch.load(path, weights_only=False)
    assert proof.is_dir()


#: No word that any log has by itself.
_MARK = "GLOXINIA"


def _marked() -> bytes:
    """A PNG with the mark in a comment of its own."""
    data = io.BytesIO()
    with Image.open(HOPPER.path) as picture:
        picture.convert("RGB").save(data, "PNG")
    content = data.getvalue()
    return content[:33] + chunk(b"tEXt", f"Comment\0{_MARK * 20}".encode()) + content[33:]


def test_logs_hold_no_token_and_nothing_of_an_image(start: Start, centerface_mar: Path) -> None:
    """After requests of every form and outcome; Base64 spells the mark in three ways, by where it begins."""
    server = start("centerface")
    address, image = f"{server.inference}/predictions/centerface", _marked()
    tokens = {server.key(api) for api in ("inference", "management", "API")}
    text = base64.b64encode(image).decode()
    broken = f'{{"image": "{text}", "text": "{_MARK}"'
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    requests: list[tuple[int, dict[str, Any]]] = [
        (200, {"content": image}),
        (200, {"files": {"image": image}}),
        (200, {"json": {"image": text}}),
        (400, {"content": image[:5000]}),
        (400, {"content": _MARK.encode() * 50}),
        (400, {"json": {"image": f"%{_MARK}{text}"}}),
        (400, {"content": broken.encode(), "headers": {"Content-Type": "application/json"}}),
        (500, {"content": image, "headers": form}),
        (500, {"content": _MARK.encode() * 9 + b"%zz=x", "headers": form}),
        (400, {"content": b"x=" + _MARK.encode() * 9 + b"\n%4", "headers": form}),
        (400, {"content": image, "headers": {"Content-Type": "multipart/form-data; boundary=x"}}),
        (413, {"content": image + bytes(30_000_000)}),
        (413, {"content": image + bytes(22_000_000)}),
    ]
    for status, request in requests:
        headers = server.headers() | request.get("headers", {})
        answer = httpx.post(address, timeout=60, **{**request, "headers": headers})
        assert answer.status_code == status, answer.text
    assert len(predict(server, server.key(), image)["faces"]) == 1
    assert predict(server, server.key(), image[:5000])["error"]["code"] == 400
    httpx.post(address, content=image, headers=bearer("not-a-token"))
    with pytest.raises(grpc.RpcError):
        predict(server, "not-a-token", image)
    httpx.get(f"{server.management}/token?type=inference", headers=server.headers("API"))
    tokens |= {server.key(), "not-a-token"}
    server.stop()
    files = [path for path in [*(server.folder / "logs").rglob("*"), server.folder / "console.log"] if path.is_file()]
    written = {path.name: path.read_bytes() for path in files}
    assert b"POST /predictions/centerface" in written["access_log.log"]
    assert b'"event": "request"' in written["model_log.log"]
    spelled = {base64.b64encode(b"\0" * shift + _MARK.encode() * 3)[4:24] for shift in range(3)}
    for secret in (*(token.encode() for token in tokens), _MARK.encode(), *spelled, image[:8], image[-300:-280]):
        for name, content in written.items():
            assert secret not in content, (name, secret, content[max(0, content.find(secret) - 300) :][:600])
