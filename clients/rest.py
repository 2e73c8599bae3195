"""The REST transport: one connection pool, one call."""

from __future__ import annotations

import asyncio

import httpx

from clients import http, wire
from clients.token import authorization
from clients.wire import Request


class Rest:
    """Calls over HTTP/1.1; connections are kept. To be made and used in one event loop.

    Args:
        address: of the inference API, ``http://HOST:PORT``.
        model: its name.
        version: of the model; None is the server's default.
        timeout_s: from the call to the answer's last byte.
        concurrency: connections at most.
        max_message_bytes: of an answer.

    Raises:
        UsageError: a name that no path holds, or an environment whose proxies or certificates cannot be used.
    """

    def __init__(
        self,
        address: str,
        model: str,
        version: str | None,
        timeout_s: float,
        concurrency: int,
        max_message_bytes: int,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._limit = max_message_bytes
        self._path = wire.path("predictions", model, *([version] if version else []))
        with http.set_up():
            self._http = httpx.AsyncClient(
                base_url=address,
                headers=http.HEADERS,
                # The whole call has one deadline, below; httpx would time each read by itself.
                timeout=None,  # noqa: S113
                limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            )

    async def send(self, request: Request, token: str | None) -> tuple[int, bytes]:
        """Status and body of the reply.

        Raises:
            Unreachable: no connection, or none that lasted until the reply, or no reply in time.
            TooLarge: the answer has more than ``max_message_bytes``.
            BadAnswer: its packing is not of HTTP.
        """
        headers = request.headers | authorization(token)
        with http.translated(self._address, self._timeout_s):
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream("POST", self._path, content=request.image, headers=headers) as reply,
            ):
                return reply.status_code, await http.aread(reply, self._limit)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
