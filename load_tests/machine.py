"""What a figure was measured on."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from handler.config import cores


def describe() -> str:
    """Processor, cores and the versions that matter, on one line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxruntime", "torchserve")
    )
    return f"{model}, {cores()} cores, Python {platform.python_version()}, {versions}"
