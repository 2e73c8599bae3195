"""One request over REST or gRPC on gevent's sockets, which a load of thousands of users needs.

What is sent and how an answer is read is the client's own code; only the connection is another.
"""

from __future__ import annotations

from http.client import HTTPException
from typing import Protocol
from urllib.parse import urlsplit

import grpc
from geventhttpclient import HTTPClient
from grpc.experimental import gevent

from clients import wire
from clients.answer import Answer
from clients.errors import Unreachable, UsageError
from clients.grpc import translated
from clients.proto.inference_pb2 import PredictionsRequest
from clients.proto.inference_pb2_grpc import InferenceAPIsServiceStub
from load_tests.target import Target

#: What config.properties ships as max_request_size and max_response_size.
_LARGEST_MESSAGE = 30_000_000


class Transport(Protocol):
    """A connection to one server.

    Attributes:
        name: of the protocol, for reports.
    """

    name: str

    def detect(self, image: bytes) -> Answer:
        """One request.

        Raises:
            ClientError: whatever it was not answered for.
        """

    def close(self) -> None:
        """Close the connection."""


def connect(target: Target) -> Transport:
    """By the address's scheme.

    Raises:
        UsageError: another scheme than http or grpc.
    """
    scheme = urlsplit(target.address).scheme
    if scheme == "http":
        return Rest(target)
    if scheme == "grpc":
        return Grpc(target)
    raise UsageError(f"address {target.address!r}: expected http://host:port or grpc://host:port")


class Rest:
    """HTTP/1.1, connections kept."""

    name = "REST"

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = HTTPClient.from_url(
            target.address, concurrency=1000, connection_timeout=30, network_timeout=target.timeout_s
        )
        self._authorization = {"Authorization": f"Bearer {target.token}"} if target.token else {}

    def detect(self, image: bytes) -> Answer:
        """As Transport."""
        request = wire.Request(image, self._target.options)
        try:
            response = self._http.post(
                f"/predictions/{self._target.model}", body=request.image, headers=request.headers | self._authorization
            )
            status, body = response.status_code, bytes(response.read())
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{self._target.address}: {error}") from error
        return wire.answer(status, body)

    def close(self) -> None:
        """As Transport."""
        self._http.close()


class Grpc:
    """One HTTP/2 connection."""

    name = "gRPC"

    def __init__(self, target: Target) -> None:
        gevent.init_gevent()
        self._target = target
        sizes = [(f"grpc.max_{way}_message_length", _LARGEST_MESSAGE) for way in ("send", "receive")]
        self._channel = grpc.insecure_channel(urlsplit(target.address).netloc, options=sizes)
        self._predict = InferenceAPIsServiceStub(self._channel).Predictions
        self._metadata = [("authorization", f"Bearer {target.token}")] if target.token else []

    def detect(self, image: bytes) -> Answer:
        """As Transport."""
        request = wire.Request(image, self._target.options)
        message = PredictionsRequest(model_name=self._target.model, input=request.fields)
        try:
            reply = self._predict(message, timeout=self._target.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise translated(error, self._target.address) from error
        return wire.answer(200, reply.prediction)

    def close(self) -> None:
        """As Transport."""
        self._channel.close()
