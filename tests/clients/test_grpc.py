"""gRPC's statuses as the tree's errors, and stubs that are missing. Calls are made in tests/serving/test_client.py."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from grpc import StatusCode

from clients import Client, UsageError, errors
from clients.errors import ClientError
from clients.grpc import translated

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
        ("CANCELLED", "RST_STREAM", errors.TooLarge, 413, "over a limit of bytes: RST_STREAM"),
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
