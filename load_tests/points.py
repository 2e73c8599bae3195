"""What a sweep measured, and the choice among it: pure, so that it can be tested on numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.errors import NoPoint

#: A point whose rate is under this share of the best one's, with a p99 over it, is not measured any further.
LOST = 0.7
#: Rates that differ by less are one rate: these machines are noisy.
NOISE = 0.03


@dataclass(frozen=True)
class Point:
    """One way to run a model.

    Attributes:
        archive: its file's name: engine and precision are the archive's.
        workers: in all.
        batch: ``batchSize``.
        delay_ms: ``maxBatchDelay``.
    """

    archive: str
    workers: int
    batch: int
    delay_ms: int

    @property
    def name(self) -> str:
        """For tables and pictures."""
        return f"{self.archive} w{self.workers} b{self.batch} d{self.delay_ms}"

    def levels(self) -> tuple[int, ...]:
        """Users of its closed loops: two batches a worker first, which saturates it, then fewer, to one."""
        full = self.workers * self.batch
        return tuple(sorted({2 * full, full, 1}, reverse=True))


@dataclass(frozen=True)
class Measured:
    """A point and what it came to.

    Attributes:
        point: what ran.
        levels: one summary a number of users, as load_tests.samples.Step gives it, in the order of Point.levels.
        worker_mb: the most memory its workers held, together, MB.
        gpu_mb: the most that was in use on the GPUs, together, MB; None without a GPU.
        network_ms: what one image takes of a worker in the network, ms.
        lost: whether it was stopped after its first level, being clearly worse than another point.
    """

    point: Point
    levels: Sequence[Mapping[str, Any]]
    worker_mb: float
    gpu_mb: float | None
    network_ms: float
    lost: bool = False

    @property
    def image_ms(self) -> float:
        """What one image takes of the whole when it is saturated, ms."""
        return 1000 / max(float(level["rate"]) for level in self.levels)


@dataclass(frozen=True)
class Operation:
    """A point at one level of load."""

    measured: Measured
    level: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For tables and pictures."""
        return f"{self.measured.point.name} at {self.level['level']:g} users"

    @property
    def rate(self) -> float:
        """Answers a second."""
        return float(self.level["rate"])

    @property
    def p99_ms(self) -> float:
        """Of its latencies."""
        return float(self.level["p99_ms"])


def operations(measured: Sequence[Measured]) -> list[Operation]:
    """Every level of every point that was answered without a failure."""
    return [
        Operation(each, level)
        for each in measured
        for level in each.levels
        if level["answered"] and not level["failures"]
    ]


def is_lost(first: Mapping[str, Any], others: Sequence[Measured]) -> bool:
    """Whether a point's saturated level is clearly worse than another point's, in rate and in p99.

    Args:
        first: summary of its saturated level.
        others: measured before.
    """
    if not first["answered"]:
        return True
    return any(
        first["rate"] < LOST * op.rate and first["p99_ms"] * LOST > op.p99_ms
        for op in operations([other for other in others if not other.lost])
    )


def front(candidates: Sequence[Operation]) -> list[int]:
    """Indexes of the Pareto front, by rising rate: none other has both a higher rate and a lower p99."""
    order = sorted(range(len(candidates)), key=lambda i: (-candidates[i].rate, candidates[i].p99_ms))
    kept: list[int] = []
    for index in order:
        if not kept or candidates[index].p99_ms < candidates[kept[-1]].p99_ms:
            kept.append(index)
    return kept[::-1]


def choose(measured: Sequence[Measured], p99_ms: float | None) -> Operation:
    """The operation with the highest rate, of those whose p99 keeps to the goal where there is one.

    Among rates that differ by no more than noise: fewer workers, then less p99.

    Args:
        measured: of a sweep.
        p99_ms: goal; None for throughput alone.

    Raises:
        NoPoint: nothing keeps to it, with the best there is.
    """
    every = operations(measured)
    if not every:
        raise NoPoint("no point of the sweep was answered without failures")
    fit = [each for each in every if p99_ms is None or each.p99_ms <= p99_ms]
    if not fit:
        best = min(every, key=lambda each: each.p99_ms)
        raise NoPoint(
            f"no point has a p99 of {p99_ms:g} ms or less: the least is {best.p99_ms:.0f} ms ({best.name}, "
            f"{best.rate:.1f} answers a second). A smaller canvas, a lower precision or a faster machine would help"
        )
    highest = max(each.rate for each in fit)
    near = [each for each in fit if each.rate >= highest * (1 - NOISE)]
    return min(near, key=lambda each: (each.measured.point.workers, each.p99_ms))


def limit(operation: Operation, cores: int, memory_mb: float) -> list[str]:
    """What keeps this operation from more, each with its numbers; the strongest first.

    Args:
        operation: the one chosen.
        cores: of the machine.
        memory_mb: of the machine.
    """
    measured, level = operation.measured, operation.level
    workers = measured.point.workers
    stages = level["stages_ms"]
    busy = {
        "network": operation.rate * measured.network_ms / (1000 * workers),
        "decode": operation.rate * stages.get("decode", 0.0) / (1000 * cores),
    }
    name, share = max(busy.items(), key=lambda each: each[1])
    waiting = max(0.0, 1 - sum(stages.values()) / level["p50_ms"])
    said = {
        "network": "a lower precision, a smaller canvas or more and faster devices would raise it, not more requests",
        "decode": "smaller or better compressed pictures, or more cores, would raise it",
    }
    found = []
    if share >= LOST:
        found.append(f"{name}: it takes {min(share, 1.0):.0%} of what there is; {said[name]}")
    else:
        found.append(
            f"queue: the network takes {busy['network']:.0%} of the workers' time and decoding {busy['decode']:.0%} of "
            "the cores: the rest waits for requests, the front end or the sender"
        )
    found.append(
        f"waiting: {waiting:.0%} of a request's time at {level['level']:g} users is spent outside its own batch"
    )
    one = measured.worker_mb / workers
    room = "fits" if measured.worker_mb + one <= memory_mb else "does not fit"
    found.append(f"memory: {workers} workers hold {measured.worker_mb:.0f} MB; one more ({one:.0f} MB) {room}")
    return found
