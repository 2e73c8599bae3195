"""Engines: named tensors in, named tensors out, on one device. One graph an engine."""

from __future__ import annotations

from pathlib import Path

import torch

from handler.config import Settings, engine_threads
from handler.engines.base import Engine, TensorSpec
from handler.errors import ConfigError, EnvironmentFault

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
    if settings.engine == "trt":
        from handler.engines import trt

        return trt.load(settings, folder, graph, device)
    if settings.engine == "torch":
        from handler.engines.torch_engine import TorchEngine

        if settings.precision == "fp16" and device.type == "cpu":
            raise EnvironmentFault(
                "PyTorch's fp16 programs are for a GPU, and torch sees none here: on a CPU they take some thirty times "
                "as long as fp32 ones; build with --precision fp32"
            )
        return TorchEngine(folder / "graphs" / f"{graph}.pt2", device, engine_threads(settings.threads))
    if settings.engine == "winograd":
        from handler.engines.winograd import WinogradEngine

        if device.type != "cpu":
            raise EnvironmentFault(
                f"engine winograd runs on CPUs, and the device is {device}: set device to cpu, or build another engine"
            )
        return WinogradEngine(folder / "graphs" / f"{graph}.json", engine_threads(settings.threads))
    raise ConfigError(f"engine is {settings.engine!r}: expected ort, trt, torch or winograd")
