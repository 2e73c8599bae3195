"""Optimisation profiles: which batches and sizes a plan takes, out of an archive's canvases."""

from __future__ import annotations

from collections.abc import Sequence

from handler import shapes
from handler.detectors import centerface, landmarks
from handler.errors import ConfigError
from handler.geometry import Canvas
from handler.plans import Profile, Range


def profiles(
    detector: str, graph: str, canvases: Sequence[Canvas], long_side: int, batch: int, finest_batch: int
) -> tuple[Profile, ...]:
    """The profiles of one graph.

    A plan's scratch is as large as the largest shape of its profiles makes it. So the canvases that requests get
    unasked, those within ``long_side``, are one group with the full batch, and the larger ones another with as
    small a batch as keeps its pixels about under the first's; a larger batch runs in parts. In each group the
    trunk has one profile, the heads one a pyramid level.

    Args:
        detector: whose archive it is.
        graph: of its graphs.
        canvases: the archive's.
        long_side: the archive's.
        batch: images that run together.
        finest_batch: the same for the heads on the finest level, which alone is two thirds of all the work.

    Raises:
        ConfigError: a batch under 1.
    """
    for name, value in {"batch": batch, "finest_batch": finest_batch}.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}: expected 1 or more")
    if detector == "mogface" and graph == centerface.GRAPH:
        return (_profile(detector, graph, list(canvases), 0, landmarks.BATCH),)
    common = [canvas for canvas in canvases if max(canvas) <= long_side]
    large = [canvas for canvas in canvases if max(canvas) > long_side]
    found = []
    for group in filter(None, (common, large)):
        fewer = batch if group is common or not common else max(1, batch * _area(common) // _area(group))
        count = len(shapes.inputs(detector, graph, group[0])[1])
        for level in range(count):
            limit = min(fewer, finest_batch) if count > 1 and level == 0 else fewer
            found.append(_profile(detector, graph, group, level, limit))
    return tuple(found)


def _profile(detector: str, graph: str, group: list[Canvas], level: int, batch: int) -> Profile:
    """From the least to the largest size of each axis, tuned for the group's first canvas."""
    name = shapes.inputs(detector, graph, group[0])[0]
    found = [shapes.inputs(detector, graph, canvas)[1][level] for canvas in group]
    low = tuple(min(sizes) for sizes in zip(*found, strict=True))
    high = tuple(max(sizes) for sizes in zip(*found, strict=True))
    return {name: Range((1, *low), (batch, *found[0]), (batch, *high))}


def _area(group: list[Canvas]) -> int:
    """Pixels of the rectangle that holds every canvas of the group: what a profile has to provide for."""
    return max(canvas.height for canvas in group) * max(canvas.width for canvas in group)
