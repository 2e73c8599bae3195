"""What this worker counts, and how it leaves the worker.

Counting costs a dictionary's entry. Once a second a thread hands what has come together to a sink, so that the
number of lines a worker writes does not grow with its requests. TorchServe's own histograms have fixed buckets
(5 ms to 10 s); here a histogram is the three counters that Prometheus reads as one, with buckets of our own.
Counts of all workers, and of one that was started again, add up at the sink; a worker that is killed takes
what it counted in its last second with it.

Each name is declared once more in ``deploy/metrics.yaml``, by which TorchServe takes it.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from handler.errors import ConfigError

log = logging.getLogger("mogface")

#: Seconds between two hand-overs, and between two readings of the GPU.
PUBLISH_S, READ_S = 1.0, 5.0
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: What TorchServe's lines are split at.
_SEPARATORS = re.compile(r"[,:|#\s]")


@dataclass(frozen=True, eq=False)
class Family:
    """Series of one name.

    Attributes:
        name: as Prometheus shows it.
        own: names of its own labels.
        per_model: whether ``model`` and ``version`` come before them.
    """

    name: str
    own: tuple[str, ...] = ()
    per_model: bool = True

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all its labels."""
        return (*(("model", "version") if self.per_model else ()), *self.own)


@dataclass(frozen=True, eq=False)
class Counter(Family):
    """It only rises."""


@dataclass(frozen=True, eq=False)
class Gauge(Family):
    """The last reading."""


@dataclass(frozen=True, eq=False)
class Histogram(Family):
    """How many observations were up to each bound; ``name_bucket``, ``name_sum`` and ``name_count``."""

    bounds: tuple[float, ...] = field(kw_only=True)

    @property
    def le(self) -> tuple[str, ...]:
        """The bounds as labels, ``+Inf`` at the end."""
        return (*(f"{bound:g}" for bound in self.bounds), "+Inf")


WORKER_STARTS = Counter("mogface_worker_starts_total")
REQUESTS = Counter("mogface_requests_total", ("outcome",))
IMAGES = Counter("mogface_images_total", ("outcome",))
FACES = Counter("mogface_faces_total")
CANVASES = Counter("mogface_canvases_total", ("canvas",))
LEVELS = Counter("mogface_levels_total", ("level", "box_head"))
CACHE_LOOKUPS = Counter("mogface_cache_lookups_total", ("result",))
CACHE_EVICTIONS = Counter("mogface_cache_evictions_total")
BATCH_REQUESTS = Histogram("mogface_batch_requests", bounds=_SIZES)
BATCH_SECONDS = Histogram("mogface_batch_seconds", bounds=_SECONDS)
RUN_IMAGES = Histogram("mogface_run_images", bounds=_SIZES)
STAGE_SECONDS = Histogram("mogface_stage_seconds", ("stage",), bounds=_SECONDS)
GPU_WORKERS = Gauge("mogface_gpu_workers", ("gpu",), per_model=False)
GPU_UTILIZATION = Gauge("mogface_gpu_utilization_ratio", ("gpu",), per_model=False)
GPU_MEMORY_USED = Gauge("mogface_gpu_memory_used_bytes", ("gpu",), per_model=False)
GPU_MEMORY_TOTAL = Gauge("mogface_gpu_memory_total_bytes", ("gpu",), per_model=False)
GPU_TEMPERATURE = Gauge("mogface_gpu_temperature_celsius", ("gpu",), per_model=False)
FAMILIES: tuple[Family, ...] = (
    WORKER_STARTS,
    REQUESTS,
    IMAGES,
    FACES,
    CANVASES,
    LEVELS,
    CACHE_LOOKUPS,
    CACHE_EVICTIONS,
    BATCH_REQUESTS,
    BATCH_SECONDS,
    RUN_IMAGES,
    STAGE_SECONDS,
    GPU_WORKERS,
    GPU_UTILIZATION,
    GPU_MEMORY_USED,
    GPU_MEMORY_TOTAL,
    GPU_TEMPERATURE,
)


