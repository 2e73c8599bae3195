"""Engines: named tensors in, named tensors out, on one device. One graph an engine."""

from __future__ import annotations

from pathlib import Path

import torch

from handler.config import Settings, engine_threads
from handler.engines.base import Engine, TensorSpec
from handler.errors import ConfigError

__all__ = ["Engine", "TensorSpec", "load"]


def load(settings: Settings, folder: Path, graph: str, device: torch.device) -> Engine:
    """The engine that ``settings`` name on one graph of an archive; its library is imported only now.

    Args:
        settings: the archive's own.
        folder: of the unpacked archive.
        graph: its name: ``trunk``, ``score_head``, ``box_head`` or ``centerface``.
        device: where its tensors live.

    Raises:
        ConfigError: no engine of that name.
        ArtifactError: the graph is missing or is not one this engine reads.
        EnvironmentFault: the engine's library or the device is not there.
    """
    if settings.engine == "ort":
        from handler.engines.ort import OrtEngine

        return OrtEngine(folder / "graphs" / f"{graph}.onnx", device, engine_threads(settings.threads))
    raise ConfigError(f"engine is {settings.engine!r}: expected ort")
