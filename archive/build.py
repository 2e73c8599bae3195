"""Weights -> graphs -> archive, each step left out when what it would make is there already."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archive import centerface, export, network
from archive.checkpoint import Checkpoint, obtain
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

    def graphs(self, model: str, weights: str, *sources: Path) -> Path:
        """A folder named by what the graphs are made of, so that one that exists is up to date.

        Args:
            model: whose they are.
            weights: a hash of them.
            sources: the code that makes the graphs.
        """
        digest = hashlib.sha256(weights.encode())
        for package in ("onnx", "torch"):
            digest.update(importlib.metadata.version(package).encode())
        for path in sources:
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
    folder = workspace.graphs("centerface", sha256(source), Path(centerface.__file__))
    target = folder / "centerface.onnx"
    if not target.exists():
        centerface.export(source, target)
    return {"centerface.onnx": target}


def export_mogface(workspace: Workspace, checkpoint: Checkpoint) -> dict[str, Path]:
    """MogFace's three graphs, and CenterFace's for the landmarks, by their names in the archive."""
    sources = (Path(network.__file__), Path(export.__file__))
    folder = workspace.graphs("mogface", checkpoint.fingerprint(), *sources)
    paths = {f"{graph.name}.onnx": folder / f"{graph.name}.onnx" for graph in export.GRAPHS}
    if not all(path.exists() for path in paths.values()):
        export.export(checkpoint, folder)
    return {**paths, **export_centerface(workspace)}


def build(model: str, workspace: Workspace, weights: str, engine_name: str, version: str) -> tuple[Path, bool]:
    """An archive in the model store; and whether it had to be written.

    Args:
        model: ``centerface`` or ``mogface``.
        workspace: where everything lies.
        weights: MogFace's: ``hub``, ``seeded:N`` or a file.
        engine_name: ``auto`` or an engine.
        version: of the archive.

    Raises:
        SetupError: what is wrong with the weights, a graph or the machine.
    """
    if model == "centerface":
        if weights != "hub":
            raise ConfigError(f"weights are {weights!r}: CenterFace has its own; the choice is MogFace's")
        label, graphs = centerface.LABEL, export_centerface(workspace)
        # CenterFace's own thresholds; its points cost nothing.
        options = Options(score_threshold=0.5, nms_threshold=0.3, landmarks=True)
    else:
        checkpoint = obtain(weights)
        label, graphs = checkpoint.label, export_mogface(workspace, checkpoint)
        # The released detector's thresholds. Landmarks cost a second network: on request.
        options = Options(score_threshold=0.82, nms_threshold=0.4)
    settings = Settings(detector=model, weights=label, options=options, engine=engine(engine_name))
    target = workspace.store / f"{model}.mar"
    return target, pack(Recipe(model, version, settings, graphs), target)


def archives(store: Path) -> Sequence[Path]:
    """Every .mar of the model store."""
    return sorted(store.glob("*.mar"))
