"""gRPC's statuses as the tree's errors, and stubs that are missing. Calls are made in tests/serving/test_client.py."""

from __future__ import annotations

import json
import subprocess
import sys

import grpc
import pytest
from grpc import StatusCode

from clients import Answer, BadAnswer, Client, Retry, UsageError, errors
from clients.errors import ClientError
from clients.grpc import translated
from clients.proto.inference_pb2 import PredictionResponse
from tests.clients.fakes import fake_grpc
from tests.clients.test_answer import TEXT

NO_WORKER = 'Model "m" has no worker to serve inference request.'


class FakeRpcError(grpc.RpcError):  # type: ignore[misc]
    """What a call ends with."""

    def __init__(self, code: StatusCode, details: str | None) -> None:
        self._said = code, details

    def code(self) -> StatusCode:
        return self._said[0]

    def details(self) -> str | None:
        return self._said[1]


@pytest.mark.parametrize(
    ("code", "details", "kind", "status", "message"),
    [
        ("PERMISSION_DENIED", "Token Authorization failed.", errors.NotAuthorised, 400, "Token Authorization failed."),
        (
            "INTERNAL",
            "Model not found: m\norg.pytorch.serve.archive.model.ModelNotFoundException",
            errors.NotFound,
            404,
            "Model not found: m",
        ),
        (
            "INTERNAL",
            "No version 9\norg.pytorch.serve.archive.model.ModelVersionNotFoundException",
            errors.NotFound,
            404,
            "No version 9",
        ),
        ("INTERNAL", f"{NO_WORKER}\nInternalServerException.()", errors.QueueFull, 503, NO_WORKER),
        (
            "INTERNAL",
            "Worker died.\norg.pytorch.serve.http.InternalServerException",
            errors.WorkerDied,
            500,
            "Worker died.",
        ),
        ("INTERNAL", "odd", errors.ServerFault, 500, "odd"),
        (
            "UNAVAILABLE",
            "Prediction failed\norg.pytorch.serve.http.InternalServerException",
            errors.ServerFault,
            503,
            "Prediction failed",
        ),
        ("UNAVAILABLE", "Connection refused", errors.Unreachable, None, "a:1 cannot be reached: Connection refused"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", errors.Unreachable, None, "a:1 gave no answer in time"),
        ("CANCELLED", "Received RST_STREAM with error code 8", errors.TooLarge, 413, "over a limit of bytes: Received"),
        ("CANCELLED", None, errors.Unreachable, None, "a:1 or a proxy before it gave the call up: CANCELLED"),
        ("CANCELLED", "gone", errors.Unreachable, None, "a:1 or a proxy before it gave the call up: gone"),
        ("RESOURCE_EXHAUSTED", "larger than max", errors.TooLarge, 413, "over a limit of bytes: larger than max"),
        ("UNIMPLEMENTED", "", errors.NotFound, 404, "a:1 does not offer TorchServe's inference service"),
        ("INVALID_ARGUMENT", "bad", errors.InvalidRequest, 400, "bad"),
        ("NOT_FOUND", "gone", errors.NotFound, 404, "gone"),
        ("UNKNOWN", None, errors.ServerFault, 500, "UNKNOWN"),
    ],
)
def test_statuses(code: str, details: str | None, kind: type[ClientError], status: int | None, message: str) -> None:
    error = translated(FakeRpcError(StatusCode[code], details), "a:1")
    assert (type(error), error.status) == (kind, status)
    assert error.message.startswith(message) or message in error.message


def test_missing_stubs_name_the_command_that_makes_them() -> None:
    program = (
        "import sys; sys.modules['clients.proto.inference_pb2'] = None\n"
        "from clients import Client, UsageError\n"
        "try: Client('grpc://127.0.0.1:1')\n"
        "except UsageError as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "clients.proto.inference_pb2 is missing" in done.stdout
    assert "python -m pip install -e '.[client]'" in done.stdout


def test_roots_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots that can are in tests/deploy/test_nginx.py."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/roots.pem")
    with pytest.raises(UsageError, match=r"SSL_CERT_FILE /nowhere/roots\.pem cannot be read: No such file"):
        Client("grpcs://localhost:1")


def test_bytes_that_are_no_message() -> None:
    """gRPC gives None for them."""
    with (
        fake_grpc(lambda request, context: b"\xff\xff") as address,
        Client(address, retry=Retry(attempts=1)) as client,
    ):
        with pytest.raises(BadAnswer, match="bytes that are no PredictionResponse"):
            client.detect(b"image")
        assert [type(each) for each in client.detect_each([b"image"] * 2)] == [BadAnswer] * 2


def test_an_answer_over_the_limit() -> None:
    reply = PredictionResponse(prediction=bytes(100_000)).SerializeToString()
    with (
        fake_grpc(lambda request, context: reply) as address,
        Client(address, retry=Retry(attempts=1), max_message_bytes=50_000) as client,
        pytest.raises(errors.TooLarge, match="over a limit of bytes"),
    ):
        client.detect(b"image")


def test_a_call_that_is_given_up_is_sent_again() -> None:
    calls = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        calls.append(request)
        if len(calls) < 3:
            context.abort(StatusCode.CANCELLED, "")
        return PredictionResponse(prediction=TEXT.encode()).SerializeToString()  # type: ignore[no-any-return]

    with fake_grpc(answer) as address, Client(address, retry=Retry(base_s=0.01)) as client:
        assert client.detect(b"image") == Answer.parse(json.loads(TEXT))
        assert client.retries == 2


def test_what_grpc_counts_to() -> None:
    with pytest.raises(UsageError, match="max_message_bytes is 2147483648: gRPC has 2147483647 at most"):
        Client("grpc://127.0.0.1:1", max_message_bytes=1 << 31)
    Client("grpc://127.0.0.1:1", max_message_bytes=(1 << 31) - 1).close()
