"""What every engine is: checks of names, types and shapes round one call."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from handler.errors import EngineError


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Attributes:
        name: of the tensor.
        dtype: of its elements.
        shape: a number a fixed axis, a name a free one; equal names within a call must agree.
        optional: an input with a value of its own where none is given.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    optional: bool = False


class Engine(abc.ABC):
    """One graph, loaded, on one device. Not for two threads at once.

    Attributes:
        inputs: by name.
        outputs: by name.
        device: where inputs are taken and outputs given.
    """

    #: Whether the library reads elements in the order of the axes, whatever a tensor's strides say.
    contiguous: ClassVar[bool] = True

    def __init__(
        self, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], device: torch.device
    ) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self.device = device

    def run(self, feeds: Mapping[str, torch.Tensor]) -> MutableMapping[str, torch.Tensor]:
        """Run the graph.

        Args:
            feeds: every input by name; optional ones may be missing.

        Returns:
            Every output by name, on ``device``. An engine may leave the work for an output until it is first looked
            up, so delete what is not wanted, and leave the feeds as they are until then.

        Raises:
            EngineError: a feed that does not fit the graph, or a failure inside the library; of an output that was
                left until later, where it is looked up.
        """
        self._check(feeds)
        return self._run({name: self._take(tensor) for name, tensor in feeds.items()})

    def takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether inputs of these names and shapes can run; may be asked from many threads at once.

        Args:
            shapes: by name, the batch first, which may be any.
        """
        return self._named(shapes) and all(
            len(shape) == len(self.inputs[name].shape)
            and all(
                isinstance(axis, str) or axis == size for axis, size in zip(self.inputs[name].shape, shape, strict=True)
            )
            for name, shape in shapes.items()
        )

    def _named(self, given: Iterable[str]) -> bool:
        needed = {name for name, spec in self.inputs.items() if not spec.optional}
        return needed <= set(given) <= set(self.inputs)

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on this device, contiguous where the library needs it."""
        placed = tensor.to(self.device)
        return placed.contiguous() if self.contiguous else placed

    @abc.abstractmethod
    def _run(self, feeds: dict[str, torch.Tensor]) -> MutableMapping[str, torch.Tensor]:
        """Run on checked tensors of this device, contiguous where the library needs it."""

    def _check(self, feeds: Mapping[str, torch.Tensor]) -> None:
        if not self._named(feeds):
            raise EngineError(f"inputs {sorted(feeds)} given, {sorted(self.inputs)} expected")
        sizes: dict[str, int] = {}
        for name, tensor in feeds.items():
            spec = self.inputs[name]
            if tensor.dtype != spec.dtype:
                raise EngineError(f"input {name!r} is {tensor.dtype}, expected {spec.dtype}")
            fits = tensor.dim() == len(spec.shape) and all(
                size == (axis if isinstance(axis, int) else sizes.setdefault(axis, size))
                for size, axis in zip(tensor.shape, spec.shape, strict=True)
            )
            if not fits:
                raise EngineError(f"input {name!r} is {list(tensor.shape)}, expected {list(spec.shape)}")
