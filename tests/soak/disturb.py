"""What is done to the server while it is asked: workers killed and scaled, tokens renewed, the queue filled.

Whatever ends a worker happens in the first third of the time. A leak is told from noise by the length of one
unbroken life of a worker: the error of a slope falls with the time to the power of 1.5, so that one life of two thirds
of the time tells a leak five times smaller than lives of a fifth each do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from archive.server import NotReady, Server

#: Kinds that end a worker, and those that fill the queue or leave all as it is.
WORKER, OTHER = ("kill", "scale"), ("burst", "renew")
#: s between two of either, at most.
EVERY_S = 90.0
#: Of the time.
SHARE = 1 / 3
#: Requests that a burst sends at once: more than the queue takes.
BURST = 140
#: Of the shipped configuration, of two workers.
WORKERS = 2
_READY_S = 120.0


@dataclass(frozen=True)
class Event:
    """Something to do.

    Attributes:
        at: s from the beginning.
        kind: of WORKER or OTHER.
    """

    at: float
    kind: str


@dataclass
class Window:
    """When something was done.

    Attributes:
        kind: of WORKER or OTHER.
        began: s on the monotonic clock.
        ended: when all was well again; infinite until then.
        failed: why it could not be done, or all did not become well again.
    """

    kind: str
    began: float
    ended: float = float("inf")
    failed: str = ""

    def meets(self, first: float, last: float) -> bool:
        """Whether any of the time between was within."""
        return self.began <= last and first <= self.ended


def schedule(seconds: float) -> list[Event]:
    """Everything that is done in so many seconds, in its order."""
    third = seconds * SHARE
    events = []
    for kinds, span in ((WORKER, third), (OTHER, seconds * 0.9)):
        # Of 40 s there is time for both kinds.
        count = max(2 if span >= 40 or kinds is OTHER else 1, int(span / EVERY_S))
        events += [Event(span * (number + 0.3) / count, kinds[number % 2]) for number in range(count)]
    return sorted(events, key=lambda event: event.at)


class Disturbances:
    """Does what a schedule says.

    Args:
        server: to disturb.
        model: its name.
        pids: of the workers now.
        burst: sends so many requests at once, and waits for their ends.

    Attributes:
        windows: what was done so far, and when.
    """

    def __init__(
        self, server: Server, model: str, pids: Callable[[], set[int]], burst: Callable[[int], Awaitable[object]]
    ) -> None:
        self._server = server
        self._path = f"/models/{model}"
        self._pids = pids
        self._burst = burst
        self.windows: list[Window] = []
        self._renewed = 0

    async def run(self, seconds: float, began: float) -> None:
        """Everything of the schedule; worker events one after the other, the rest beside them.

        Args:
            seconds: in all.
            began: the beginning, on the monotonic clock.
        """
        events = schedule(seconds)
        await asyncio.gather(*(self._lane([e for e in events if e.kind in kinds], began) for kinds in (WORKER, OTHER)))

    async def _lane(self, events: list[Event], began: float) -> None:
        act: Mapping[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "scale": self._scale,
            "burst": self._fill,
            "renew": self._renew,
        }
        for event in events:
            await asyncio.sleep(max(0.0, began + event.at - time.monotonic()))
            window = Window(event.kind, time.monotonic())
            self.windows.append(window)
            try:
                await act[event.kind]()
            except (httpx.HTTPError, OSError, NotReady) as error:
                # Told by the verdict: what was seen until then is not lost. TimeoutError is an OSError.
                window.failed = repr(error)
            else:
                window.ended = time.monotonic()

    async def _kill(self) -> None:
        pid = min(self._pids(), default=None)
        if pid is None:
            raise ProcessLookupError("there is no worker to kill")
        os.kill(pid, signal.SIGKILL)
        await self._ready(WORKERS, without=pid)

    async def _scale(self) -> None:
        for count in (1, WORKERS):
            await self._manage("PUT", self._path, {"min_worker": count, "max_worker": count, "synchronous": "true"})
            await self._ready(count)

    async def _fill(self) -> None:
        await self._burst(BURST)

    async def _renew(self) -> None:
        api = ("inference", "management")[self._renewed % 2]
        self._renewed += 1
        await self._manage("GET", "/token", {"type": api}, "API")

    async def _manage(self, method: str, path: str, params: Mapping[str, str | int], api: str = "management") -> None:
        async with httpx.AsyncClient(base_url=self._server.management, timeout=_READY_S) as http:
            answer = await http.request(method, path, params=params, headers=self._server.headers(api))
        answer.raise_for_status()

    async def _ready(self, count: int, without: int = 0) -> None:
        """Until so many workers are READY, and the one that was killed is none of them."""
        async with asyncio.timeout(_READY_S):
            while True:
                described = await asyncio.to_thread(self._server.describe, self._path.rpartition("/")[2])
                workers = [worker for version in described for worker in version["workers"]]
                ready = [worker["pid"] for worker in workers if worker["status"] == "READY"]
                if len(ready) == len(workers) == count and without not in ready:
                    return
                await asyncio.sleep(0.2)
