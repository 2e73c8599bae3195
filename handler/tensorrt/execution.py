"""One execution context of a TensorRT plan: told its profile, scratch, shapes and addresses, then run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from handler.errors import EngineError, EnvironmentFault
from handler.plans import Shape
from handler.tensorrt.library import said


class Execution:
    """A context that remembers what it was told.

    Args:
        library: the module tensorrt or tensorrt_rtx.
        engine: the plan as the library has read it.
        graph: its name, for messages.
        log: the library's complaints, as :func:`handler.tensorrt.library.logger` makes it.

    Raises:
        EnvironmentFault: the GPU has not enough memory for one more.
    """

    def __init__(self, library: Any, engine: Any, graph: str, log: Any) -> None:
        self._graph = graph
        self._log = log
        strategy = library.ExecutionContextAllocationStrategy.USER_MANAGED
        self._context = engine.create_execution_context(strategy)
        if self._context is None:
            raise EnvironmentFault(said(f"no execution context for {graph}", log))
        # Profile and scratch as the context knows them.
        self._state: tuple[int, int] | None = None

    def prepare(self, index: int, scratch: torch.Tensor, stream: int) -> None:
        """Name a profile and the scratch, where the context has others; a scratch grows as engines are loaded."""
        if self._state == (index, scratch.data_ptr()):
            return
        self._done(self._context.set_optimization_profile_async(index, stream), f"takes no profile {index}")
        self._context.set_device_memory(scratch.data_ptr(), scratch.numel())
        self._state = index, scratch.data_ptr()

    def shapes(self, inputs: Mapping[str, Shape], outputs: Iterable[str]) -> dict[str, Shape]:
        """Name the inputs' shapes.

        Returns:
            The outputs' shapes.

        Raises:
            EngineError: inputs that the profile does not take.
        """
        for name, shape in inputs.items():
            self._done(self._context.set_input_shape(name, shape), f"takes no {name!r} of {shape}")
        rows = next(iter(inputs.values()))[0]
        found = {name: tuple(self._context.get_tensor_shape(name)) for name in outputs}
        for name, shape in found.items():
            if min(shape) < 0 or shape[0] != rows:
                raise EngineError(said(f"{self._graph} cannot tell the shape of {name!r}: {shape}", self._log))
        return found

    def run(self, tensors: Mapping[str, torch.Tensor], stream: int) -> None:
        """Run on these inputs and outputs, whose addresses the library takes as they are.

        Raises:
            EngineError: the library refuses or fails.
        """
        for name, tensor in tensors.items():
            done = self._context.set_tensor_address(name, tensor.data_ptr())
            self._done(done, f"takes no address of {name!r}")
        self._done(self._context.execute_async_v3(stream), "cannot run")

    def _done(self, done: bool, what: str) -> None:
        if not done:
            raise EngineError(said(f"{self._graph} {what}", self._log))
