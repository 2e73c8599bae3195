"""The gRPC transport: one channel, one call."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import grpc
import grpc.aio
from grpc import StatusCode

from clients import wire
from clients.errors import BadAnswer, ClientError, NotFound, TooLarge, Unreachable, UsageError
from clients.wire import Request

try:
    from clients.proto.inference_pb2 import PredictionsRequest
    from clients.proto.inference_pb2_grpc import InferenceAPIsServiceStub
except ModuleNotFoundError as missing:
    raise UsageError(
        f"{missing.name} is missing: the gRPC stubs are generated when this package is installed. "
        "In a checkout: python -m pip install -e '.[client]'"
    ) from missing

# Retry says when a request is sent again; gRPC's own back-off between connections grows to two minutes.
_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 2000))
#: TorchServe's failures have its exception in the details' last line: ``org.pytorch.serve.http.BadRequestException``,
#: ``InternalServerException.()``.
_DETAILS = re.compile(r"(?s)(.*)\n[\w.]*?(\w+Exception)(?:\.\(\))?\s*")
#: Of HTTP/2, in the details of a call whose stream the other side ended.
_RESET = "RST_STREAM"
_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.NOT_FOUND: 404,
    StatusCode.UNAVAILABLE: 503,
}


class Grpc:
    """Calls over one HTTP/2 connection. To be made and used in one event loop.

    Args:
        target: ``HOST:PORT`` of the gRPC inference API.
        model: its name.
        version: of the model; None is the server's default.
        timeout_s: the call's deadline, which the server is told too.
        max_message_bytes: of a request and of an answer; the server's is ``max_request_size``.
        credentials: for TLS; None sends in the clear.
    """

    def __init__(
        self,
        target: str,
        model: str,
        version: str | None,
        timeout_s: float,
        max_message_bytes: int,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._target = target
        self._model = model
        self._version = version or ""
        self._timeout_s = timeout_s
        # gRPC's own limit of 4 MiB is less than a photograph has.
        sizes = [(f"grpc.max_{way}_message_length", max_message_bytes) for way in ("send", "receive")]
        options = [*sizes, *_RECONNECT]
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        self._predict = InferenceAPIsServiceStub(self._channel).Predictions

    async def send(self, request: Request, token: str | None) -> tuple[int, bytes]:
        """200 and the body of the reply, which alone says how the request ended: TorchServe drops the status.

        Raises:
            ClientError: TorchServe itself refused the call or failed, or cannot be reached.
            BadAnswer: what came is no message of TorchServe's.
        """
        message = PredictionsRequest(model_name=self._model, model_version=self._version, input=request.fields)
        metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        try:
            reply = await self._predict(message, timeout=self._timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise translated(error, self._target) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # Nobody cancelled the caller: a channel that is closed cancels its calls.
            raise Unreachable(f"the channel to {self._target} was closed") from error
        if reply is None:
            # gRPC logs why it could not be read, and goes on.
            raise BadAnswer(f"{self._target} answered with bytes that are no PredictionResponse: is it TorchServe?")
        return 200, reply.prediction

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def tls() -> grpc.ChannelCredentials:
    """Credentials that trust the roots in the file that $SSL_CERT_FILE names, as REST does; else gRPC's own roots.

    Raises:
        UsageError: the file cannot be read.
    """
    named = os.environ.get("SSL_CERT_FILE")
    try:
        roots = Path(named).read_bytes() if named else None
    except OSError as error:
        raise UsageError(f"SSL_CERT_FILE {named} cannot be read: {error.strerror or error}") from error
    return grpc.ssl_channel_credentials(roots)


def translated(error: grpc.RpcError, address: str) -> ClientError:
    """The exception for a call that ended without OK; also for a synchronous call's.

    Args:
        error: of the call.
        address: that was asked, for the message.
    """
    code, details = error.code(), error.details() or ""
    match = _DETAILS.fullmatch(details)
    text, type = match.groups() if match else (details, "")
    match code:
        case StatusCode.DEADLINE_EXCEEDED:
            return Unreachable(f"{address} gave no answer in time")
        case StatusCode.UNAVAILABLE if not type:
            return Unreachable(f"{address} cannot be reached: {text}: is the server running there?")
        case StatusCode.PERMISSION_DENIED | StatusCode.UNAUTHENTICATED:
            return wire.failure(None, "InvalidKeyException", text)
        case StatusCode.UNIMPLEMENTED:
            return NotFound(f"{address} does not offer TorchServe's inference service: is the port right?")
        case StatusCode.RESOURCE_EXHAUSTED if not type:
            return TooLarge(f"the request or its answer is over a limit of bytes: {text or code.name}")
        case StatusCode.CANCELLED if _RESET in text:
            # So does TorchServe where a message is too large, without a word.
            return TooLarge(f"the request or its answer is over a limit of bytes: {text}")
        case StatusCode.CANCELLED if not type:
            # Anything on the way may end a call, as a proxy does that starts anew.
            return Unreachable(f"{address} or a proxy before it gave the call up: {text or code.name}")
        case _:
            return wire.failure(_STATUS.get(code), type, text or code.name)
