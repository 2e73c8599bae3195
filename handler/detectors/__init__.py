"""Detectors: upright images in, faces out. Which one is a setting of the archive."""

from __future__ import annotations

from pathlib import Path

import torch

from handler.config import Settings
from handler.detectors.base import Detector, Prepared, Result
from handler.errors import ConfigError

__all__ = ["Detector", "Prepared", "Result", "load"]


def load(folder: Path, settings: Settings, device: torch.device) -> Detector:
    """The detector that ``settings`` name, on the graphs in ``folder``.

    Raises:
        ConfigError: no detector of that name.
        ArtifactError, EnvironmentFault: from the engines.
    """
    if settings.detector == "centerface":
        from handler.detectors.centerface import CenterFace

        return CenterFace.load(folder, settings, device)
    if settings.detector == "mogface":
        from handler.detectors.mogface import MogFace

        return MogFace.load(folder, settings, device)
    raise ConfigError(f"detector is {settings.detector!r}: expected mogface or centerface")
