"""TensorRT's library itself: where it is, what it logs, what it calls torch's types."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from handler.errors import ArtifactError, EnvironmentFault
from handler.plans import LIBRARIES

#: TensorRT's names of types, and torch's.
_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


def libraries(names: Sequence[str] = LIBRARIES) -> dict[str, Any]:
    """The modules among ``names`` that can be imported here, by name.

    Raises:
        EnvironmentFault: none of them.
    """
    found, reasons = {}, []
    for name in names:
        try:
            found[name] = importlib.import_module(name)
        except ImportError as error:
            reasons.append(f"{name}: {error}")
    if not found:
        raise EnvironmentFault(f"engine trt needs the package {' or '.join(names)}: {'; '.join(reasons)}")
    return found


def logger(library: Any) -> Any:
    """A logger for the library, whose ``errors`` are the lines of that severity, the last twenty."""

    class Log(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR):
                self.errors = [*self.errors, message][-20:]

    return Log()


def said(text: str, log: Any) -> str:
    """``text``, and the errors that such a logger has."""
    return "; ".join([text, *log.errors])


def torch_dtype(kind: Any) -> torch.dtype:
    """Torch's type for one of the library's.

    Raises:
        ArtifactError: torch has none.
    """
    if kind.name not in _DTYPES:
        raise ArtifactError(f"a tensor of the graph is {kind.name}: expected one of {', '.join(_DTYPES)}")
    return _DTYPES[kind.name]
