"""Weights -> graphs -> archive, each step left out when what it would make is there already."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from archive import centerface, export, gate, network, precision, programs, winograd
from archive.checkpoint import Checkpoint, obtain
from archive.files import sha256, whole
from archive.pack import Recipe, pack
from handler.config import ENGINES, Settings
from handler.errors import ConfigError
from handler.options import Options
from handler.plans import Flags

VERSION = "1.0"
MODELS = ("centerface", "mogface")
#: Images that a GPU runs together, unless told otherwise; a CPU gains nothing from more than one.
GPU_BATCH = 8
#: Settings that say what is in an archive: no others can be chosen.
_BUILT = ("detector", "weights", "engine", "precision")


@dataclass(frozen=True)
class Workspace:
    """Where what is built lies.

    Attributes:
        build: for weights, graphs and plans.
        store: TorchServe's model store.
    """

    build: Path
    store: Path

    def weights(self) -> Path:
        """The folder of weights."""
        return self.build / "weights"

    def plans(self) -> Path:
        """The folder of TensorRT plans, one folder a target in it."""
        return self.build / "plans"

    def graphs(self, model: str, weights: str, *sources: Path) -> Path:
        """A folder named by what the graphs are made of, so that one that exists is up to date.

        Args:
            model: whose they are.
            weights: a hash of them, and of what else goes in.
            sources: the code that makes the graphs.
        """
        digest = hashlib.sha256(weights.encode())
        for package in ("onnx", "torch", "onnxruntime"):
            digest.update(_version(package).encode())
        for path in sources:
            digest.update(sha256(path).encode())
        return self.build / "graphs" / f"{model}-{digest.hexdigest()[:12]}"


@dataclass(frozen=True)
class Wanted:
    """What an archive is to be.

    Attributes:
        model: ``centerface`` or ``mogface``.
        weights: MogFace's: ``hub``, ``seeded:N`` or a file; CenterFace has its own.
        engine: ``auto``, ``ort``, ``torch``, ``trt`` or ``winograd``.
        precision: ``fp32``, ``fp16`` or ``int8``.
        group_norm: type of GroupNorm's arithmetic in FP16 graphs: ``fp32`` or ``fp16``.
        fp32_layers: layers of MogFace's trunk that stay FP32 in FP16 graphs: ``none``, ``stem`` or ``backbone``.
        calibration: folder of pictures, for ``int8``.
        batch: images that run together; None is 8 where there is a GPU, else 1.
        version: of the archive.
        changes: to ``detector.yaml``, as plain YAML values; those of ``limits`` and ``options`` one by one.
    """

    model: str
    weights: str = "hub"
    engine: str = "auto"
    precision: str = "fp32"
    group_norm: str = "fp32"
    fp32_layers: str = "stem"
    calibration: Path | None = None
    batch: int | None = None
    version: str = VERSION
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"model is {self.model!r}: expected one of {', '.join(MODELS)}")
        if self.model == "centerface" and self.weights != "hub":
            raise ConfigError(f"weights are {self.weights!r}: CenterFace has its own; the choice is MogFace's")
        if not re.fullmatch(r"\d+(\.\d+)*", self.version):
            raise ConfigError(f"version is {self.version!r}: expected numbers with dots, such as {VERSION}")
        object.__setattr__(self, "engine", resolve(self.engine, self.model, self.precision))
        if self.engine == "winograd" and self.precision != "fp32":
            raise ConfigError(f"precision is {self.precision}: engine winograd runs fp32 alone; ort runs all on a CPU")
        if self.engine == "torch" and self.precision == "int8":
            raise ConfigError("precision is int8: engine torch runs fp32 and fp16; ort and trt run int8")
        if self.batch is None:
            on_gpu = torch.cuda.is_available() and self.engine != "winograd"
            object.__setattr__(self, "batch", GPU_BATCH if on_gpu else 1)


def resolve(engine: str, model: str, precision: str) -> str:
    """``auto`` for this machine; an archive never says ``auto``.

    On a GPU TensorRT where it is installed, else PyTorch. On a CPU ncnn's Winograd convolutions for MogFace in FP32,
    where it and its converter are installed; else ONNX Runtime, on which CenterFace, mostly of other convolutions, is
    no slower.

    Raises:
        ConfigError: no such engine.
    """
    if engine == "auto":
        if torch.cuda.is_available():
            return "trt" if importlib.util.find_spec("tensorrt") else "torch"
        installed = all(importlib.util.find_spec(package) for package in ("ncnn", "pnnx"))
        return "winograd" if (model, precision) == ("mogface", "fp32") and installed else "ort"
    if engine not in ENGINES:
        raise ConfigError(f"engine is {engine!r}: expected auto, {', '.join(ENGINES)}")
    return engine


def _changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with others of their keys.

    Raises:
        ConfigError: a key that follows from what is built, an unknown one, or a wrong value.
    """
    values = yaml.safe_load(settings.dump())
    for name, value in changes.items():
        if name in _BUILT:
            raise ConfigError(f"{name} is no setting to choose: it says what is in the archive")
        values[name] = values[name] | value if isinstance(values.get(name), dict) and isinstance(value, dict) else value
    return Settings.from_mapping(values)


