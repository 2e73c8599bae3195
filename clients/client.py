"""The client: an image in, its faces out, whatever lies between.

AsyncClient and Client are two surfaces, for asyncio and for threads, of what ``clients.caller`` does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from clients import loop, wire
from clients.answer import Answer
from clients.caller import Caller
from clients.errors import ClientError, UsageError
from clients.retry import Retry
from clients.wire import Option, Picture

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., object])
ADDRESS = "http://127.0.0.1:8080"
MANAGEMENT = "http://127.0.0.1:8081"
_RETRY = Retry()


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
        max_message_bytes: of an image, the server's ``max_request_size``; and of an answer.

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
        self._caller = Caller(
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

    @property
    def retries(self) -> int:
        """How often requests were sent again, so far."""
        return self._caller.retries

    async def detect(self, image: Picture, **options: Option) -> Answer:
        """The faces of one image.

        Args:
            image: an encoded picture's bytes, the Path of its file, a PIL image, or an array [H, W, 3] uint8 RGB.
            options: the server's, of which it has its own values where none are given:

                score_threshold: 0..1; scores are over it.
                nms_threshold: 0..1; boxes that overlap a stronger one by more go.
                max_faces: 1..5000, cut after ``order``.
                order: ``"score"`` or ``"size"``, falling.
                min_face_size: px; faces whose box has less than its square as area are left out.
                canvas: ``"auto"``, ``"native"`` or one of the archive's, such as ``"480x640"``: height x width, px,
                    that the network runs at.
                landmarks: whether each face has its five points.
                crops: whether each face comes as a 112x112 JPEG too, aligned.

        Raises:
            ClientError: see the tree in :mod:`clients.errors`; no other exception.
        """
        return await self._caller.answered(image, self._caller.options(options), wire.answer)

    async def picture(self, image: Picture, **options: Option) -> bytes:
        """The image with its faces drawn on: PNG for PNG, GIF, BMP and TIFF, else JPEG. Otherwise as :meth:`detect`."""
        return await self._caller.answered(image, _picture(options), wire.picture)

    def detect_each(
        self, images: Iterable[Picture] | AsyncIterable[Picture], **options: Option
    ) -> AsyncIterator[Answer | ClientError]:
        """Each image's answer or error, in the images' order; ``concurrency`` of them are under way at once.

        Args:
            images: taken as they are needed, at most twice ``concurrency`` before the answer that is waited for.
            options: of all of them; as for :meth:`detect`.

        Raises:
            UsageError: the options cannot be sent. An image's own error, whatever it is, takes its answer's place.
        """
        return self._each(images, self._caller.options(options))

    async def _each(
        self, images: Iterable[Picture] | AsyncIterable[Picture], options: dict[str, str]
    ) -> AsyncIterator[Answer | ClientError]:
        pending: deque[asyncio.Task[Answer | ClientError]] = deque()
        try:
            async for image in _iterated(images):
                pending.append(asyncio.create_task(self._caller.outcome(image, options)))
                # One turn of the loop starts the call before a slow iterable is asked for the next image.
                await asyncio.sleep(0)
                while pending and (len(pending) >= self._caller.ahead or pending[0].done()):
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections; calls under way end in an error."""
        await self._caller.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _as(other: Callable[..., object]) -> Callable[[Method], Method]:
    """Makes ``help()`` of a method say all that the other one's does, in one place."""

    def documented(method: Method) -> Method:
        method.__doc__ = f"{method.__doc__}\n\n{inspect.getdoc(other)}"
        return method

    return documented


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
        self._caller = Caller(
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
        self._loop = loop.shared()
        self._process = os.getpid()

    @property
    def retries(self) -> int:
        """How often requests were sent again, so far."""
        return self._caller.retries

    @_as(AsyncClient.detect)
    def detect(self, image: Picture, **options: Option) -> Answer:
        """As :meth:`AsyncClient.detect`:"""
        return self._result(self._submitted(self._caller.answered(image, self._caller.options(options), wire.answer)))

    @_as(AsyncClient.picture)
    def picture(self, image: Picture, **options: Option) -> bytes:
        """As :meth:`AsyncClient.picture`:"""
        return self._result(self._submitted(self._caller.answered(image, _picture(options), wire.picture)))

    @_as(AsyncClient.detect_each)
    def detect_each(self, images: Iterable[Picture], **options: Option) -> Iterator[Answer | ClientError]:
        """As :meth:`AsyncClient.detect_each`; ``images`` is read in the caller's thread:"""
        return self._each(images, self._caller.options(options))

    def _each(self, images: Iterable[Picture], options: dict[str, str]) -> Iterator[Answer | ClientError]:
        pending: deque[concurrent.futures.Future[Answer | ClientError]] = deque()
        try:
            for image in images:
                pending.append(self._submitted(self._caller.outcome(image, options)))
                while pending and (len(pending) >= self._caller.ahead or pending[0].done()):
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
        self._result(self._submitted(self._caller.close()))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _picture(options: dict[str, Option]) -> dict[str, str]:
    if "output" in options:
        raise UsageError("option output: picture() sets it itself")
    return wire.options({**options, "output": "image"})


async def _iterated(images: Iterable[Picture] | AsyncIterable[Picture]) -> AsyncIterator[Picture]:
    if isinstance(images, AsyncIterable):
        async for image in images:
            yield image
    else:
        for image in images:
            yield image
