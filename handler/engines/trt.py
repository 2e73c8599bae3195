"""TensorRT and TensorRT-RTX: plans run on the addresses of torch's tensors.

One worker has one GPU, and its graphs run one after the other: they share a stream and one scratch memory, as
large as the neediest of them asks for. Only names that TensorRT 10.16, 11.4 and TensorRT-RTX all have are used.
No GPU has run this module yet; the tests run it on the CPU, through a TensorRT that is openly a fake.

Outputs are torch's own tensors and not buffers of the engine: what one call has handed out no later call writes to,
for as long as anyone holds it, and torch's allocator gives the memory of those that were let go to the next call.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from handler import memory, plans, shapes
from handler.config import Settings
from handler.cuda import Cuda, Device
from handler.engines.base import Engine, TensorSpec
from handler.errors import ArtifactError, EngineError, EnvironmentFault
from handler.plans import Sidecar, Target

#: What TensorRT asks of every address.
ALIGNMENT = 256
#: TensorRT's names of types, and torch's.
_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


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

    Raises:
        ArtifactError: no plan that this library and this GPU load, or another one than its sidecar says.
        EnvironmentFault: the GPU has not enough memory.
    """

    def __init__(self, plan: bytes, sidecar: Sidecar, worker: Worker) -> None:
        self._sidecar = sidecar
        self._worker = worker
        trt = worker.library
        worker.log.errors.clear()
        self._engine = worker.runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise ArtifactError(self._said(f"{sidecar.target.library} cannot read the plan of {sidecar.graph}"))
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
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        self._context = self._engine.create_execution_context(strategy)
        if self._context is None:
            raise EnvironmentFault(self._said(f"no execution context for {sidecar.graph}"))
        # Profile and scratch as the context knows them.
        self._state: tuple[int, int] | None = None

    def _spec(self, name: str) -> TensorSpec:
        declared = tuple(self._engine.get_tensor_shape(name))
        free = ["n", *(f"{name}.{axis}" for axis in range(1, len(declared)))]
        shape = tuple(axis if size < 0 else size for axis, size in zip(free, declared, strict=True))
        return TensorSpec(name, torch_dtype(self._engine.get_tensor_dtype(name)), shape)

    def _agree(self) -> None:
        """Raises ArtifactError unless the plan has the tensors and the profiles that its sidecar says."""
        sidecar, engine = self._sidecar, self._engine
        outputs = {name: str(spec.dtype).removeprefix("torch.") for name, spec in self.outputs.items()}
        said = (set(sidecar.profiles[0]), dict(sidecar.outputs), len(sidecar.profiles))
        found = (set(self.inputs), outputs, int(engine.num_optimization_profiles))
        if found != said:
            raise ArtifactError(f"plan of {sidecar.graph}: it has {found}, its sidecar says {said}; build it again")
        for index, profile in enumerate(sidecar.profiles):
            for name, each in profile.items():
                shapes_there = tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index))
                if shapes_there != (each.min, each.opt, each.max):
                    raise ArtifactError(
                        f"plan of {sidecar.graph}: profile {index} of {name!r} is {shapes_there}, its sidecar says "
                        f"{each}; build it again"
                    )

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return self._worker.device.upload(tensor)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise EngineError(f"no memory on the GPU for {list(tensor.shape)} {tensor.dtype}: {error}") from error

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        index = self._sidecar.profile({name: tuple(tensor.shape) for name, tensor in feeds.items()})
        if index is None:
            given = {name: list(tensor.shape) for name, tensor in feeds.items()}
            known = [{name: (each.min, each.max) for name, each in p.items()} for p in self._sidecar.profiles]
            raise EngineError(f"{self._sidecar.graph} has no profile for {given}: it has {known}")
        batch = min(each.max[0] for each in self._sidecar.profiles[index].values())
        rows = len(next(iter(feeds.values())))
        outputs: dict[str, torch.Tensor] = {}
        self._worker.log.errors.clear()
        try:
            with self._worker.device.stream() as stream:
                for start in range(0, rows, batch):
                    part = {name: tensor[start : start + batch] for name, tensor in feeds.items()}
                    self._part(part, slice(start, min(start + batch, rows)), rows, index, stream, outputs)
        except RuntimeError as error:  # of torch, out of memory among them, and of the bindings
            raise EngineError(self._said(f"{self._sidecar.graph} failed: {error}")) from error
        return outputs

    def _part(
        self,
        feeds: Mapping[str, torch.Tensor],
        part: slice,
        rows: int,
        index: int,
        stream: int,
        outputs: dict[str, torch.Tensor],
    ) -> None:
        """Run some rows of a batch, and write theirs of ``outputs``, which the first part makes."""
        self._prepare(index, stream)
        context = self._context
        for name, tensor in feeds.items():
            self._done(context.set_input_shape(name, tuple(tensor.shape)), f"takes no {name!r} of {tensor.shape}")
        bound = {name: self._aligned(tensor, copied=True) for name, tensor in feeds.items()}
        for name, spec in self.outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            if min(shape) < 0 or shape[0] != part.stop - part.start:
                raise EngineError(self._said(f"{self._sidecar.graph} cannot tell the shape of {name!r}: {shape}"))
            if name not in outputs:
                outputs[name] = self._worker.device.empty((rows, *shape[1:]), spec.dtype)
            bound[name] = self._aligned(outputs[name][part], copied=False)
        for name, tensor in bound.items():
            self._done(context.set_tensor_address(name, tensor.data_ptr()), f"takes no address of {name!r}")
        self._done(context.execute_async_v3(stream), "cannot run")
        for name, whole in outputs.items():
            if bound[name].data_ptr() != whole[part].data_ptr():
                whole[part].copy_(bound[name])

    def _prepare(self, index: int, stream: int) -> None:
        """Profile and scratch, where the context has others; a scratch grows as further engines are loaded."""
        scratch = self._worker.scratch
        if self._state == (index, scratch.data_ptr()):
            return
        done = self._context.set_optimization_profile_async(index, stream)
        self._done(done, f"takes no profile {index}")
        self._context.set_device_memory(scratch.data_ptr(), scratch.numel())
        self._state = index, scratch.data_ptr()

    def _aligned(self, tensor: torch.Tensor, *, copied: bool) -> torch.Tensor:
        """The tensor, or another for it where a part of a batch does not begin at an address TensorRT takes."""
        if tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        other = self._worker.device.empty(tuple(tensor.shape), tensor.dtype)
        return other.copy_(tensor) if copied else other

    def _done(self, done: bool, what: str) -> None:
        if not done:
            raise EngineError(self._said(f"{self._sidecar.graph} {what}"))

    def _said(self, text: str) -> str:
        return "; ".join([text, *self._worker.log.errors])


