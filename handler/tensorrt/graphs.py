"""CUDA graphs of a plan: one launch in the place of the hundreds of kernels that a run else launches one by one.

No GPU has run this module yet; the tests run it through a TensorRT and a device that are openly fakes.

A recording holds the addresses it was made with, so the inputs are copied to where it reads and the outputs from where
it writes. All recordings of an engine share that memory: they run one after the other. And it holds the state of its
execution context, so each has a context of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from handler.cuda import Device
from handler.plans import Shape
from handler.tensorrt.execution import Execution

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """What is worth a recording, its batch free.

    Attributes:
        shape: of the input, the batch left out.
        index: of its profile.
        most: rows that run together at most.
    """

    shape: Shape
    index: int
    most: int


@dataclass(frozen=True)
class Recording:
    """One run, to be had again.

    Attributes:
        input: to copy to before it.
        outputs: to copy from after it.
        replay: runs it, on the device's stream.
        execution: must live as long, and is used for nothing else.
        scratch: likewise.
    """

    input: torch.Tensor
    outputs: Tensors
    replay: Callable[[], None]
    execution: Execution
    scratch: torch.Tensor


class Graphs:
    """The recordings of one engine, each made when its shape first comes.

    Args:
        device: see Device.
        execution: makes a context.
        source: name and type of the graph's only input.
        outputs: types of its outputs, by name.
        sizes: what may be recorded; a number of recordings that has no bound would take all memory.
    """

    def __init__(
        self,
        device: Device,
        execution: Callable[[], Execution],
        source: tuple[str, torch.dtype],
        outputs: Mapping[str, torch.dtype],
        sizes: Sequence[Size],
    ) -> None:
        self._device = device
        self._execution = execution
        self._source = source[0]
        self._types = {source[0]: source[1], **outputs}
        self._sizes = {size.shape: size for size in sizes}
        self._memory: dict[str, torch.Tensor] = {}
        self._recordings: dict[Shape, Recording] = {}

    def take(self, shape: Shape) -> bool:
        """Whether inputs of this shape, whatever their batch, run by recordings."""
        return shape[1:] in self._sizes

    def parts(self, shape: Shape) -> Iterator[slice]:
        """A batch in parts of recorded sizes, the largest powers of two that fit: 7 as 4, 2 and 1."""
        start, most = 0, self._sizes[shape[1:]].most
        while start < shape[0]:
            size = 1 << (min(shape[0] - start, most).bit_length() - 1)
            yield slice(start, start + size)
            start += size

    def run(self, given: torch.Tensor, scratch: torch.Tensor, stream: int) -> Tensors:
        """Run one part by its recording.

        Args:
            given: the input.
            scratch: the worker's.
            stream: the device's, open.

        Returns:
            The recording's own tensors, which the next run of this engine writes to.

        Raises:
            EngineError: the library refuses.
            RuntimeError: out of memory, or another failure of the device.
        """
        shape = tuple(given.shape)
        recording = self._recordings.get(shape)
        # A larger scratch comes with a later engine; what was recorded in the old one does not know of it.
        if recording is None or recording.scratch is not scratch:
            recording = self._recordings[shape] = self._record(shape, scratch, stream)
        recording.input.copy_(given)
        recording.replay()
        return recording.outputs

    def _record(self, shape: Shape, scratch: torch.Tensor, stream: int) -> Recording:
        execution = self._execution()
        if not self._memory:
            self._reserve(execution, scratch, stream)
        tensors = {name: self._tensor(name, each) for name, each in self._shapes(execution, shape, scratch, stream)}
        # Once unrecorded: TensorRT does what a new shape needs in its first run, and that cannot be recorded.
        tensors[self._source].zero_()
        execution.run(tensors, stream)
        replay = self._device.record(lambda handle: execution.run(tensors, handle))
        outputs = {name: tensor for name, tensor in tensors.items() if name != self._source}
        return Recording(tensors[self._source], outputs, replay, execution, scratch)

    def _reserve(self, execution: Execution, scratch: torch.Tensor, stream: int) -> None:
        """Memory for the largest of each tensor: addresses must not change once something is recorded."""
        needed: dict[str, int] = dict.fromkeys(self._types, 0)
        for size in self._sizes.values():
            for name, shape in self._shapes(execution, (size.most, *size.shape), scratch, stream):
                needed[name] = max(needed[name], self._bytes(name, shape))
        self._memory = {name: self._device.empty((size,), torch.uint8) for name, size in needed.items()}

    def _shapes(
        self, execution: Execution, shape: Shape, scratch: torch.Tensor, stream: int
    ) -> Iterator[tuple[str, Shape]]:
        execution.prepare(self._sizes[shape[1:]].index, scratch, stream)
        outputs = [name for name in self._types if name != self._source]
        yield self._source, shape
        yield from execution.shapes({self._source: shape}, outputs).items()

    def _tensor(self, name: str, shape: Shape) -> torch.Tensor:
        return self._memory[name][: self._bytes(name, shape)].view(self._types[name]).reshape(shape)

    def _bytes(self, name: str, shape: Shape) -> int:
        return math.prod(shape) * self._types[name].itemsize
