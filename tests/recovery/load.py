"""The load under which a server is hurt: four callers, two over REST and two over gRPC, who never send one twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from clients import ClientError
from tests.recovery.caller import Caller
from tests.recovery.pictures import photograph
from tests.recovery.subjects import Subject

CALLERS = 4
#: s after which a server that is not well counts as one that stays so.
PATIENCE_S = 60.0
_PAUSE_S = 0.02


class NotWell(AssertionError):
    """The server did not become well again by itself."""


@dataclass(frozen=True)
class Outcome:
    """Of one request.

    Attributes:
        ended: on the monotonic clock, s.
        seconds: it took.
        kind: ``right``, ``wrong`` or the error's type.
    """

    ended: float
    seconds: float
    kind: str


async def _answers(subject: Subject) -> list[object]:
    async with Caller(subject, "rest") as caller:
        answers = [await caller.ask(photograph(number)) for number in range(CALLERS)]
    found = [subject.faces(answer) for answer in answers]
    if found != [1] * CALLERS:
        raise AssertionError(f"{subject.name} finds {found} faces on portraits: expected one each")
    return [subject.told(answer) for answer in answers]


def expected(subject: Subject) -> list[object]:
    """What each caller has to be told, from the well server, each photograph alone."""
    return asyncio.run(_answers(subject))


@dataclass
class Load:
    """A context manager whose callers go on until it ends.

    Attributes:
        subject: that is called.
        expected: of :func:`expected`.
        outcomes: so far.
    """

    subject: Subject
    expected: list[object]
    outcomes: list[Outcome] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    async def _call(self, number: int) -> None:
        image = photograph(number)
        async with Caller(self.subject, ("rest", "grpc")[number % 2]) as caller:
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    answer = await caller.ask(image)
                    kind = "right" if self.subject.told(answer) == self.expected[number] else "wrong"
                except ClientError as error:
                    kind = error.type
                ended = time.monotonic()
                self.outcomes.append(Outcome(ended, ended - started, kind))
                await asyncio.sleep(_PAUSE_S)

    async def _call_together(self) -> None:
        await asyncio.gather(*(self._call(number) for number in range(CALLERS)))

    def __enter__(self) -> Load:
        # One thread for all of them: whoever hurts the server waits in the other.
        self._thread = threading.Thread(target=asyncio.run, args=(self._call_together(),))
        self._thread.start()
        self.more(2 * CALLERS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(60)

    def more(self, count: int, seconds: float = PATIENCE_S) -> None:
        """Wait for so many right answers from now on, one after the other, with nothing else between.

        Raises:
            NotWell: they did not come within ``seconds``.
        """
        first, deadline = len(self.outcomes), time.monotonic() + seconds
        while True:
            fresh = [outcome.kind for outcome in self.outcomes[first:]]
            if len(fresh) >= count and fresh[-count:] == ["right"] * count:
                return
            if time.monotonic() > deadline:
                raise NotWell(f"{self.subject.name} is not well after {seconds:g} s: {Counter(fresh)}")
            time.sleep(_PAUSE_S)