def logger(library: Any) -> Any:
    """A logger for the library, whose ``errors`` are the lines of that severity, the last twenty."""

    class Log(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR):
                self.errors = [*self.errors, message][-20:]

    return Log()


def torch_dtype(kind: Any) -> torch.dtype:
    """Torch's type for one of the library's.

    Raises:
        ArtifactError: torch has none.
    """
    if kind.name not in _DTYPES:
        raise ArtifactError(f"a tensor of the graph is {kind.name}: expected one of {', '.join(_DTYPES)}")
    return _DTYPES[kind.name]


def libraries(names: Sequence[str] = plans.LIBRARIES) -> dict[str, Any]:
    """The modules among ``names`` that can be imported here, by name.

    Raises:
        EnvironmentFault: none of them.
    """
    found, reasons = {}, []
    for name in names:
        try:
            found[name] = importlib.import_module(name)
        except ImportError as error:
            reasons.append(f"{name}: {error}")
    if not found:
        raise EnvironmentFault(f"engine trt needs the package {' or '.join(names)}: {'; '.join(reasons)}")
    return found


def load(settings: Settings, folder: Path, graph: str, device: torch.device) -> TrtEngine:
    """A graph's plan out of an unpacked archive.

    Raises:
        ArtifactError: no plan for this machine, a damaged one, or one that does not take the archive's canvases.
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
    return TrtEngine(sidecars[graph].read(place), sidecars[graph], worker)


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
    needed = memory.need(settings.detector, sidecars.values(), settings.canvases, settings.engine_batch, base=0)
    memory.require(needed, here.free())
    module = next(module for target, module in targets.items() if target == next(iter(sidecars.values())).target)
    return Worker(module, here), place, sidecars
