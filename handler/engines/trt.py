"""TensorRT and TensorRT-RTX: plans run on the addresses of torch's tensors.

One worker has one GPU, and its graphs run one after the other: they share a stream and one scratch memory, as
large as the neediest of them asks for. Only names that TensorRT 10.16, 11.4 and TensorRT-RTX all have are used.
No GPU has run this module yet; the tests run it on the CPU, through a TensorRT that is openly a fake.

Outputs are torch's own tensors and not buffers of the engine: what one call has handed out no later call writes to,
for as long as anyone holds it, and torch's allocator gives the memory of those that were let go to the next call.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from handler import memory, plans, shapes
from handler.config import Settings
from handler.cuda import Cuda, Device
from handler.engines.base import Engine, TensorSpec
from handler.errors import ArtifactError, ConfigError, DeviceLost, EngineError, EnvironmentFault
from handler.plans import Shape, Sidecar, Target
from handler.tensorrt.execution import Execution
from handler.tensorrt.graphs import Graphs, Size
from handler.tensorrt.library import libraries, logger, said, torch_dtype

#: What TensorRT asks of every address.
ALIGNMENT = 256


class Worker:
    """What the engines of one worker share.

    Attributes:
        library: the module tensorrt or tensorrt_rtx.
        device: see Device.
        log: the library's complaints.
        scratch: as large as the neediest engine asks for.
    """

    def __init__(self, library: Any, device: Device) -> None:
        self.library = library
        self.device = device
        self.log = logger(library)
        # Plans cannot be used once the runtime that read them is gone.
        self.runtime = library.Runtime(self.log)
        self.scratch = device.empty((0,), torch.uint8)

    def reserve(self, size: int) -> None:
        """Make the scratch at least so many bytes large.

        Raises:
            EnvironmentFault: the GPU has not enough memory.
        """
        if size <= self.scratch.numel():
            return
        try:
            # The old one goes first: both may not fit.
            self.scratch = self.device.empty((0,), torch.uint8)
            self.scratch = self.device.empty((size,), torch.uint8)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            free = self.device.free()
            raise EnvironmentFault(f"a plan needs {size} bytes of scratch, {free} are free on the GPU") from error


class TrtEngine(Engine):
    """One plan.

    A batch larger than the profile's runs in parts. The plan's profiles decide which shapes it takes.

    Args:
        plan: its bytes.
        sidecar: its profiles and name.
        worker: what it shares with others.
        most: rows that run together at most, by profile, where fewer than the profile takes.
        recorded: shapes of its one input, the batch left out, that run by CUDA graphs.

    Raises:
        ArtifactError: no plan that this library and this GPU load, or another one than its sidecar says.
        EnvironmentFault: the GPU has not enough memory.
    """

    def __init__(
        self,
        plan: bytes,
        sidecar: Sidecar,
        worker: Worker,
        most: Mapping[int, int] = MappingProxyType({}),
        recorded: Sequence[Shape] = (),
    ) -> None:
        self._sidecar = sidecar
        self._worker = worker
        trt = worker.library
        worker.log.errors.clear()
        self._engine = worker.runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise ArtifactError(said(f"{sidecar.target.library} cannot read the plan of {sidecar.graph}", worker.log))
        specs: dict[bool, dict[str, TensorSpec]] = {True: {}, False: {}}
        for index in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(index)
            taken = self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            specs[taken][name] = self._spec(name)
        super().__init__(specs[True], specs[False], worker.device.device)
        self._agree()
        self.device_memory = int(self._engine.device_memory_size_v2)
        # Never none at all, so that there is an address to name.
        worker.reserve(max(self.device_memory, ALIGNMENT))
        self._most = {
            number: min([most.get(number, 1 << 30), *(each.max[0] for each in profile.values())])
            for number, profile in enumerate(sidecar.profiles)
        }
        self._execution = self._another()
        self._graphs = self._recordings(recorded)

    def _another(self) -> Execution:
        return Execution(self._worker.library, self._engine, self._sidecar.graph, self._worker.log)

    def _recordings(self, recorded: Sequence[Shape]) -> Graphs | None:
        if not recorded:
            return None
        ((name, spec),) = self.inputs.items()
        found = {shape: self._sidecar.profile({name: (1, *shape)}) for shape in recorded}
        sizes = [Size(shape, index, self._most[index]) for shape, index in found.items() if index is not None]
        outputs = {each: output.dtype for each, output in self.outputs.items()}
        return Graphs(self._worker.device, self._another, (name, spec.dtype), outputs, sizes)

    def _spec(self, name: str) -> TensorSpec:
        declared = tuple(self._engine.get_tensor_shape(name))
        free = ["n", *(f"{name}.{axis}" for axis in range(1, len(declared)))]
        shape = tuple(axis if size < 0 else size for axis, size in zip(free, declared, strict=True))
        return TensorSpec(name, torch_dtype(self._engine.get_tensor_dtype(name)), shape)

    def _agree(self) -> None:
        """Raises ArtifactError unless the plan has the tensors and the profiles that its sidecar says."""
        sidecar, engine = self._sidecar, self._engine
        outputs = {name: str(spec.dtype).removeprefix("torch.") for name, spec in self.outputs.items()}
        stated = (set(sidecar.profiles[0]), dict(sidecar.outputs), len(sidecar.profiles))
        found = (set(self.inputs), outputs, int(engine.num_optimization_profiles))
        if found != stated:
            raise ArtifactError(f"plan of {sidecar.graph}: it has {found}, its sidecar says {stated}; build it again")
        for index, profile in enumerate(sidecar.profiles):
            for name, each in profile.items():
                shapes_there = tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index))
                if shapes_there != (each.min, each.opt, each.max):
                    raise ArtifactError(
                        f"plan of {sidecar.graph}: profile {index} of {name!r} is {shapes_there}, its sidecar says "
                        f"{each}; build it again"
                    )

    def takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether a profile does."""
        return super().takes(shapes) and self._sidecar.profile(shapes) is not None

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return self._worker.device.upload(tensor)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise self._failure(f"no memory on the GPU for {list(tensor.shape)} {tensor.dtype}: {error}") from error

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        index = self._sidecar.profile({name: tuple(tensor.shape) for name, tensor in feeds.items()})
        if index is None:
            given = {name: list(tensor.shape) for name, tensor in feeds.items()}
            known = [{name: (each.min, each.max) for name, each in p.items()} for p in self._sidecar.profiles]
            raise EngineError(f"{self._sidecar.graph} has no profile for {given}: it has {known}")
        outputs: dict[str, torch.Tensor] = {}
        self._worker.log.errors.clear()
        try:
            with self._worker.device.stream() as stream:
                first = next(iter(feeds.values()))
                if self._graphs and self._graphs.take(tuple(first.shape)):
                    self._replayed(self._graphs, first, stream, outputs)
                    return outputs
                for start in range(0, len(first), self._most[index]):
                    part = slice(start, min(start + self._most[index], len(first)))
                    self._part(feeds, part, index, stream, outputs)
        except (RuntimeError, EngineError) as error:  # of torch, out of memory among them, and of the bindings
            told = isinstance(error, EngineError)
            text = str(error) if told else said(f"{self._sidecar.graph} failed: {error}", self._worker.log)
            raise self._failure(text) from error
        return outputs

    def _failure(self, text: str) -> EngineError:
        """The error of one batch, or of all that would follow."""
        if self._worker.device.alive():
            return EngineError(text)
        return DeviceLost(f"the GPU does not answer any more: the worker has to be started again; {text}")

    def _replayed(self, graphs: Graphs, given: torch.Tensor, stream: int, outputs: dict[str, torch.Tensor]) -> None:
        """Run a batch by CUDA graphs."""
        for part in graphs.parts(tuple(given.shape)):
            for name, tensor in graphs.run(given[part], self._worker.scratch, stream).items():
                self._whole(outputs, name, len(given), tuple(tensor.shape))[part].copy_(tensor)

    def _part(
        self, feeds: Mapping[str, torch.Tensor], part: slice, index: int, stream: int, outputs: dict[str, torch.Tensor]
    ) -> None:
        """Run some rows of a batch, and write theirs of ``outputs``, which the first part makes."""
        given = {name: tensor[part] for name, tensor in feeds.items()}
        self._execution.prepare(index, self._worker.scratch, stream)
        shapes_there = self._execution.shapes({name: tuple(each.shape) for name, each in given.items()}, self.outputs)
        bound = {name: self._aligned(tensor, copied=True) for name, tensor in given.items()}
        rows = len(next(iter(feeds.values())))
        for name, shape in shapes_there.items():
            bound[name] = self._aligned(self._whole(outputs, name, rows, shape)[part], copied=False)
        self._execution.run(bound, stream)
        for name, whole in outputs.items():
            if bound[name].data_ptr() != whole[part].data_ptr():
                whole[part].copy_(bound[name])

    def _whole(self, outputs: dict[str, torch.Tensor], name: str, rows: int, shape: tuple[int, ...]) -> torch.Tensor:
        """An output of all rows, of which a part has this shape."""
        if name not in outputs:
            outputs[name] = self._worker.device.empty((rows, *shape[1:]), self.outputs[name].dtype)
        return outputs[name]

    def _aligned(self, tensor: torch.Tensor, *, copied: bool) -> torch.Tensor:
        """The tensor, or another for it where a part of a batch does not begin at an address TensorRT takes."""
        if tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        other = self._worker.device.empty(tuple(tensor.shape), tensor.dtype)
        return other.copy_(tensor) if copied else other


