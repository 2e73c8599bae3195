"""TorchServe's way with requests as a queueing model: a queue, workers that gather batches, cores and devices.

What is modelled is what TorchServe 0.12 does. One queue a model, of ``job_queue_size`` places: a request that finds it
full is refused at once. A worker takes the first request and then waits for more, up to ``batchSize`` of them, for
``maxBatchDelay`` in all; meanwhile no other worker takes any, as there is one lock. It runs the batch to its end
before it looks at the queue again. Inside a batch images are decoded side by side on the cores, then the batch runs on
its device, which two workers of one device share in turn. Times are ms.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simpy

from load_tests.plan_model import Service, Serving

#: Share of the requests that run before the ones that count, while the queue finds its length.
_WARM_UP = 0.15
#: What a refused request takes to come back where nothing else is known.
_REFUSAL_MS = 1.0
_Steps = Generator[Any, Any, Any]


class Load(Protocol):
    """Who asks."""

    def start(self, server: _Server) -> None:
        """Begin to ask."""


@dataclass(frozen=True)
class Users:
    """Closed loops: each asks again when its answer is there."""

    count: int

    def start(self, server: _Server) -> None:
        """Begin to ask."""

        def user() -> _Steps:
            while True:
                yield from server.request()

        for _ in range(self.count):
            server.environment.process(user())


@dataclass(frozen=True)
class Arrivals:
    """Requests at random moments, so many a second, whatever the server does.

    Attributes:
        rate: requests a second.
        seed: of the moments; with 0 they are those at which ``load_tests run --rate`` sends.
    """

    rate: float
    seed: int = 0

    def start(self, server: _Server) -> None:
        """Begin to ask."""

        def source() -> _Steps:
            moments = random.Random(self.seed)
            while True:
                yield server.environment.timeout(moments.expovariate(self.rate) * 1000)
                server.environment.process(server.request())

        server.environment.process(source())


@dataclass(frozen=True)
class Cameras:
    """Each sends frames at one rate, whatever the server does; they are not in step.

    Attributes:
        count: of cameras.
        fps: frames a second of each.
        jitter_ms: by which frames come late on their way, at most.
    """

    count: float
    fps: float
    jitter_ms: float = 5.0

    def start(self, server: _Server) -> None:
        """Begin to ask."""

        def late() -> _Steps:
            yield server.environment.timeout(server.random.uniform(0, self.jitter_ms))
            yield from server.request()

        def camera(period: float) -> _Steps:
            yield server.environment.timeout(server.random.uniform(0, period))
            while True:
                server.environment.process(late())
                yield server.environment.timeout(period)

        # A part of a camera is one whose frames go to several servers in turn.
        whole = max(1, round(self.count))
        for _ in range(whole):
            server.environment.process(camera(1000 / self.fps * whole / self.count))


@dataclass(frozen=True)
class Outcome:
    """What came of a load.

    Attributes:
        rate: answers a second.
        mean_ms: of their latencies.
        p50_ms: likewise.
        p99_ms: likewise.
        refused: share of the requests that found the queue full.
        batch_mean: images in the batch that a request goes with, its mean over requests, as ``load_tests run`` has it.
        device_busy: share of the devices' time.
        cores_busy: share of the cores' time.
    """

    rate: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    refused: float
    batch_mean: float
    device_busy: float
    cores_busy: float


def simulate(
    service: Service, serving: Serving, load: Load, requests: int = 6000, warm_up: float = _WARM_UP
) -> Outcome:
    """Run a load until so many requests are through.

    Args:
        service: what a batch costs.
        serving: how the server runs.
        load: who asks.
        requests: answered or refused, those that are not counted included.
        warm_up: share of them that is not counted.

    Returns:
        The same for the same arguments: every chance in it has a fixed seed.
    """
    server = _Server(service, serving, random.Random(1))
    load.start(server)
    uncounted = int(requests * warm_up)
    if uncounted:
        server.environment.run(server.through(uncounted))
        server.forget()
    server.environment.run(server.through(requests - uncounted))
    return server.outcome()


class _Server:
    """The model as it runs.

    Attributes:
        environment: SimPy's; its time is ms.
        random: of every chance.
    """

    def __init__(self, service: Service, serving: Serving, chance: random.Random) -> None:
        self.environment = simpy.Environment()
        self.random = chance
        self._service, self._serving = service, serving
        self._queue: deque[simpy.Event] = deque()
        self._came = self.environment.event()
        self._lock = simpy.Resource(self.environment)
        self._cores = simpy.Resource(self.environment, serving.cores)
        self._devices = [simpy.Resource(self.environment) for _ in range(serving.devices)]
        self._enough = self.environment.event()
        self._wanted = 0
        self.forget()
        for number in range(serving.workers):
            self.environment.process(self._worker(self._devices[number % serving.devices]))

    def forget(self) -> None:
        """Begin to count anew."""
        self._begun = float(self.environment.now)
        self._latencies: list[float] = []
        self._batches: list[int] = []
        self._refused = 0
        self._device_ms = self._core_ms = 0.0

    def through(self, requests: int) -> simpy.Event:
        """An event: so many more requests are answered or refused."""
        self._wanted, self._enough = requests, self.environment.event()
        return self._enough

    def request(self) -> _Steps:
        """One request, to its end."""
        begun = self.environment.now
        half = self._service.front_ms / 2
        yield self.environment.timeout(half)
        if len(self._queue) >= self._serving.queue:
            yield self.environment.timeout(max(half, _REFUSAL_MS))
            self._refused += 1
        else:
            answered = self.environment.event()
            self._queue.append(answered)
            if not self._came.triggered:
                self._came.succeed()
            yield answered
            yield self.environment.timeout(half)
            self._latencies.append(self.environment.now - begun)
        self._wanted -= 1
        if not self._wanted:
            self._enough.succeed()

    def outcome(self) -> Outcome:
        """Of what was counted."""
        passed = self.environment.now - self._begun
        p50, p99 = np.percentile(self._latencies, [50, 99]).tolist() if self._latencies else (np.inf, np.inf)
        return Outcome(
            rate=len(self._latencies) / passed * 1000,
            mean_ms=float(np.mean(self._latencies)) if self._latencies else np.inf,
            p50_ms=p50,
            p99_ms=p99,
            refused=self._refused / (self._refused + len(self._latencies)),
            batch_mean=float(np.average(self._batches, weights=self._batches)) if self._batches else 0.0,
            device_busy=self._device_ms / passed / self._serving.devices,
            cores_busy=self._core_ms / passed / self._serving.cores,
        )

    def _worker(self, device: simpy.Resource) -> _Steps:
        while True:
            batch = yield from self._gathered()
            if self._service.host_image_ms:
                yield self.environment.all_of([self.environment.process(self._decoded()) for _ in batch])
            factor = self._service.spread.draw(self.random.random())
            taken = self._service.device_ms(len(batch)) * factor
            with device.request() as held:
                yield held
                yield self.environment.timeout(taken)
            self._device_ms += taken
            self._batches.append(len(batch))
            for answered in batch:
                answered.succeed()

    def _gathered(self) -> _Steps:
        batch: list[simpy.Event] = []
        with self._lock.request() as held:
            yield held
            until = np.inf
            while len(batch) < self._serving.batch:
                if self._queue:
                    batch.append(self._queue.popleft())
                    if len(batch) == 1:
                        until = self.environment.now + self._serving.delay_ms
                    continue
                left = until - self.environment.now
                if left <= 0:
                    break
                self._came = self.environment.event()
                if batch:
                    yield self._came | self.environment.timeout(left)
                else:
                    yield self._came
        return batch

    def _decoded(self) -> _Steps:
        with self._cores.request() as held:
            yield held
            yield self.environment.timeout(self._service.host_image_ms)
            self._core_ms += self._service.host_image_ms
