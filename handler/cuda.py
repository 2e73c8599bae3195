"""The GPU as the runner of plans sees it, by way of torch; the tests put the CPU in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from handler.errors import EnvironmentFault


class Device(Protocol):
    """What the runner needs of a GPU."""

    device: torch.device

    def capability(self) -> str:
        """Its compute capability, such as ``sm86``."""

    def free(self) -> int:
        """Bytes of its memory that are not in use."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for a tensor, its address a multiple of 256."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, contiguous and in the GPU's memory."""

    def stream(self) -> contextlib.AbstractContextManager[int]:
        """Handle of a stream, on which all that is done within comes after what was asked for before, and before
        what will be asked for later.
        """

    def record(self, work: Callable[[int], None]) -> Callable[[], None]:
        """Record what ``work`` asks of the stream whose handle it is given; nothing of it is run.

        Returns:
            What runs it, as often as it is called, within :meth:`stream`.
        """

    def alive(self) -> bool:
        """Whether it still answers this process."""


def alive(device: torch.device) -> bool:
    """Whether the device still answers this process; a CPU always does.

    After an illegal address, a failed assertion or a fault of the hardware a GPU answers each call of the process with
    that error, for good. Other errors are told once. So another call tells them apart.
    """
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


class Cuda:
    """A GPU, by way of torch.

    Raises:
        EnvironmentFault: there is none.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda" or not torch.cuda.is_available():
            raise EnvironmentFault(f"engine trt needs a GPU that torch sees: the device is {device}")
        # Plans are read onto the current device.
        torch.cuda.set_device(device)
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capability(self) -> str:
        """Its compute capability, such as ``sm86``."""
        major, minor = torch.cuda.get_device_capability(self.device)
        return f"sm{major}{minor}"

    def free(self) -> int:
        """Bytes that no process has taken."""
        return torch.cuda.mem_get_info(self.device)[0]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """From torch's allocator, which aligns to 512 bytes."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """By way of pinned memory, which torch keeps until the copy is through, and then for the next one."""
        if tensor.device.type == "cpu":
            return tensor.contiguous().pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device).contiguous()

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        """The engines' own stream: TensorRT synchronises the whole GPU when it is given the default one.

        It waits for what is on the caller's stream, which then waits for it. That also makes torch's reuse of
        memory safe: whatever block is written to next, both streams are through with it.
        """
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                handle: int = self._stream.cuda_stream
                yield handle
        finally:
            current.wait_stream(self._stream)

    def record(self, work: Callable[[int], None]) -> Callable[[], None]:
        """By a CUDA graph. Errors are of this thread alone: others copy pictures meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            handle: int = self._stream.cuda_stream
            work(handle)
        return graph.replay

    def alive(self) -> bool:
        """See :func:`alive`."""
        return alive(self.device)
