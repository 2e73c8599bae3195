"""Requests to whatever can be called: so many clients each waiting for its answer, or arrivals at a rate."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

#: A photograph in, JSON out; raises where there is no answer.
Detect = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Load:
    """How many ask, and for how long.

    Attributes:
        clients: that each send when their answer is there (closed loop); 0 where ``rate`` is given.
        rate: requests a second that arrive at random moments, whatever the system does (open arrival).
        answers: requests that are sent once the load is there: their latencies count.

    Raises:
        ValueError: both or neither of clients and rate, or no answers.
    """

    clients: int = 0
    rate: float = 0.0
    answers: int = 1

    def __post_init__(self) -> None:
        if (self.clients > 0) == (self.rate > 0) or self.answers < 1:
            raise ValueError(f"{self}: expected clients or a rate, and answers of 1 or more")

    @property
    def before(self) -> int:
        """Requests sent before those that count: a client's first finds a shorter queue than any later one."""
        return self.clients

    @property
    def requests(self) -> int:
        """All that are sent."""
        return self.before + self.answers

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.rate:g} a second" if self.rate else f"{self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass(frozen=True)
class Timed:
    """One answer.

    Attributes:
        sent_s: when it was sent (closed loop) or was due (open arrival), since the load began.
        latency_ms: from then to its answer.
        picture: which of them it was.
        body: JSON.
    """

    sent_s: float
    latency_ms: float
    picture: int
    body: str


def run(detect: Detect, pictures: Sequence[bytes], load: Load, seed: int = 0) -> list[Timed]:
    """Put a load on something; its answers in the order in which they were sent.

    Args:
        detect: called from as many threads as there are clients, or from as many as requests are under way.
        pictures: sent in turn.
        load: clients or rate, and how many requests.
        seed: of the moments of open arrival.

    Raises:
        whatever ``detect`` does: a system that fails a request has no figures.
    """
    begun = time.perf_counter()

    def ask(number: int, due: float) -> Timed:
        picture = number % len(pictures)
        body = detect(pictures[picture])
        return Timed(due - begun, (time.perf_counter() - due) * 1000, picture, body.decode("utf-8"))

    found = _closed(ask, load) if load.clients else _open(ask, load, begun, seed)
    return sorted(found, key=lambda each: each.sent_s)


def _closed(ask: Callable[[int, float], Timed], load: Load) -> list[Timed]:
    numbers, turn, ended = itertools.count(), threading.Lock(), threading.Event()

    def client(_: int) -> list[Timed]:
        done: list[Timed] = []
        while not ended.is_set():
            with turn:
                number = next(numbers)
            if number >= load.requests:
                break
            try:
                done.append(ask(number, time.perf_counter()))
            except BaseException:
                ended.set()
                raise
        return done

    with ThreadPoolExecutor(load.clients) as pool:
        try:
            return [each for done in pool.map(client, range(load.clients)) for each in done]
        except BaseException:
            # Of an interrupt too: the others end with the request they are at.
            ended.set()
            raise


def _open(ask: Callable[[int, float], Timed], load: Load, begun: float, seed: int) -> list[Timed]:
    moments = random.Random(seed)
    due = begun
    # One thread a request that is under way: none waits for another here.
    with ThreadPoolExecutor(load.requests) as pool:
        futures: list[Future[Timed]] = []
        for number in range(load.requests):
            due += moments.expovariate(load.rate)
            time.sleep(max(0.0, due - time.perf_counter()))
            futures.append(pool.submit(ask, number, due))
        return [future.result() for future in futures]