def load(settings: Settings, folder: Path, graph: str, device: torch.device) -> TrtEngine:
    """A graph's plan out of an unpacked archive.

    Raises:
        ArtifactError: no plan for this machine, a damaged one, or one that does not take the archive's canvases.
        ConfigError: a ``finest_batch`` that the plan does not take.
        EnvironmentFault: no GPU, no TensorRT, or not enough memory.
    """
    worker, place, sidecars = _open(settings, folder, device)
    for canvas in settings.canvases:
        name, wanted = shapes.inputs(settings.detector, graph, canvas)
        lacking = [shape for shape in wanted if sidecars[graph].profile({name: (1, *shape)}) is None]
        if lacking:
            raise ArtifactError(
                f"{place}: the plan of {graph} has no profile for canvas {canvas}, which gives it {name!r} of "
                f"{lacking[0]} an image: build it for the archive's canvases, `mogface-archive engine`"
            )
    most = _most(settings, sidecars[graph])
    recorded: dict[Shape, None] = {}
    if graph in memory.recorded(settings):
        met = (shapes.inputs(settings.detector, graph, canvas)[1] for canvas in settings.canvases)
        recorded = dict.fromkeys(itertools.chain.from_iterable(met))
    return TrtEngine(sidecars[graph].read(place), sidecars[graph], worker, most, tuple(recorded))


