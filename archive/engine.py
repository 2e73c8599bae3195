"""ONNX graphs -> TensorRT plans, each with its sidecar, each compared with ONNX Runtime where there is a GPU.

One way for TensorRT 10.16 to 11 and for TensorRT-RTX: networks are strongly typed, so that precision is what the
graph says, and only names that all of them have are used. TensorRT builds on the GPU that will run the plan;
TensorRT-RTX also ahead of time, on any machine, for the targets it knows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archive.files import progress, sha256, whole
from archive.parity import TOLERANCES, compare
from archive.profiles import profiles
from handler.config import engine_threads
from handler.cuda import Cuda, Device
from handler.engines.ort import OrtEngine
from handler.engines.trt import TrtEngine, Worker
from handler.errors import ArtifactError, ConfigError, EngineError
from handler.geometry import Canvas
from handler.plans import LIBRARIES, Flags, Profile, Range, Sidecar, Target
from handler.tensorrt.library import libraries, logger, torch_dtype

#: What TensorRT-RTX builds for without a GPU.
AHEAD = ("sm75", "sm80", "sm86", "sm89")
_NO_SM90 = (
    "TensorRT-RTX has no target for SM90 or SM100: H100 and H200 need TensorRT itself, on that GPU: "
    "`mogface-archive engine --library tensorrt`"
)
#: Rows of a batch that parity is asked of.
_ROWS = 3


@dataclass(frozen=True)
class Order:
    """Which plans are wanted.

    Attributes:
        detector: ``mogface`` or ``centerface``.
        canvases: the archive's.
        long_side: the archive's.
        precision: of the graphs.
        batch: images that run together.
        finest_batch: the same for the heads on the finest level.
        flags: see Flags.
    """

    detector: str
    canvases: Sequence[Canvas]
    long_side: int
    precision: str = "fp32"
    batch: int = 8
    finest_batch: int = 4
    flags: Flags = dataclasses.field(default_factory=Flags)


def library(name: str = "auto") -> tuple[str, Any]:
    """The name and the module of a TensorRT that is installed here, TensorRT itself before TensorRT-RTX.

    Raises:
        ConfigError: another name than auto, tensorrt or tensorrt_rtx.
        EnvironmentFault: it is not installed.
    """
    if name not in ("auto", *LIBRARIES):
        raise ConfigError(f"library is {name!r}: expected auto, {' or '.join(LIBRARIES)}")
    found = libraries(LIBRARIES if name == "auto" else (name,))
    return next(iter(found.items()))


def ahead(target: str) -> None:
    """Raises ConfigError unless TensorRT-RTX builds for ``target``, such as ``sm86``, without a GPU."""
    if target not in AHEAD:
        text = f"target is {target!r}: expected one of {', '.join(AHEAD)}"
        raise ConfigError(f"{text}. {_NO_SM90}" if target in ("sm90", "sm100") else text)


def build(
    graphs: Mapping[str, Path],
    order: Order,
    folder: Path,
    *,
    library_name: str = "auto",
    targets: Sequence[str] = (),
    timing: Path | None = None,
) -> list[Path]:
    """Plans for this GPU, or ahead of time for other ones.

    Args:
        graphs: ONNX files by graph.
        order: see Order.
        folder: ``build/plans``; each target gets a folder of its own in it.
        library_name: ``auto``, ``tensorrt`` or ``tensorrt_rtx``.
        targets: compute capabilities such as ``sm86``, for TensorRT-RTX; none is this machine's GPU.
        timing: folder of timing caches, which make TensorRT's next build faster.

    Returns:
        The folder of each target.

    Raises:
        ConfigError: a target that TensorRT-RTX does not know.
        ArtifactError: a graph that cannot be built, or a plan that does not answer as ONNX Runtime does.
        EnvironmentFault: no library, or no GPU where one is needed.
    """
    for target in targets:
        ahead(target)
    name, module = library("tensorrt_rtx" if targets and library_name == "auto" else library_name)
    if targets and name != "tensorrt_rtx":
        raise ConfigError(f"{name} builds on the GPU that runs the plan: targets are for tensorrt_rtx")
    if not targets:
        device = Cuda(torch.device("cuda", 0))
        return [Builder(name, module, order, folder, device.capability(), timing, device).build(graphs)]
    return [Builder(name, module, order, folder, target, timing).build(graphs) for target in targets]


class Builder:
    """Plans of one target.

    Args:
        name: of the library.
        module: the library.
        order: see Order.
        folder: the target's folder is made in it.
        capability: of the GPU that will run the plans.
        timing: folder of timing caches, or None.
        device: the GPU to compare on; None builds ahead of time.
    """

    def __init__(
        self,
        name: str,
        module: Any,
        order: Order,
        folder: Path,
        capability: str,
        timing: Path | None = None,
        device: Device | None = None,
    ) -> None:
        self.target = Target(capability, name, module.__version__, order.precision)
        self.folder = folder / str(self.target)
        self._trt = module
        self._order = order
        self._timing = timing / f"{capability}-{name}{module.__version__}.cache" if timing else None
        self._worker = Worker(module, device) if device else None

    def build(self, graphs: Mapping[str, Path]) -> Path:
        """Build what is not there already; returns the target's folder.

        Args:
            graphs: ONNX files by graph.

        Raises:
            ArtifactError: a graph that cannot be built, or a plan that does not answer as ONNX Runtime does.
        """
        with progress(f"plans {self.target}", total=len(graphs), unit="plan") as bar:
            for graph, path in graphs.items():
                bar.set_postfix_str(graph)
                if not self._up_to_date(graph, path):
                    self._plan(graph, path)
                bar.update()
        return self.folder

    def _profiles(self, graph: str) -> tuple[Profile, ...]:
        order = self._order
        return profiles(order.detector, graph, order.canvases, order.long_side, order.batch, order.finest_batch)

    def _up_to_date(self, graph: str, path: Path) -> bool:
        try:
            there = Sidecar.load(self.folder / f"{graph}.json")
            there.read(self.folder)
        except ArtifactError:
            return False
        wanted = (graph, sha256(path), self.target, self._profiles(graph), self._order.flags)
        measured = self._worker is None or there.device_memory is not None
        return measured and wanted == (there.graph, there.graph_sha256, there.target, there.profiles, there.flags)

    def _plan(self, graph: str, path: Path) -> None:
        plan, outputs = self._serialized(graph, path)
        sidecar = Sidecar(
            graph=graph,
            graph_sha256=sha256(path),
            target=self.target,
            profiles=self._profiles(graph),
            flags=self._order.flags,
            outputs=outputs,
            device_memory=None,
            plan_bytes=len(plan),
            plan_sha256=hashlib.sha256(plan).hexdigest(),
        )
        if self._worker:
            engine = TrtEngine(plan, sidecar, self._worker)
            prove(path, engine, sidecar)
            sidecar = dataclasses.replace(sidecar, device_memory=engine.device_memory)
        note = self.folder / f"{graph}.json"
        # A sidecar always is of the plan beside it, or there is none.
        note.unlink(missing_ok=True)
        with whole(self.folder / f"{graph}.plan") as draft:
            draft.write_bytes(plan)
        with whole(note) as draft:
            draft.write_text(sidecar.dump(), encoding="utf-8")

    def _serialized(self, graph: str, path: Path) -> tuple[bytes, dict[str, str]]:
        """The plan, and the types of its outputs."""
        trt = self._trt
        log = logger(trt)
        builder = trt.Builder(log)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, log)
        if not parser.parse_from_file(str(path)):
            errors = [str(parser.get_error(index)) for index in range(parser.num_errors)]
            raise ArtifactError(f"{path}: {self.target.library} does not take the graph: {'; '.join(errors)}")
        config = builder.create_builder_config()
        self._configure(config)
        for each in self._profiles(graph):
            profile = builder.create_optimization_profile()
            for name, sizes in each.items():
                profile.set_shape(name, sizes.min, sizes.opt, sizes.max)
            config.add_optimization_profile(profile)
        cache = self._open_cache(config)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise ArtifactError(f"{path}: {self.target.library} cannot build the plan: {'; '.join(log.errors)}")
        if cache is not None and self._timing:
            with whole(self._timing) as draft:
                draft.write_bytes(bytes(cache.serialize()))
        outputs = [network.get_output(index) for index in range(network.num_outputs)]
        return bytes(plan), {output.name: str(torch_dtype(output.dtype)).removeprefix("torch.") for output in outputs}

    def _configure(self, config: Any) -> None:
        trt, flags = self._trt, self._order.flags
        config.builder_optimization_level = flags.optimization_level
        if flags.workspace:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, flags.workspace)
        if flags.sparse:
            config.set_flag(trt.BuilderFlag.SPARSE_WEIGHTS)
        # On by default, and it rounds FP32 factors to ten bits: who asks for fp32 gets it.
        config.clear_flag(trt.BuilderFlag.TF32)
        if self.target.library == "tensorrt_rtx":
            config.num_compute_capabilities = 1
            kind = trt.ComputeCapability
            wanted = kind.CURRENT if self._worker else kind.__members__[self.target.capability.upper()]
            if not config.set_compute_capability(wanted, 0):
                raise ArtifactError(f"tensorrt_rtx does not take the target {self.target.capability}")

    def _open_cache(self, config: Any) -> Any:
        """The timing cache; None for TensorRT-RTX, where it does nothing."""
        if self._timing is None or self.target.library == "tensorrt_rtx":
            return None
        cache = config.create_timing_cache(self._timing.read_bytes() if self._timing.exists() else b"")
        config.set_timing_cache(cache, False)
        return cache


def prove(graph: Path, engine: TrtEngine, sidecar: Sidecar) -> float:
    """Compare a plan with ONNX Runtime on its graph, some rows at the size that each profile is tuned for.

    Returns:
        The largest difference, as a share.

    Raises:
        ArtifactError: they differ.
    """
    reference = OrtEngine(graph, torch.device("cpu"), engine_threads(0))
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for index, profile in enumerate(sidecar.profiles):
        feeds = {name: _example(sizes, engine.inputs[name].dtype, generator) for name, sizes in profile.items()}
        try:
            worst = max(worst, compare(reference, engine, feeds, TOLERANCES[sidecar.target.precision]))
        except (ArtifactError, EngineError) as error:
            text = f"the plan of {sidecar.graph} does not answer as ONNX Runtime does, profile {index}"
            raise ArtifactError(f"{text}: {error}") from error
    return worst


def _example(sizes: Range, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Seeded values; one row more than the profile takes, if that is few, so that the parts are tried too."""
    shape = (min(sizes.max[0] + 1, _ROWS), *sizes.opt[1:])
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)
