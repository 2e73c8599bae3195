"""What nginx lets nobody do: without a token, by another path, method or call, without TLS."""

from __future__ import annotations

import json
import socket
import ssl

import httpx
import pytest

from archive.server import Server
from clients.proto import inference_pb2
from tests.deploy.nginx import JPEG, SERVICE, Nginx, error_of, predict, refused
from tests.serving.conftest import worker_pids


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
