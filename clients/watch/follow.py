"""Frames of all sources to the server, results in each source's order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clients.answer import Answer
from clients.client import AsyncClient
from clients.errors import ClientError, InvalidOption, InvalidRequest, NotAuthorised, NotFound, UsageError
from clients.watch.frame import Frame
from clients.watch.reader import Reader, Reading
from clients.watch.slot import Slot
from clients.watch.sources import Source
from clients.watch.tally import Tally
from clients.wire import Option

#: Errors that every frame would meet: they end the run.
ENDING = (InvalidOption, InvalidRequest, NotAuthorised, NotFound)
#: Frames of a file that are read ahead of those under way.
_AHEAD = 4
#: That readers have to end, all of them together; one whose source says nothing is left behind.
_END_S = 1.0


@dataclass(frozen=True)
class Seen:
    """A frame and what the server says of it.

    Attributes:
        source: its name.
        frame: that was sent.
        outcome: the server's answer, or why there is none.
        lag_s: from the frame's decoding to this.
    """

    source: str
    frame: Frame
    outcome: Answer | ClientError
    lag_s: float


@dataclass(frozen=True)
class Sending:
    """How frames are sent.

    Attributes:
        options: of the server.
        in_flight: frames of all sources that are under way at once.
        a_source: frames of one source that are under way at once.
        quality: of the JPEG that a frame is sent as, 1..100.

    Raises:
        UsageError: a number out of range.
    """

    options: Mapping[str, Option]
    in_flight: int = 8
    a_source: int = 2
    quality: int = 90

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality is {self.quality}: expected 1..100")
        for name in ("in_flight", "a_source"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: expected 1 or more frames")


async def follow(
    client: AsyncClient,
    sources: Sequence[Source],
    tallies: Sequence[Tally],
    reading: Reading,
    sending: Sending,
    deliver: Callable[[Seen], None],
    ended: asyncio.Event,
) -> None:
    """Read, send and deliver until every source has ended.

    Args:
        client: with room for ``in_flight`` calls.
        sources: to read.
        tallies: one a source.
        reading: what of each is read.
        sending: how frames are sent.
        deliver: takes each result, in its source's order, in a thread; two sources' at once.
        ended: ends the run where it is set: what is under way is delivered.

    Raises:
        ClientError: one of ``ENDING``. Any other error is its frame's outcome: a server that is away comes back.
    """
    gate = asyncio.Semaphore(sending.in_flight)
    loop = asyncio.get_running_loop()
    slots = [Slot(loop, source.live, 1 if source.live else _AHEAD) for source in sources]
    readers = [Reader(*each, reading) for each in zip(sources, slots, tallies, strict=True)]

    async def stop() -> None:
        await ended.wait()
        for reader in readers:
            reader.stop()

    for reader in readers:
        reader.start()
    stopping = asyncio.create_task(stop())
    try:
        async with asyncio.TaskGroup() as group:
            for slot, tally in zip(slots, tallies, strict=True):
                group.create_task(_Line(client, slot, tally, sending, gate, deliver).run())
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        stopping.cancel()
        for reader in readers:
            reader.stop()
        end = time.monotonic() + _END_S
        for reader in readers:
            await asyncio.to_thread(reader.join, max(0.0, end - time.monotonic()))


class _Line:
    """One source's frames, from its slot to its results."""

    def __init__(
        self,
        client: AsyncClient,
        slot: Slot,
        tally: Tally,
        sending: Sending,
        gate: asyncio.Semaphore,
        deliver: Callable[[Seen], None],
    ) -> None:
        self._client = client
        self._slot = slot
        self._tally = tally
        self._sending = sending
        self._gate = gate
        self._deliver = deliver
        self._under_way: asyncio.Queue[tuple[Frame, asyncio.Task[Answer | ClientError]] | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(sending.a_source)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._receive())
            while await self._slot.filled():
                # Only where it can be sent at once is a frame taken out: until then a newer one may take its place.
                await self._room.acquire()
                await self._gate.acquire()
                frame = self._slot.take()
                self._under_way.put_nowait((frame, group.create_task(self._ask(frame))))
            self._under_way.put_nowait(None)

    async def _ask(self, frame: Frame) -> Answer | ClientError:
        try:
            picture = await asyncio.to_thread(frame.picture, self._sending.quality)
            return await self._client.detect(picture, **self._sending.options)
        except ClientError as error:
            return error
        finally:
            self._gate.release()

    async def _receive(self) -> None:
        while (sent := await self._under_way.get()) is not None:
            frame, task = sent
            outcome = await task
            if isinstance(outcome, ENDING):
                raise outcome
            seen = Seen(self._tally.name, frame, outcome, time.monotonic() - frame.arrived)
            if isinstance(outcome, Answer):
                self._tally.answered(len(outcome.faces), seen.lag_s)
            else:
                self._tally.count(failed=1)
            await asyncio.to_thread(self._deliver, seen)
            self._room.release()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first says why; the others met the same."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
