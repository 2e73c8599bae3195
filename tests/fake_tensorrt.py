"""A fake TensorRT: the part of its API that this project uses, on the CPU, by ONNX Runtime.

Nothing of TensorRT is in it. It reads and writes the raw addresses that it is given, as TensorRT does, and refuses
what TensorRT leaves undefined: a shape set before its profile or outside it, a tensor without an address, an address
that is not aligned, memory used twice, too little scratch, another stream than the engines' own, a recording of a
shape that never ran, or of a context that was changed since. A plan is the ONNX file behind a header.

It imports nothing of the project: a worker of TorchServe can be given it under the name of ``tensorrt``.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

__version__ = "0.0.fake"
CAPABILITY = "sm00"
#: Misbehaviour that a test may ask for: "rows", "nan", "refuse", "lost".
FAULTS: set[str] = set()

_MAGIC = b"FAKEPLAN"
_SCRATCH = 4096
_STREAM = 7

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


class DataType(enum.Enum):
    FLOAT = "tensor(float)"
    HALF = "tensor(float16)"
    UINT8 = "tensor(uint8)"
    INT64 = "tensor(int64)"


_NUMPY: dict[DataType, np.dtype[Any]] = {
    DataType.FLOAT: np.dtype(np.float32),
    DataType.HALF: np.dtype(np.float16),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT64: np.dtype(np.int64),
}
TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")
ExecutionContextAllocationStrategy = enum.Enum("ExecutionContextAllocationStrategy", "STATIC USER_MANAGED")
NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")
BuilderFlag = enum.Enum("BuilderFlag", "TF32 SPARSE_WEIGHTS")
MemoryPoolType = enum.Enum("MemoryPoolType", "WORKSPACE")


def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Tensor:
    def __init__(self, node: Any) -> None:
        self.name: str = node.name
        self.dtype = DataType(node.type)
        self.shape = tuple(axis if isinstance(axis, int) else -1 for axis in node.shape)


# The builder's side.


class _Network:
    def __init__(self) -> None:
        self.model = b""
        self._outputs: list[_Tensor] = []

    def read(self, model: bytes) -> None:
        self._outputs = [_Tensor(node) for node in _session(model).get_outputs()]
        self.model = model

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_output(self, index: int) -> _Tensor:
        return self._outputs[index]


class OnnxParser:
    def __init__(self, network: _Network, logger: ILogger) -> None:
        self._network = network
        self._errors: list[str] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> str:
        return self._errors[index]

    def parse_from_file(self, path: str) -> bool:
        try:
            with open(path, "rb") as file:
                self._network.read(file.read())
        except Exception as error:  # noqa: BLE001 - as ONNX Runtime's are
            self._errors = ["fake: the graph cannot be read", str(error)]
            return False
        return True


class _Profile:
    def __init__(self) -> None:
        self.shapes: Profile = {}

    def set_shape(self, name: str, low: Shape, middle: Shape, high: Shape) -> None:
        self.shapes[name] = (low, middle, high)


class _Cache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data + b"built;"


class _Config:
    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.builder_optimization_level = 3
        self.cache: _Cache | None = None
        self.flags: set[BuilderFlag] = {BuilderFlag.TF32}

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        assert pool is MemoryPoolType.WORKSPACE
        assert size > 0

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.flags.discard(flag)

    def create_timing_cache(self, data: bytes) -> _Cache:
        return _Cache(data)

    def set_timing_cache(self, cache: _Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return True


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> _Network:
        assert flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return _Network()

    def create_builder_config(self) -> _Config:
        return _Config()

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes | None:
        for node in _session(network.model).get_inputs():
            declared = _Tensor(node).shape
            for profile in config.profiles:
                for shape in profile.get(node.name, ()):
                    fits = len(shape) == len(declared) and all(
                        d in (-1, s) for d, s in zip(declared, shape, strict=True)
                    )
                    if not fits:
                        self._logger.log(ILogger.ERROR, f"fake: profile {shape} does not fit {declared}")
                        return None
        header = json.dumps({"profiles": config.profiles}).encode()
        return _MAGIC + len(header).to_bytes(8, "little") + header + network.model


# The runner's side.


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, plan: bytes) -> _Engine | None:
        if not plan.startswith(_MAGIC):
            self._logger.log(ILogger.ERROR, "fake: no plan of this library")
            return None
        start = len(_MAGIC) + 8
        length = int.from_bytes(plan[len(_MAGIC) : start], "little")
        header = json.loads(plan[start : start + length])
        profiles = [
            {name: tuple(map(tuple, shapes)) for name, shapes in profile.items()} for profile in header["profiles"]
        ]
        return _Engine(plan[start + length :], profiles, self._logger)


class _Engine:
    def __init__(self, model: bytes, profiles: list[Any], logger: ILogger) -> None:
        self.session = _session(model)
        self.profiles: list[Profile] = profiles
        self.logger = logger
        self.inputs = {node.name: _Tensor(node) for node in self.session.get_inputs()}
        self.outputs = {node.name: _Tensor(node) for node in self.session.get_outputs()}
        self.tensors: dict[str, _Tensor] = {**self.inputs, **self.outputs}
        #: Of outputs, by the shapes of the inputs.
        self.known: dict[tuple[Shape, ...], dict[str, Shape]] = {}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(profiles)
        self.device_memory_size_v2 = _SCRATCH * len(profiles)

    def get_tensor_name(self, index: int) -> str:
        names: list[str] = [*self.inputs, *self.outputs]
        return names[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name].dtype

    def get_tensor_shape(self, name: str) -> Shape:
        return self.tensors[name].shape

    def get_tensor_profile_shape(self, name: str, index: int) -> list[Shape]:
        return list(self.profiles[index][name])

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> _Context:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._profile = 0
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._scratch = (0, 0)
        #: Of what a recording must not outlive, and the shapes that ran last.
        self._changes = 0
        self._ran: dict[str, Shape] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        if stream not in Host.open or Host.recording is not None or not 0 <= index < len(self._engine.profiles):
            return self._refuse(f"profile {index} on stream {stream}")
        self._profile = index
        self._changes += 1
        self._ran = {}
        # As in TensorRT: what was set for the profile before is void.
        self._shapes.clear()
        self._scratch = (0, 0)
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        self._changes += 1
        self._scratch = (address, size)

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        low, _, high = self._engine.profiles[self._profile][name]
        if len(shape) != len(low) or not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            return self._refuse(f"{name} of {shape} is outside profile {self._profile}: {low} to {high}")
        self._shapes[name] = shape
        self._changes += 1
        return True

    def get_tensor_shape(self, name: str) -> Shape:
        if set(self._shapes) != set(self._engine.inputs):
            return (-1,) * len(self._engine.tensors[name].shape)
        return self._shapes[name] if name in self._shapes else self._output_shapes()[name]

    def _output_shapes(self) -> dict[str, Shape]:
        key = tuple(self._shapes[name] for name in self._engine.inputs)
        if key not in self._engine.known:
            zeros = {
                name: np.zeros(self._shapes[name], _NUMPY[tensor.dtype]) for name, tensor in self._engine.inputs.items()
            }
            names = list(self._engine.outputs)
            values = self._engine.session.run(names, zeros)
            self._engine.known[key] = {name: value.shape for name, value in zip(names, values, strict=True)}
        return self._engine.known[key]

    def set_tensor_address(self, name: str, address: int) -> bool:
        if not address or address % 256:
            return self._refuse(f"{name} at {address}, which is not aligned")
        self._addresses[name] = address
        self._changes += 1
        return True

    def execute_async_v3(self, stream: int) -> bool:
        engine = self._engine
        if "refuse" in FAULTS:
            return self._refuse("told to")
        if stream not in Host.open:
            return self._refuse(f"stream {stream} is not the engines' own")
        if set(self._shapes) != set(engine.inputs):
            return self._refuse(f"shapes are set of {sorted(self._shapes)} alone")
        if set(self._addresses) != set(engine.tensors):
            return self._refuse(f"addresses are set of {sorted(self._addresses)} alone")
        address, size = self._scratch
        if not address or address % 256 or size < engine.device_memory_size_v2:
            return self._refuse(f"scratch is {size} bytes at {address}")
        shapes = {**self._shapes, **self._output_shapes()}
        addresses = dict(self._addresses)
        # An address holds for one run: what is set next must be set again.
        self._addresses.clear()
        if self._overlap(shapes, addresses):
            return self._refuse("two tensors share memory, or one is in the scratch")
        if Host.recording is None:
            self._compute(shapes, addresses)
            self._ran = dict(self._shapes)
            return True
        if self._ran != self._shapes:
            return self._refuse(f"{self._shapes} never ran, so it cannot be recorded")
        changes = self._changes

        def again() -> None:
            if self._changes != changes:
                raise RuntimeError("fake: the context was changed since it was recorded")
            self._compute(shapes, addresses)

        Host.recording.append(again)
        return True

    def _compute(self, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> None:
        engine = self._engine
        if "lost" in FAULTS:
            raise RuntimeError("fake: CUDA error: an illegal memory access was encountered")
        ctypes.memset(self._scratch[0], 0xA5, self._scratch[1])
        feeds = {name: self._read(name, shapes[name], addresses[name]) for name in engine.inputs}
        names = list(engine.outputs)
        for name, value in zip(names, engine.session.run(names, feeds), strict=True):
            if "rows" in FAULTS:
                value = value[::-1]
            if "nan" in FAULTS:
                value = np.where(np.arange(value.size).reshape(value.shape) == value.size // 2, np.nan, value)
            value = np.ascontiguousarray(value, _NUMPY[engine.outputs[name].dtype])
            ctypes.memmove(addresses[name], value.ctypes.data, value.nbytes)

    def _read(self, name: str, shape: Shape, address: int) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = np.empty(shape, _NUMPY[self._engine.inputs[name].dtype])
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array

    def _overlap(self, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> bool:
        address, size = self._scratch
        parts = [(address, address + size)]
        for name, start in addresses.items():
            parts.append((start, start + math.prod(shapes[name]) * _NUMPY[self._engine.tensors[name].dtype].itemsize))
        parts.sort()
        return any(end > start for (_, end), (start, _) in itertools.pairwise(parts))

    def _refuse(self, reason: str) -> bool:
        self._engine.logger.log(ILogger.ERROR, f"fake: {reason}")
        return False


class Host:
    """The CPU in the place of a GPU: what handler.cuda.Device asks for."""

    #: Streams that may be used now.
    open: set[int] = set()  # noqa: RUF012
    #: What was asked for while it is being recorded; None where nothing is.
    recording: list[Callable[[], None]] | None = None
    #: Recordings made, and replays.
    recorded: int = 0
    replayed: int = 0

    def __init__(self, device: torch.device | None = None, free: int = 1 << 40) -> None:
        self.device = torch.device("cpu")
        self._free = free

    def capability(self) -> str:
        return CAPABILITY

    def free(self) -> int:
        return self._free

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Full of ones, which are NaN to floats, so that what nobody writes is seen."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._free:
            raise RuntimeError("fake: out of memory")
        raw = torch.full((size + 256,), 255, dtype=torch.uint8)
        start = -raw.data_ptr() % 256
        return raw[start : start + size].view(dtype).reshape(shape)

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        self.open.add(_STREAM)
        try:
            yield _STREAM
        finally:
            self.open.discard(_STREAM)

    def record(self, work: Callable[[int], None]) -> Callable[[], None]:
        """As a CUDA graph: nothing runs now, and later what was asked for runs with the addresses it had."""
        steps: list[Callable[[], None]] = []
        Host.recording = steps
        try:
            work(_STREAM)
        finally:
            Host.recording = None
        Host.recorded += 1

        def replay() -> None:
            if _STREAM not in Host.open:
                raise RuntimeError("fake: replayed on another stream")
            Host.replayed += 1
            for step in steps:
                step()

        return replay

    def alive(self) -> bool:
        return "lost" not in FAULTS
