"""Weights -> graphs -> archive, each step left out when what it would make is there already."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archive import centerface
from archive.files import sha256
from archive.pack import Recipe, pack
from handler.config import Settings
from handler.errors import ConfigError
from handler.options import Options

VERSION = "1.0"
MODELS = ("centerface", "mogface")


@dataclass(frozen=True)
class Workspace:
    """Where what is built lies.

    Attributes:
        build: for weights and graphs.
        store: TorchServe's model store.
    """

    build: Path
    store: Path

    def weights(self) -> Path:
        """The folder of weights."""
        return self.build / "weights"

    def graphs(self, model: str, *inputs: Path) -> Path:
        """A folder named by what the graphs are made of, so that one that exists is up to date."""
        digest = hashlib.sha256()
        for package in ("onnx", "torch"):
            digest.update(importlib.metadata.version(package).encode())
        for path in inputs:
            digest.update(sha256(path).encode())
        return self.build / "graphs" / f"{model}-{digest.hexdigest()[:12]}"


def engine(name: str) -> str:
    """``auto`` resolved for this machine; an archive never says ``auto``.

    Raises:
        ConfigError: no such engine.
    """
    if name in ("auto", "ort"):
        return "ort"
    raise ConfigError(f"engine is {name!r}: expected auto or ort")


def export_centerface(workspace: Workspace) -> dict[str, Path]:
    """CenterFace's graph, by its name in the archive."""
    source = centerface.fetch(workspace.weights())
    target = workspace.graphs("centerface", source, Path(centerface.__file__)) / "centerface.onnx"
    if not target.exists():
        centerface.export(source, target)
    return {"centerface.onnx": target}


def build_centerface(workspace: Workspace, engine_name: str, version: str) -> tuple[Path, bool]:
    """The embedded detector's archive; and whether it had to be written."""
    settings = Settings(
        detector="centerface",
        weights=centerface.LABEL,
        # CenterFace's own thresholds; its points cost nothing.
        options=Options(score_threshold=0.5, nms_threshold=0.3, landmarks=True),
        engine=engine(engine_name),
    )
    target = workspace.store / "centerface.mar"
    written = pack(Recipe("centerface", version, settings, export_centerface(workspace)), target)
    return target, written


def archives(store: Path) -> Sequence[Path]:
    """Every .mar of the model store."""
    return sorted(store.glob("*.mar"))
