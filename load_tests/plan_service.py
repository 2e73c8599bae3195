"""What an image costs: by physics on a card that nobody has measured, or by a sweep on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from handler.geometry import Canvas
from load_tests.errors import NoPlan
from load_tests.plan_model import Service, Spread
from load_tests.points import Measured

#: Of MogFace's graphs, multiply and add counted apart, all box heads run: 1.62 TFLOP at 640x640, else as the area.
FLOP_A_PIXEL = 1.62e12 / (640 * 640)
#: Share of it in the box heads, which are not run where nothing is over the threshold.
BOX_HEADS = 0.4
#: Dense FP16 of each card, TFLOP/s: NVIDIA's data sheets; of the H200 what a large matrix product reaches.
PEAK_TFLOPS = {"t4": 65.0, "a10": 125.0, "a100": 312.0, "h200": 790.0}
#: Share of the peak that is planned with where nothing is measured. Published for MogFace at 640x640 on a T4: 42 ms by
#: TensorRT in FP16, whose floor is 25 ms.
EFFICIENCY = 0.6
#: One core for one 640x480 JPEG outside the network: `load_tests overhead` on two cores of an AMD EPYC.
HOST_MS, _HOST_PIXELS = 2.3, 640 * 480
#: What TorchServe adds to a request: README.md, Figures. And launches of three graphs on a GPU, an estimate.
FRONT_MS, LAUNCH_MS = 2.0, 1.0
#: Of a GPU that is at its limit and hot; an estimate.
_STEADY = Spread(((0.0, 0.97), (0.5, 1.0), (0.95, 1.05), (1.0, 1.1)))
#: Of a level's summary: what a spread is made of.
QUANTILES = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
#: Workers that run side by side take at most so much more than one alone; over it they share a device.
_SIDE_BY_SIDE = 1.25


def flop(canvas: Canvas) -> float:
    """Of one image with faces on every level."""
    return FLOP_A_PIXEL * canvas.height * canvas.width


def floor_ms(card: str, canvas: Canvas) -> float:
    """The least time of one image on a card at the whole of its peak: nothing that runs this network is faster.

    Args:
        card: a key of PEAK_TFLOPS.
        canvas: the network runs at.
    """
    return flop(canvas) / PEAK_TFLOPS[card] / 1e9


def assumed(card: str, canvas: Canvas, efficiency: float = EFFICIENCY, work: float = 1.0) -> Service:
    """A card that is not measured.

    Args:
        card: a key of PEAK_TFLOPS.
        canvas: the network runs at.
        efficiency: share of the peak, 0..1.
        work: share of the network that is run, in the mean of the images.
    """
    image = floor_ms(card, canvas) / efficiency * work
    host = HOST_MS * canvas.height * canvas.width / _HOST_PIXELS
    return Service(FRONT_MS, host, LAUNCH_MS, image, _STEADY)


@dataclass(frozen=True)
class Fitted:
    """What a sweep says of one archive with one number of workers.

    Attributes:
        service: of a batch.
        devices: that the workers use as if each were one: as many as workers, or one where they share the machine.
    """

    service: Service
    devices: int


def fitted(points: Sequence[Measured]) -> Fitted:
    """From the saturated and the lone level of each point; those between are not looked at.

    Saturated, a worker is never without a batch: workers x images a batch over the rate is what a batch takes. Over
    several batch sizes that is a line. A lone user's time over its stages is what a request costs outside the worker,
    and how his times differ is how a batch's do.

    Args:
        points: of one archive and one number of workers.

    Raises:
        NoPlan: a level of one user, or the rate of the saturated one, is missing.
    """
    workers = points[0].point.workers
    images, cycles, lone, front = [], [], [], []
    spreads: list[Sequence[float]] = []
    for point in points:
        full = max(point.levels, key=lambda level: float(level["level"]))
        alone = next((level for level in point.levels if level["level"] == 1), None)
        if alone is None or not (alone["answered"] and full["answered"]):
            raise NoPlan(f"{point.point.name}: a plan needs its levels of one user and of the most, answered")
        together = _together(full)
        images.append(together)
        cycles.append(1000 * workers * together / float(full["rate"]))
        stages = sum(alone["stages_ms"].values())
        waited = point.point.delay_ms if point.point.batch > 1 else 0
        lone.append(stages)
        front.append(max(0.0, alone["p50_ms"] - stages - waited))
        # Where the answer's stages are not told all of the lone time is the worker's.
        base = alone["p50_ms"] - waited - front[-1]
        spreads.append([(alone[name] - waited - front[-1]) / base for name in QUANTILES])
    fixed, each = _line(images, cycles)
    alone_ms, devices = statistics.median(lone), workers
    host = 0.0
    if workers > 1 and fixed + each > _SIDE_BY_SIDE * alone_ms:
        # They wait for one another: one device, which each has in turn.
        fixed, each, devices = fixed / workers, each / workers, 1
        host = max(0.0, alone_ms - fixed - each)
    factors = spread(np.median(np.array(spreads), axis=0).tolist())
    # Cycles are means, and a spread's factors are of the median.
    mean = factors.mean
    service = Service(statistics.median(front), host, fixed / mean, each / mean, factors)
    return Fitted(service, devices)


def _together(level: Mapping[str, Any]) -> float:
    """Images a batch. A summary counts answers by the batch they came in, of which large ones have more."""
    counts = {int(size): count for size, count in level["batch_sizes"].items()}
    return sum(counts.values()) / sum(count / size for size, count in counts.items()) if counts else 1.0


def _line(images: Sequence[float], cycles: Sequence[float]) -> tuple[float, float]:
    """Of a batch's time: what it takes whatever its size, and each image, by least squares; neither under 0."""
    if max(images) - min(images) < 0.5:
        return 0.0, statistics.median(cycle / size for size, cycle in zip(images, cycles, strict=True))
    each, fixed = np.polyfit(images, cycles, 1).tolist()
    if fixed < 0:
        return 0.0, float(np.dot(images, cycles) / np.dot(images, images))
    if each < 0:
        return float(np.mean(cycles)), 0.0
    return fixed, each


def spread(quantiles: Sequence[float]) -> Spread:
    """From the factors at QUANTILES; under the median there is none, as nothing is faster than the work."""
    p50, p95, p99, most = np.maximum.accumulate(quantiles).tolist()
    return Spread(((0.0, p50), (0.5, p50), (0.95, p95), (0.99, p99), (1.0, most)))
