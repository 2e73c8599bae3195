"""Engines: named tensors in, named tensors out, on one device. One graph an engine."""

from __future__ import annotations

from pathlib import Path

import torch

from handler.engines.base import Engine, TensorSpec
from handler.errors import ConfigError

__all__ = ["Engine", "TensorSpec", "load"]


def load(name: str, graph: Path, device: torch.device, threads: int) -> Engine:
    """The engine called ``name`` on ``graph``; its library is imported only now.

    Args:
        name: as in ``detector.yaml``: ``ort``.
        graph: the file it runs.
        device: where its tensors live.
        threads: on a CPU.

    Raises:
        ConfigError: no engine of that name.
        ArtifactError: the graph is missing or is not one this engine reads.
        EnvironmentFault: the engine's library or the device is not there.
    """
    if name == "ort":
        from handler.engines.ort import OrtEngine

        return OrtEngine(graph, device, threads)
    raise ConfigError(f"engine is {name!r}: expected ort")
