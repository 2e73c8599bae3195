"""Whether something grows: a straight line through its samples, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Parts of the time of which the least sample is taken.
PARTS = 24
#: Fewer say nothing.
LEAST = 8
#: Standard errors that noise stays within.
SURE = 3.0

Series = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Trend:
    """A line by least squares.

    Attributes:
        per_hour: its slope.
        error: the slope's standard error, an hour too.
        mean: of the values.
        seconds: from the first to the last.
    """

    per_hour: float
    error: float
    mean: float
    seconds: float

    @property
    def gain(self) -> float:
        """By how much the line rises from its first to its last point."""
        return self.per_hour * self.seconds / 3600

    @property
    def noise(self) -> bool:
        """Whether the slope is no more than three standard errors."""
        return abs(self.per_hour) <= SURE * self.error

    def grows(self, allowed: float) -> bool:
        """Whether it rises beyond noise, and by more than is allowed.

        Args:
            allowed: share of the mean by which it may rise in all: what is so small no program can be told by.
        """
        return not self.noise and self.gain > allowed * self.mean


def floors(series: Series, parts: int = PARTS) -> list[tuple[float, float]]:
    """The least value of each of so many equal parts of the time.

    A leak raises what is held between requests; above that are the pictures in work, of whatever size they are.
    """
    if not series:
        return []
    first, last = series[0][0], series[-1][0]
    width = (last - first) / parts or 1.0
    least: dict[int, tuple[float, float]] = {}
    for at, value in series:
        part = min(parts - 1, int((at - first) / width))
        if part not in least or value < least[part][1]:
            least[part] = (at, value)
    return [least[part] for part in sorted(least)]


def fit(series: Series) -> Trend | None:
    """The line through times (s) and values; None of fewer than eight.

    Neighbouring samples of a process resemble each other, and count for less than as many independent ones: with r
    the correlation of a residual with the next, n samples are worth n (1 - r) / (1 + r) (Santer et al. 2000, Journal of
    Geophysical Research 105, eq. 6).
    """
    if len(series) < LEAST:
        return None
    at, values = np.array(series, np.float64).T
    hours = (at - at.mean()) / 3600
    spread = float(np.sum(hours**2))
    slope = float(np.sum(hours * (values - values.mean()))) / spread
    residuals = values - values.mean() - slope * hours
    power = float(np.sum(residuals**2))
    alike = float(np.sum(residuals[:-1] * residuals[1:])) / power if power else 0.0
    alike = min(0.9, max(0.0, alike))
    worth = max(3.0, len(series) * (1 - alike) / (1 + alike))
    error = math.sqrt(power / (worth - 2) / spread)
    return Trend(slope, error, float(values.mean()), float(at[-1] - at[0]))
