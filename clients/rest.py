"""The REST transport: one connection pool, one call."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import httpx

from clients.errors import Unreachable, UsageError
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
    """

    def __init__(self, address: str, model: str, version: str | None, timeout_s: float, concurrency: int) -> None:
        self._address = address
        self._timeout_s = timeout_s
        parts = ["predictions", model, *([version] if version else [])]
        self._path = "/" + "/".join(quote(part, safe="") for part in parts)
        self._http = httpx.AsyncClient(
            base_url=address,
            # The whole call has one deadline, below; httpx would time each read by itself.
            timeout=None,  # noqa: S113
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    async def send(self, request: Request, token: str | None) -> tuple[int, bytes]:
        """Status and body of the reply.

        Raises:
            Unreachable: no connection, or none that lasted until the reply, or no reply in time.
        """
        headers = request.headers | authorization(token)
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._http.post(self._path, content=request.image, headers=headers)
        except TimeoutError as error:
            raise Unreachable(f"{self._address} gave no answer within {self._timeout_s:g} s") from error
        except httpx.LocalProtocolError as error:
            raise UsageError(f"the request cannot be sent over HTTP: {error}") from error
        except httpx.HTTPError as error:
            raise Unreachable(
                f"{self._address} cannot be reached: {type(error).__name__} {error}: is the server running there?"
            ) from error
        return reply.status_code, reply.content

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
