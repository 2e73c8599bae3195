"""The client: an image in, its faces out, whatever lies between.

AsyncClient is the one implementation; Client has the same surface for threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import os
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from clients import wire
from clients.answer import Answer
from clients.errors import ClientError, NotAuthorised, TooLarge, UsageError
from clients.retry import Retry
from clients.token import Token
from clients.transport import Transport, connector
from clients.wire import Option, Picture, Request

T = TypeVar("T")
ADDRESS = "http://127.0.0.1:8080"
MANAGEMENT = "http://127.0.0.1:8081"
_RETRY = Retry()
#: Another program may renew the token between this one's renewal and its next call.
_RENEWALS = 3
#: Images that ``detect_each`` holds for each of the calls that run together, so that a slow one, whose answer is
#: waited for, does not idle the others.
_AHEAD = 2
_CLOSED = "the client is closed"


class AsyncClient:
    """A client for asyncio; a context manager. Its calls may run together, in the event loop of the first.

    A call that fails with a retryable error is sent again, as ``retry`` says. While it waits it keeps its place among
    the ``concurrency`` calls, so that a client whose server has a full queue sends less.

    Args:
        address: ``http://HOST:PORT`` of the inference API, or ``grpc://HOST:PORT`` of the gRPC one.
        model: its name.
        version: of the model; None is the server's default.
        token: the token itself; a Path to TorchServe's ``key_file.json``, out of which a refused token is renewed; or
            None: $MOGFACE_TOKEN, else ``./key_file.json`` where there is one, else none is sent.
        management: address of the management API, which renews tokens.
        timeout_s: of each attempt, s; the server answers within its ``responseTimeout`` of 120.
        retry: when a request is sent again.
        concurrency: requests under way at once; the others wait here, in order.
        max_message_bytes: of an image; the server's ``max_request_size``. Over gRPC also of an answer.

    Attributes:
        retries: how often requests were sent again, so far.

    Raises:
        UsageError: an argument that cannot be right, a token file that cannot be read, gRPC stubs that are missing.
    """

    def __init__(
        self,
        address: str = ADDRESS,
        model: str = "centerface",
        *,
        version: str | None = None,
        token: str | Path | None = None,
        management: str = MANAGEMENT,
        timeout_s: float = 130.0,
        retry: Retry = _RETRY,
        concurrency: int = 8,
        max_message_bytes: int = 30_000_000,
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
        self._ahead = _AHEAD * concurrency
        self._closed = False
        self.retries = 0

    async def detect(self, image: Picture, **options: Option) -> Answer:
        """The faces of one image.

        Args:
            image: see :func:`clients.wire.encode`.
            options: as the server knows them, by name: ``score_threshold=0.5, crops=True``.

        Raises:
            ClientError: see the tree in :mod:`clients.errors`.
        """
        return await self._answered(image, self._asked(options), wire.answer)

    async def picture(self, image: Picture, **options: Option) -> bytes:
        """The image with its faces drawn on: PNG for PNG, GIF, BMP and TIFF, else JPEG. Otherwise as :meth:`detect`."""
        if "output" in options:
            raise UsageError("option output: picture() sets it itself")
        return await self._answered(image, wire.options({**options, "output": "image"}), wire.picture)

    def detect_each(
        self, images: Iterable[Picture] | AsyncIterable[Picture], **options: Option
    ) -> AsyncIterator[Answer | ClientError]:
        """Each image's answer or error, in the images' order; ``concurrency`` of them are under way at once.

        Args:
            images: taken as they are needed, at most twice ``concurrency`` before the answer that is waited for.
            options: of all of them; as for :meth:`detect`.

        Raises:
            UsageError: the options cannot be sent. An image's own error takes its answer's place.
        """
        return self._each(images, self._asked(options))

    def _asked(self, given: Mapping[str, Option]) -> dict[str, str]:
        if self._closed:
            raise UsageError(_CLOSED)
        options = wire.options(given)
        if options.get("output", "json") != "json":
            raise UsageError(f"option output is {options['output']!r}: faces come as json; picture() gives the picture")
        return options

    async def _each(
        self, images: Iterable[Picture] | AsyncIterable[Picture], options: dict[str, str]
    ) -> AsyncIterator[Answer | ClientError]:
        pending: deque[asyncio.Task[Answer | ClientError]] = deque()
        try:
            async for image in _iterated(images):
                pending.append(asyncio.create_task(self._outcome(image, options)))
                # One turn of the loop starts the call before a slow iterable is asked for the next image.
                await asyncio.sleep(0)
                while pending and (len(pending) >= self._ahead or pending[0].done()):
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _outcome(self, image: Picture, options: dict[str, str]) -> Answer | ClientError:
        try:
            return await self._answered(image, options, wire.answer)
        except ClientError as error:
            return error

    async def _answered(self, image: Picture, options: dict[str, str], read: Callable[[int, bytes], T]) -> T:
        """Send an image until there is an answer or no use in sending it again."""
        async with self._slots:
            # Files are read and pixels compressed beside the loop.
            data = image if isinstance(image, bytes) else await asyncio.to_thread(wire.encode, image, self._limit)
            if len(data) > self._limit:
                raise TooLarge(f"the image has {len(data):,} bytes: at most {self._limit:,} are sent in one request")
            request = Request(data, options)
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

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client:
    """A client for threads, any number of which may share it; a context manager. Arguments as for AsyncClient."""

    def __init__(
        self,
        address: str = ADDRESS,
        model: str = "centerface",
        *,
        version: str | None = None,
        token: str | Path | None = None,
        management: str = MANAGEMENT,
        timeout_s: float = 130.0,
        retry: Retry = _RETRY,
        concurrency: int = 8,
        max_message_bytes: int = 30_000_000,
    ) -> None:
        self._client = AsyncClient(
            address,
            model,
            version=version,
            token=token,
            management=management,
            timeout_s=timeout_s,
            retry=retry,
            concurrency=concurrency,
            max_message_bytes=max_message_bytes,
        )
        self._loop = _shared_loop()
        self._process = os.getpid()

    @property
    def retries(self) -> int:
        """How often requests were sent again, so far."""
        return self._client.retries

    def detect(self, image: Picture, **options: Option) -> Answer:
        """As :meth:`AsyncClient.detect`."""
        return self._result(self._submitted(self._client.detect(image, **options)))

    def picture(self, image: Picture, **options: Option) -> bytes:
        """As :meth:`AsyncClient.picture`."""
        return self._result(self._submitted(self._client.picture(image, **options)))

    def detect_each(self, images: Iterable[Picture], **options: Option) -> Iterator[Answer | ClientError]:
        """As :meth:`AsyncClient.detect_each`; ``images`` is read in the caller's thread."""
        return self._each(images, self._client._asked(options))

    def _each(self, images: Iterable[Picture], options: dict[str, str]) -> Iterator[Answer | ClientError]:
        pending: deque[concurrent.futures.Future[Answer | ClientError]] = deque()
        try:
            for image in images:
                pending.append(self._submitted(self._client._outcome(image, options)))
                while pending and (len(pending) >= self._client._ahead or pending[0].done()):
                    yield self._result(pending.popleft())
            while pending:
                yield self._result(pending.popleft())
        finally:
            for future in pending:
                future.cancel()

    def _submitted(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if os.getpid() != self._process:
            call.close()
            raise UsageError("this Client was made before the process forked: make one in each process")
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    @staticmethod
    def _result(future: concurrent.futures.Future[T]) -> T:
        try:
            return future.result()
        finally:
            # Where the caller was interrupted, nobody waits for the answer.
            future.cancel()

    def close(self) -> None:
        """Close the connections; calls under way end in an error."""
        self._result(self._submitted(self._client.close()))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@functools.cache
def _shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all of a process's Clients: gRPC's poller does not get on with several.

    Its thread is a daemon: a client that nobody closed does not keep the program from ending.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mogface-client", daemon=True).start()
    return loop


# A forked process has no such thread: its clients need a loop of their own.
os.register_at_fork(after_in_child=_shared_loop.cache_clear)


async def _iterated(images: Iterable[Picture] | AsyncIterable[Picture]) -> AsyncIterator[Picture]:
    if isinstance(images, AsyncIterable):
        async for image in images:
            yield image
    else:
        for image in images:
            yield image
