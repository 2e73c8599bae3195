"""A model as the management API describes it: versions and the workers that run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from clients.errors import BadAnswer, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Worker:
    """One process that runs a model.

    Attributes:
        id: TorchServe's own.
        status: TorchServe's own: READY, or UNLOADING while it has not loaded the model.
        pid: of its process; 0 while there is none.
        gpu: whether it was given one.
        memory: resident, bytes; 0 while unknown.
    """

    id: str
    status: str
    pid: int
    gpu: bool
    memory: int

    @property
    def ready(self) -> bool:
        """Whether it answers requests."""
        return self.status == "READY"

    @classmethod
    def parse(cls, value: object) -> Worker:
        """A worker out of parsed JSON.

        Raises:
            BadAnswer: something is missing or of the wrong type, by name.
        """
        return cls(
            id=read(value, "id", str),
            status=read(value, "status", str),
            pid=read(value, "pid", int),
            gpu=read(value, "gpu", bool),
            memory=read(value, "memoryUsage", int),
        )


@dataclass(frozen=True)
class Version:
    """One version of a model, as it is served.

    Attributes:
        name: of the model.
        version: its own.
        min_workers: that are kept.
        max_workers: at most.
        batch_size: requests that run together at most.
        max_batch_delay_ms: that a batch waits for more requests, ms.
        queue_length: requests that wait for a worker; None where the server does not say.
        workers: its processes.
    """

    name: str
    version: str
    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay_ms: int
    queue_length: int | None
    workers: tuple[Worker, ...]

    @property
    def ready(self) -> bool:
        """At least one worker, all of them ready. TorchServe's ``/ping`` says Healthy long before."""
        return bool(self.workers) and all(worker.ready for worker in self.workers)

    @classmethod
    def parse(cls, value: object) -> Version:
        """A version out of parsed JSON. Errors as for a worker."""
        queue = value.get("jobQueueStatus") if isinstance(value, dict) else None
        return cls(
            name=read(value, "modelName", str),
            version=read(value, "modelVersion", str),
            min_workers=read(value, "minWorkers", int),
            max_workers=read(value, "maxWorkers", int),
            batch_size=read(value, "batchSize", int),
            max_batch_delay_ms=read(value, "maxBatchDelay", int),
            queue_length=None if queue is None else read(queue, "pendingRequests", int),
            workers=tuple(Worker.parse(each) for each in read(value, "workers", list)),
        )


def read(value: object, name: str, kind: type[T]) -> T:
    """What an object of parsed JSON has under a name.

    Raises:
        BadAnswer: nothing, or something of another type.
    """
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise BadAnswer(f"{name} of the server's description is {shown(found)}: expected {kind.__name__}")
    return found
