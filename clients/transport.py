"""What a transport is, and which one an address means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from clients import http, wire
from clients.errors import UsageError
from clients.rest import Rest
from clients.wire import Request

#: gRPC counts in 32 bits.
_GRPC_LARGEST = 2**31 - 1


class Transport(Protocol):
    """One way to the server."""

    async def send(self, request: Request, token: str | None) -> tuple[int, bytes]:
        """Status of HTTP and body of the reply; 200 where the transport has no status and the body says it.

        Raises:
            ClientError: there is no reply, or the transport itself says more.
        """

    async def close(self) -> None:
        """Close the connections; calls under way end in a ClientError."""


def connector(
    address: str, model: str, version: str | None, timeout_s: float, concurrency: int, max_message_bytes: int
) -> Callable[[], Transport]:
    """What makes the transport of an address, in the event loop that it is to be used in. Arguments as AsyncClient's.

    Raises:
        UsageError: no address of a kind that is known, names that cannot be sent, gRPC stubs that are missing, or
            roots that cannot be read.
    """
    wire.path("predictions", model, version or "")
    try:
        parts = urlsplit(address)
        usable = bool(parts.hostname) and (parts.port is not None or parts.scheme in ("http", "https"))
    except ValueError as error:
        raise UsageError(f"address {address!r}: {error}") from error
    if usable and parts.scheme in ("http", "https"):
        http.require(address)
        return lambda: Rest(address, model, version, timeout_s, concurrency, max_message_bytes)
    if usable and parts.scheme in ("grpc", "grpcs") and parts.path in ("", "/"):
        if max_message_bytes > _GRPC_LARGEST:
            raise UsageError(f"max_message_bytes is {max_message_bytes}: gRPC has {_GRPC_LARGEST} at most")
        # It takes a moment to import, which users of REST need not wait for.
        from clients.grpc import Grpc, tls

        credentials = tls() if parts.scheme == "grpcs" else None
        return lambda: Grpc(parts.netloc, model, version, timeout_s, max_message_bytes, credentials)
    raise UsageError(
        f"address {address!r}: expected http://HOST:PORT, https://HOST, grpc://HOST:PORT or grpcs://HOST:PORT"
    )
