"""One caller, of either server: a picture in, the parsed answer or the client's error out; nothing is sent twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from clients import ClientError, wire
from clients.errors import NotAuthorised
from clients.token import Token
from clients.transport import connector
from clients.wire import Request
from tests.recovery.subjects import Subject

TIMEOUT_S = 30.0
_BYTES = 30_000_000


class Caller:
    """An async context manager.

    Args:
        subject: that is called.
        transport: ``rest`` or ``grpc``.
        concurrency: calls under way at once.
    """

    def __init__(self, subject: Subject, transport: str, concurrency: int = 1) -> None:
        self._token = Token(subject.server.folder / "key_file.json", subject.server.management)
        # In the event loop that it belongs to.
        self._transport = connector(subject.address(transport), subject.model, None, TIMEOUT_S, concurrency, _BYTES)()

    async def ask(self, image: bytes, options: Mapping[str, str] | None = None) -> Any:
        """The parsed JSON of an answer.

        Raises:
            ClientError: what came instead.
        """
        token = self._token.value
        request = Request(image, dict(options or {"score_threshold": "0.25"}))
        try:
            status, body = await self._transport.send(request, token)
            answer = wire.json_of(status, body)
        except NotAuthorised:
            # A server that started anew has new tokens.
            await asyncio.to_thread(self._token.renew, token)
            raise
        if status != 200:
            raise wire.failure(status, "", body[:200].decode("utf-8", errors="replace"))
        return answer

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()


def ask_at_once(
    subject: Subject, image: bytes, count: int, options: Mapping[str, str] | None = None
) -> list[Any | ClientError]:
    """The same picture so many times together over REST: each one's answer or error."""

    async def asked() -> list[Any]:
        async with Caller(subject, "rest", count) as caller:
            return await asyncio.gather(*(caller.ask(image, options) for _ in range(count)), return_exceptions=True)

    outcomes = asyncio.run(asked())
    for each in outcomes:
        if isinstance(each, BaseException) and not isinstance(each, ClientError):
            raise each
    return outcomes


def kind_of(outcome: Any | ClientError) -> str:
    """As tables say it: ``answered``, or status and type of the error."""
    if isinstance(outcome, ClientError):
        return f"{outcome.status} {outcome.type}" if outcome.status else outcome.type
    return "answered"


def kinds(outcomes: list[Any | ClientError]) -> Counter[str]:
    """How often each kind came."""
    return Counter(map(kind_of, outcomes))
