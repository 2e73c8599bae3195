"""Memory that is out: told from other failures, and given back before the next try.

Each library says it in its own way: an error class of its own (Python, NumPy, PyTorch), or a sentence inside one that
it raises for everything (ONNX Runtime, TensorRT, the C++ libraries under both).
"""

from __future__ import annotations

import re

import torch

from handler.errors import DeviceLost, EngineError, OutOfMemory

#: ONNX Runtime's arena ("Failed to allocate memory for requested buffer"), C++ ("std::bad_alloc"), CUDA ("CUDA failure
#: 2: out of memory"), cuDNN and cuBLAS ("..._ALLOC_FAILED"), PyTorch on a CPU ("can't allocate memory: you tried
#: ..."), TensorRT ("Error Code 2: OutOfMemory"), and the system ("Cannot allocate memory").
_SAID = re.compile(
    r"out of memory|OutOfMemory|bad_alloc|bad allocation|ALLOC(ATION)?_FAILED|failed to allocate|"
    r"(cannot|can't|unable to) allocate",
    re.IGNORECASE,
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, says that memory was out."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DeviceLost):
            return False
        if isinstance(seen, MemoryError | torch.OutOfMemoryError | OutOfMemory) or _SAID.search(str(seen)):
            return True
        seen = seen.__cause__
    return False


def failure(error: Exception, images: int) -> EngineError | None:
    """What a failed run of the network means for its images.

    Args:
        error: that it raised.
        images: that ran together.

    Returns:
        OutOfMemory, without what ``error`` holds on to: its traceback keeps every tensor of the run alive. Any other
        EngineError as it is. None for what is no failure of an engine.
    """
    if out_of_memory(error):
        return OutOfMemory(
            f"memory was out over {'this image alone' if images == 1 else f'{images} images'}: send it again later, or "
            "ask for a smaller canvas"
        )
    return error if isinstance(error, EngineError) else None


def release() -> None:
    """Give back what torch's allocator keeps of a GPU's memory without using it: other libraries allocate past it."""
    # Where no GPU was used it does nothing.
    torch.cuda.empty_cache()