@dataclass(frozen=True)
class Sample:
    """One series' news.

    Attributes:
        name: of the series; a histogram's with its suffix.
        kind: ``counter`` or ``gauge``.
        labels: their values, in the order of the declaration.
        value: a counter's rise since the last sample, a gauge's reading.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    value: float


Sink = Callable[[Sample], None]


def declared() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every name that samples have: its kind and the names of its labels."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for family in FAMILIES:
        if isinstance(family, Histogram):
            found[f"{family.name}_bucket"] = "counter", (*family.labels, "le")
            found |= {f"{family.name}_{part}": ("counter", family.labels) for part in ("sum", "count")}
        else:
            found[family.name] = "counter" if isinstance(family, Counter) else "gauge", family.labels
    return found


class Meter:
    """Counts of one worker until they are drained; for any number of threads.

    Args:
        model: name of the model.
        version: of its archive.

    Raises:
        ConfigError: a name that TorchServe's lines cannot hold.
    """

    def __init__(self, model: str = "", version: str = "") -> None:
        for name, value in {"model name": model, "version": version}.items():
            if _SEPARATORS.search(value):
                raise ConfigError(f"{name} is {value!r}: expected no blank and none of , : | #, which end a label")
        self._model = (model, version)
        self._lock = threading.Lock()
        self._counts: dict[tuple[Counter, tuple[str, ...]], float] = {}
        self._readings: dict[tuple[Gauge, tuple[str, ...]], float] = {}
        #: Observations in each bucket alone, and their sum at the end.
        self._observed: dict[tuple[Histogram, tuple[str, ...]], list[float]] = {}
        self._shown: set[tuple[Histogram, tuple[str, ...]]] = set()

    def open(self, family: Counter | Histogram, *labels: str) -> None:
        """Show a series at zero: a rate does not see the first count of a series that was not there before."""
        if isinstance(family, Counter):
            self.add(family, 0, *labels)
        else:
            with self._lock:
                self._row(family, labels)

    def add(self, counter: Counter, amount: float, *labels: str) -> None:
        """Count.

        Args:
            counter: to raise.
            amount: 0 or more.
            labels: values of its own labels.
        """
        with self._lock:
            self._counts[counter, labels] = self._counts.get((counter, labels), 0) + amount

    def set(self, gauge: Gauge, value: float, *labels: str) -> None:
        """Say what was read."""
        with self._lock:
            self._readings[gauge, labels] = value

    def observe(self, histogram: Histogram, value: float, *labels: str) -> None:
        """Count a value in its bucket, whose bound is the first that it does not pass."""
        with self._lock:
            row = self._row(histogram, labels)
            row[bisect_left(histogram.bounds, value)] += 1
            row[-1] += value

    def _row(self, histogram: Histogram, labels: tuple[str, ...]) -> list[float]:
        row = self._observed.get((histogram, labels))
        if row is None:
            row = self._observed[histogram, labels] = [0.0] * (len(histogram.bounds) + 2)
        return row

    def drain(self) -> list[Sample]:
        """What has come since the last time."""
        with self._lock:
            counts, self._counts = self._counts, {}
            readings, self._readings = self._readings, {}
            observed, self._observed = self._observed, {}
        samples = [
            Sample(counter.name, "counter", self._values(counter, labels), amount)
            for (counter, labels), amount in counts.items()
        ]
        samples += [
            Sample(gauge.name, "gauge", self._values(gauge, labels), value)
            for (gauge, labels), value in readings.items()
        ]
        for (histogram, labels), row in observed.items():
            samples += self._histogram(histogram, labels, row)
        return samples

    def _histogram(self, histogram: Histogram, labels: tuple[str, ...], row: list[float]) -> list[Sample]:
        values = self._values(histogram, labels)
        # All buckets the first time: a quantile is interpolated between neighbours, which have to be there.
        first = (histogram, labels) not in self._shown
        self._shown.add((histogram, labels))
        samples, up_to = [], 0.0
        for le, count in zip(histogram.le, row, strict=False):
            up_to += count
            if up_to or first:
                samples.append(Sample(f"{histogram.name}_bucket", "counter", (*values, le), up_to))
        return [
            *samples,
            Sample(f"{histogram.name}_sum", "counter", values, row[-1]),
            Sample(f"{histogram.name}_count", "counter", values, up_to),
        ]

    def _values(self, family: Family, labels: tuple[str, ...]) -> tuple[str, ...]:
        return (*self._model, *labels) if family.per_model else labels


class Publisher:
    """Hands a meter's samples to a sink, once a second and at the process's end.

    Args:
        meter: to drain.
        sink: takes one sample; of one thread at a time.
    """

    def __init__(self, meter: Meter, sink: Sink) -> None:
        self._meter = meter
        self._sink = sink
        self._readings: list[Callable[[Meter], None]] = []
        self._next_reading = -math.inf
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def watch(self, read: Callable[[Meter], None]) -> None:
        """Call ``read`` every five seconds, to set gauges of the meter."""
        self._readings.append(read)

    def start(self) -> Publisher:
        """Begin; what the meter holds goes out at once."""
        self.publish()
        self._thread.start()
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Hand over the last samples and end. TorchServe kills its workers: then none of this is run."""
        atexit.unregister(self.stop)
        self._ended.set()
        self._thread.join()
        self.publish()

    def publish(self) -> None:
        """Hand over what there is."""
        with self._turn:
            if self._readings and time.monotonic() >= self._next_reading:
                self._next_reading = time.monotonic() + READ_S
                for read in self._readings:
                    read(self._meter)
            for sample in self._meter.drain():
                self._sink(sample)

    def _run(self) -> None:
        while not self._ended.wait(PUBLISH_S):
            try:
                self.publish()
            except Exception:
                # A worker without metrics still answers; whoever watches sees them stand still.
                log.exception(json.dumps({"event": "fault", "of": "metrics", "then": "tried again"}))
