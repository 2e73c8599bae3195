"""GPU memory of one worker: what its plans, their scratch and its tensors come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from handler.config import Settings
from handler.detectors import centerface, landmarks
from handler.errors import EnvironmentFault
from handler.geometry import Canvas
from handler.plans import Sidecar
from handler.shapes import CONTEXT, FEATURES, inputs

#: What CUDA and the libraries take before the first plan. An assumption, on the safe side; at load it is not used,
#: because by then it has been taken and the GPU says what is left.
CUDA_BASE = 600 << 20
#: Channels of each output; the trunk's, one a level, are not listed.
_CHANNELS = {"scores": 1, "context": CONTEXT, "offsets": 4, "heatmap": 1, "size": 2, "offset": 2, "points": 10}


@dataclass(frozen=True)
class Need:
    """Bytes of GPU memory that one worker takes at most.

    Attributes:
        base: of CUDA itself.
        plans: weights, counted as the size of the plan files.
        scratch: one for all graphs, which run one after the other.
        tensors: inputs and outputs of one batch, as if all were alive at once.
        unknown: graphs whose scratch is not recorded, because they were built where there was no GPU.
    """

    base: int
    plans: int
    scratch: int
    tensors: int
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Their sum; without what is unknown."""
        return self.base + self.plans + self.scratch + self.tensors

    def __str__(self) -> str:
        parts = ("base", "plans", "scratch", "tensors")
        text = ", ".join(f"{part} {_mib(getattr(self, part))}" for part in parts)
        if self.unknown:
            text += f"; without the scratch of {', '.join(self.unknown)}, not recorded"
        return f"{_mib(self.total)} of GPU memory ({text})"


def need(
    detector: str,
    sidecars: Iterable[Sidecar],
    canvases: Sequence[Canvas],
    batch: int,
    base: int = CUDA_BASE,
    recorded: Sequence[str] = (),
) -> Need:
    """What a worker with these plans takes.

    Args:
        detector: ``mogface`` or ``centerface``.
        sidecars: of all its plans.
        canvases: that it may run at; the largest counts.
        batch: images that run together.
        base: bytes taken before the first plan.
        recorded: graphs that run by CUDA graphs, whose inputs and outputs exist twice.
    """
    sidecars = list(sidecars)
    tensors = max(
        sum(_tensors(detector, each, canvas, batch) for each in sidecars)
        + sum(_tensors(detector, each, canvas, batch, copied=True) for each in sidecars if each.graph in recorded)
        for canvas in canvases
    )
    unknown = tuple(each.graph for each in sidecars if each.device_memory is None)
    scratch = max((each.device_memory or 0 for each in sidecars), default=0)
    return Need(base, sum(each.plan_bytes for each in sidecars), scratch, tensors, unknown)


def recorded(settings: Settings) -> tuple[str, ...]:
    """The graphs that run by CUDA graphs: those that have the same few shapes in every batch, where it is set."""
    return ("trunk", "score_head") if settings.cuda_graphs else ()


def require(needed: Need, free: int) -> None:
    """Raises EnvironmentFault where ``needed`` is over ``free`` bytes."""
    if needed.total > free:
        raise EnvironmentFault(
            f"the plans need {needed}, {_mib(free)} are free: fewer workers on this GPU, a smaller "
            "engine_batch, fewer canvases, or plans of a smaller batch"
        )


def _tensors(detector: str, sidecar: Sidecar, canvas: Canvas, batch: int, *, copied: bool = False) -> int:
    """Bytes of one graph's outputs, and of its input where it comes from the CPU or is ``copied``."""
    name, shapes = inputs(detector, sidecar.graph, canvas)
    if name == "image":
        uploaded = math.prod(shapes[0])
        levels = [math.prod(shape[1:]) for shape in inputs(detector, "score_head", canvas)[1]]
    else:
        levels = [math.prod(shape[1:]) for shape in shapes]
        # As wide as what leaves: both go from graph to graph.
        kind = sidecar.outputs.get("context", "float32")
        uploaded = sum(map(math.prod, shapes)) * _width(kind) if copied else 0
    if sidecar.graph == centerface.GRAPH:
        side = centerface.STRIDE
        cells = dict.fromkeys(sidecar.outputs, shapes[0][0] // side * (shapes[0][1] // side))
        if detector == "mogface":
            batch = landmarks.BATCH
    elif sidecar.graph == "trunk":
        cells = dict(zip(sorted(sidecar.outputs), levels, strict=True))
    else:
        cells = dict.fromkeys(sidecar.outputs, sum(levels))
    width = {output: _width(kind) for output, kind in sidecar.outputs.items()}
    outputs = sum(count * _CHANNELS.get(output, FEATURES) * width[output] for output, count in cells.items())
    return batch * (uploaded + outputs)


def _width(kind: str) -> int:
    """Bytes of one element of torch's type of this name."""
    return int(getattr(torch, kind).itemsize)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