def _most(settings: Settings, sidecar: Sidecar) -> dict[int, int]:
    """Rows of the profiles of the finest level that run together, where the settings say it."""
    found = {}
    for canvas in settings.canvases if settings.finest_batch else ():
        name, wanted = shapes.inputs(settings.detector, sidecar.graph, canvas)
        index = sidecar.profile({name: (1, *wanted[0])})
        if len(wanted) > 1 and index is not None:
            found[index] = settings.finest_batch
    taken = max((each.max[0] for index in found for each in sidecar.profiles[index].values()), default=1 << 30)
    if settings.finest_batch > taken:
        raise ConfigError(
            f"finest_batch is {settings.finest_batch}, the plan of {sidecar.graph} takes {taken}: set {taken} or less, "
            f"or build it with `mogface-archive engine --finest-batch {settings.finest_batch}`"
        )
    return found


@lru_cache(maxsize=1)
def _open(settings: Settings, folder: Path, device: torch.device) -> tuple[Worker, Path, dict[str, Sidecar]]:
    """What the engines of one archive share, made for the first of them."""
    modules = libraries()
    here = Cuda(device)
    targets = {
        Target(here.capability(), name, module.__version__, settings.precision): module
        for name, module in modules.items()
    }
    place, sidecars = plans.choose(folder / plans.FOLDER, shapes.GRAPHS[settings.detector], list(targets))
    needed = memory.need(
        settings.detector,
        sidecars.values(),
        settings.canvases,
        settings.engine_batch,
        base=0,
        recorded=memory.recorded(settings),
    )
    memory.require(needed, here.free())
    module = next(module for target, module in targets.items() if target == next(iter(sidecars.values())).target)
    return Worker(module, here), place, sidecars
