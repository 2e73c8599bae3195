"""What the queueing model is made of: what a batch costs, and how a server runs. Times are ms."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """How times differ from their median: straight lines through (share, factor), by rising share from 0 to 1."""

    points: Sequence[tuple[float, float]] = ((0.0, 1.0), (1.0, 1.0))

    def __post_init__(self) -> None:
        shares, factors = zip(*self.points, strict=True)
        if shares[0] != 0 or shares[-1] != 1 or list(shares) != sorted(shares) or list(factors) != sorted(factors):
            raise ValueError(f"a spread goes from share 0 to 1 and rises: {self.points}")

    @property
    def mean(self) -> float:
        """Of the factors."""
        pairs = zip(self.points, self.points[1:], strict=False)
        return sum((right[0] - left[0]) * (right[1] + left[1]) / 2 for left, right in pairs)

    @functools.cached_property
    def _shares(self) -> list[float]:
        return [share for share, _ in self.points]

    def draw(self, chance: float) -> float:
        """The factor at a share, 0..1."""
        index = min(max(1, bisect.bisect(self._shares, chance)), len(self.points) - 1)
        (low, first), (high, last) = self.points[index - 1], self.points[index]
        return first if high == low else first + (last - first) * (chance - low) / (high - low)


@dataclass(frozen=True)
class Service:
    """What one batch of n images costs.

    Attributes:
        front_ms: of each request outside queue and worker: the network, the front end, the caller.
        host_image_ms: of each image on one core.
        device_batch_ms: of a batch on its device, whatever its size.
        device_image_ms: of each image on its device.
        spread: of a batch's time on its device.
    """

    front_ms: float
    host_image_ms: float
    device_batch_ms: float
    device_image_ms: float
    spread: Spread = Spread()

    def __post_init__(self) -> None:
        times = (self.front_ms, self.host_image_ms, self.device_batch_ms, self.device_image_ms)
        if min(times) < 0 or self.device_batch_ms + self.device_image_ms <= 0:
            raise ValueError(f"times of a service are {times} ms: expected none under 0, and time on the device")

    def device_ms(self, images: int) -> float:
        """The median of a batch's time on its device."""
        return self.device_batch_ms + images * self.device_image_ms

    def alone_ms(self) -> float:
        """The median of one image's time where nothing else is there."""
        return self.front_ms + self.host_image_ms + self.device_ms(1)


@dataclass(frozen=True)
class Serving:
    """How one server runs.

    Attributes:
        workers: in all.
        batch: ``batchSize``.
        delay_ms: ``maxBatchDelay``.
        queue: ``job_queue_size``.
        devices: that its workers share evenly.
        cores: that images are decoded on.
    """

    workers: int
    batch: int
    delay_ms: float
    queue: int
    devices: int
    cores: int

    def __post_init__(self) -> None:
        for name in ("workers", "batch", "queue", "devices", "cores"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected 1 or more")
        if self.workers % self.devices:
            raise ValueError(f"{self.workers} workers on {self.devices} devices: expected a multiple")