@dataclass(frozen=True)
class Build:
    """The steps towards one archive.

    Attributes:
        wanted: what it is to be.
        workspace: where everything lies.

    Raises:
        SetupError: what is wrong with the weights, a graph or the machine; of every method too.
    """

    wanted: Wanted
    workspace: Workspace

    @functools.cached_property
    def _checkpoint(self) -> Checkpoint | None:
        return obtain(self.wanted.weights) if self.wanted.model == "mogface" else None

    @functools.cached_property
    def settings(self) -> Settings:
        """For ``detector.yaml``."""
        if self._checkpoint:
            # The released detector's thresholds. Landmarks cost a second network: on request.
            label, options = self._checkpoint.label, Options(score_threshold=0.82, nms_threshold=0.4)
        else:
            # CenterFace's own thresholds; its points cost nothing.
            label, options = centerface.LABEL, Options(score_threshold=0.5, nms_threshold=0.3, landmarks=True)
        settings = Settings(
            detector=self.wanted.model,
            weights=label,
            options=options,
            engine=self.wanted.engine,
            precision=self.wanted.precision,
            device="cpu" if self.wanted.engine == "winograd" else "auto",
            engine_batch=self.wanted.batch if self.wanted.batch is not None else 1,
        )
        return _changed(settings, self.wanted.changes)

    def archive(self, plans: Sequence[Path] = (), images: Sequence[Path] = ()) -> tuple[Path, bool]:
        """The archive in the model store; and whether it had to be written.

        One in another precision or on another engine than ONNX Runtime's FP32 is compared with that first, and does
        not reach the model store unless it finds the same faces.

        Args:
            plans: as for :meth:`pack`.
            images: files to compare on; none takes the known photograph.

        Raises:
            ArtifactError: what the comparison found.
        """
        if (self.wanted.engine, self.wanted.precision) == ("ort", "fp32"):
            return self.pack(plans)
        target = self.workspace.store / f"{self.wanted.model}.mar"
        candidates = dataclasses.replace(self.workspace, store=self.workspace.build / "candidate")
        candidate, _ = dataclasses.replace(self, workspace=candidates).pack(plans)
        if target.exists() and sha256(target) == sha256(candidate):
            return target, False
        reference = self._reference()
        report = gate.against(reference, candidate, images or gate.known())
        print(report.table())
        report.refuse()
        with whole(target) as draft:
            shutil.copyfile(candidate, draft)
        return target, True

    def _reference(self) -> Path:
        """The same detector on ONNX Runtime in FP32, on the CPU."""
        settings = dataclasses.replace(
            self.settings,
            engine="ort",
            precision="fp32",
            device="cpu",
            engine_batch=1,
            # For other engines, or answering in the network's place.
            finest_batch=0,
            cuda_graphs=False,
            cache_bytes=0,
        )
        target = self.workspace.build / "reference" / f"{self.wanted.model}.mar"
        pack(Recipe(self.wanted.model, self.wanted.version, settings, self._fp32()), target)
        return target

    def pack(self, plans: Sequence[Path] = ()) -> tuple[Path, bool]:
        """The archive in the model store, as it comes; and whether it had to be written.

        Args:
            plans: folders of TensorRT plans, for the engine ``trt``; none builds them on this machine's GPU.

        Raises:
            ConfigError: plans for another engine.
        """
        graphs: dict[str, Path] = {}
        if self.wanted.engine == "trt":
            plans = plans or self.plans()
        elif plans:
            raise ConfigError(f"plans are for the engine trt, and engine is {self.wanted.engine!r}")
        else:
            make = {"torch": self.programs, "winograd": self.converted}.get(self.wanted.engine, self.graphs)
            graphs = make()
        recipe = Recipe(self.wanted.model, self.wanted.version, self.settings, graphs, plans)
        target = self.workspace.store / f"{self.wanted.model}.mar"
        return target, pack(recipe, target)

    def graphs(self) -> dict[str, Path]:
        """ONNX graphs of the wanted precision, by their names in the archive."""
        fp32 = self._fp32()
        if self.wanted.precision == "fp32":
            return fp32
        wanted = self.wanted
        how = {"group_norm": wanted.group_norm, "fp32_layers": wanted.fp32_layers}
        shown = wanted.calibration
        made_of = "".join(sha256(path) for path in fp32.values())
        made_of += precision.fingerprint(wanted.precision, **how, calibration=shown, settings=self.settings)
        folder = self.workspace.graphs(self.wanted.model, made_of, *precision.SOURCES)
        paths = {name: folder / name for name in fp32}
        if _all(paths):
            return paths
        return precision.convert(fp32, folder, wanted.precision, **how, calibration=shown, settings=self.settings)

    def programs(self) -> dict[str, Path]:
        """The same as exported torch programs."""
        source = self._fp32()["centerface.onnx"]
        made_of = sha256(source) + self.wanted.precision
        made_of += self._checkpoint.fingerprint() if self._checkpoint else ""
        code = (Path(network.__file__), Path(programs.__file__), Path(programs.__file__).with_name("onnx_module.py"))
        folder = self.workspace.graphs(self.wanted.model, made_of, *code)
        names = ["centerface"] + (["trunk", "score_head", "box_head"] if self._checkpoint else [])
        paths = {f"{name}.pt2": folder / f"{name}.pt2" for name in names}
        if _all(paths):
            return paths
        if self._checkpoint:
            return programs.export_programs(self._checkpoint, source, folder, self.wanted.precision)
        return programs.export_centerface(source, folder, self.wanted.precision)

    def converted(self) -> dict[str, Path]:
        """The same as ncnn's graphs."""
        source = self._fp32()["centerface.onnx"]
        made_of = sha256(source) + _version("pnnx") + _version("ncnn")
        made_of += self._checkpoint.fingerprint() if self._checkpoint else ""
        folder = self.workspace.graphs(self.wanted.model, made_of, *winograd.SOURCES)
        graphs = ["centerface"] + (["trunk", "score_head", "box_head"] if self._checkpoint else [])
        paths = {name: folder / name for graph in graphs for name in winograd.names(graph)}
        if _all(paths):
            return paths
        if self._checkpoint:
            return winograd.export_graphs(self._checkpoint, source, folder)
        return winograd.export_centerface(source, folder)

    def plans(
        self,
        *,
        library: str = "auto",
        targets: Sequence[str] = (),
        finest_batch: int = 4,
        flags: Flags | None = None,
    ) -> list[Path]:
        """TensorRT plans of the graphs, one folder a target; see :func:`archive.engine.build`."""
        from archive import engine

        order = engine.Order(
            self.wanted.model,
            self.settings.canvases,
            self.settings.long_side,
            precision=self.wanted.precision,
            batch=self.settings.engine_batch,
            finest_batch=min(finest_batch, self.settings.engine_batch),
            flags=flags or Flags(),
        )
        graphs = {Path(name).stem: path for name, path in self.graphs().items()}
        timing = self.workspace.build / "timing"
        return engine.build(graphs, order, self.workspace.plans(), library_name=library, targets=targets, timing=timing)

    def _fp32(self) -> dict[str, Path]:
        if not self._checkpoint:
            return export_centerface(self.workspace)
        code = (Path(network.__file__), Path(export.__file__))
        folder = self.workspace.graphs("mogface", self._checkpoint.fingerprint(), *code)
        paths = {f"{graph.name}.onnx": folder / f"{graph.name}.onnx" for graph in export.GRAPHS}
        if not _all(paths):
            export.export(self._checkpoint, folder)
        return {**paths, **export_centerface(self.workspace)}


def export_centerface(workspace: Workspace) -> dict[str, Path]:
    """CenterFace's FP32 graph, by its name in the archive."""
    source = centerface.fetch(workspace.weights())
    target = workspace.graphs("centerface", sha256(source), Path(centerface.__file__)) / "centerface.onnx"
    if not target.exists():
        centerface.export(source, target)
    return {"centerface.onnx": target}


def archives(store: Path) -> Sequence[Path]:
    """Every .mar of the model store."""
    return sorted(store.glob("*.mar"))


def _all(paths: dict[str, Path]) -> bool:
    return all(path.exists() for path in paths.values())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # GPU hosts have it under another name, of the same numbers.
        return "absent"
