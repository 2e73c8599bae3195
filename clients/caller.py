"""One image to the server, until there is an answer or no use in sending it again."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from clients import wire
from clients.answer import Answer
from clients.errors import ClientError, ClientFault, NotAuthorised, TooLarge, UsageError, shown
from clients.retry import Retry
from clients.token import Token
from clients.transport import Transport, connector
from clients.wire import Picture, Request

T = TypeVar("T")
#: Another program may renew the token between this one's renewal and its next call.
_RENEWALS = 3
#: Images that a stream of them holds for each of the calls that run together, so that a slow one, whose answer is
#: waited for, does not idle the others.
_AHEAD = 2
_CLOSED = "the client is closed"


class Caller:
    """What AsyncClient and Client have in common; their arguments. Its calls run in the event loop of the first.

    Attributes:
        ahead: images that a stream of them holds at most.
        retries: how often requests were sent again, so far.

    Raises:
        UsageError: an argument that cannot be right, a token file that cannot be read, gRPC stubs that are missing.
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        version: str | None,
        token: str | Path | None,
        management: str,
        timeout_s: float,
        retry: Retry,
        concurrency: int,
        max_message_bytes: int,
    ) -> None:
        for name, value in {"concurrency": concurrency, "max_message_bytes": max_message_bytes}.items():
            if value < 1:
                raise UsageError(f"{name} is {value}: expected 1 or more")
        if not 0 < timeout_s < float("inf"):
            raise UsageError(f"timeout_s is {timeout_s}: expected seconds, over 0")
        if not model:
            raise UsageError("model is empty: expected a model's name, such as centerface")
        self._connect = connector(address, model, version, timeout_s, concurrency, max_message_bytes)
        self._transport: Transport | None = None
        self._token = Token(token, management)
        self._retry = retry
        self._limit = max_message_bytes
        self._slots = asyncio.Semaphore(concurrency)
        self._closed = False
        self.ahead = _AHEAD * concurrency
        self.retries = 0

    def options(self, given: Mapping[str, object]) -> dict[str, str]:
        """The options of a detection, as they are sent.

        Raises:
            UsageError: they cannot be, or the client is closed.
        """
        if self._closed:
            raise UsageError(_CLOSED)
        options = wire.options(given)
        if options.get("output", "json") != "json":
            raise UsageError(f"option output is {options['output']!r}: faces come as json; picture() gives the picture")
        return options

    async def outcome(self, image: Picture, options: dict[str, str]) -> Answer | ClientError:
        """An image's answer, or its error, whatever it is: one image never ends a stream of them."""
        try:
            return await self.answered(image, options, wire.answer)
        except ClientError as error:
            return error

    async def answered(self, image: Picture, options: dict[str, str], read: Callable[[int, bytes], T]) -> T:
        """Send an image until there is an answer or no use in sending it again.

        Args:
            image: see :func:`clients.wire.encode`.
            options: as they are sent.
            read: makes the answer of a reply's status and body.

        Raises:
            ClientError: no other exception; ClientFault for one that is not expected.
        """
        try:
            async with self._slots:
                return await self._tried(await self._request(image, options), read)
        except ClientError:
            raise
        except Exception as error:
            if self._closed:
                raise UsageError(_CLOSED) from error
            raise ClientFault(f"unexpected {type(error).__name__}: {shown(error)}") from error

    async def _request(self, image: Picture, options: dict[str, str]) -> Request:
        # Files are read and pixels compressed beside the loop.
        data = image if isinstance(image, bytes) else await asyncio.to_thread(wire.encode, image, self._limit)
        if len(data) > self._limit:
            raise TooLarge(f"the image has {len(data):,} bytes: at most {self._limit:,} are sent in one request")
        return Request(data, options)

    async def _tried(self, request: Request, read: Callable[[int, bytes], T]) -> T:
        started = time.monotonic()
        for attempt in itertools.count(1):
            try:
                return await self._authorised(request, read)
            except ClientError as error:
                if self._closed and error.retryable:
                    raise UsageError(_CLOSED) from error
                delay = self._retry.delay(error, attempt, time.monotonic() - started, random.random())
                if delay is None:
                    raise
            self.retries += 1
            await asyncio.sleep(delay)
        raise AssertionError

    async def _authorised(self, request: Request, read: Callable[[int, bytes], T]) -> T:
        """One attempt; a refused token is renewed in it."""
        if self._closed:
            raise UsageError(_CLOSED)
        # Made here, where the event loop runs that it belongs to.
        transport = self._transport = self._transport or self._connect()
        for _ in range(_RENEWALS):
            token = self._token.value
            try:
                return read(*await transport.send(request, token))
            except NotAuthorised:
                if await asyncio.to_thread(self._token.renew, token) is None:
                    raise
        return read(*await transport.send(request, self._token.value))

    async def close(self) -> None:
        """Close the connections; calls under way end in an error."""
        self._closed = True
        if self._transport:
            await self._transport.close()
