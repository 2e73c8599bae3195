"""ncnn, for CPUs: its 3x3 convolutions are Winograd's, which take a quarter of the multiplications.

A graph is three files: ``NAME.param`` and ``NAME.bin``, ncnn's own, and ``NAME.json``, which says what its tensors
are (:class:`Description`). ncnn runs one image at a time and only what is asked for, so outputs are computed
when they are taken: one that nobody takes costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handler.engines.base import Engine, TensorSpec
from handler.errors import ArtifactError, EngineError, EnvironmentFault

_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.uint8)}
#: Vectors of ncnn's are at most so many floats; channels that come in its own layout are multiples of it.
WIDEST = 16
#: Turns that a thread waits for the others awake at the end of a layer. OpenMP's own 300,000 starve each other where
#: other processes want the cores too: an image took three times the processor's time and up to ten times as long.
#: None at all costs a tenth, the time it takes to wake; this many cost neither.
SPINS = "10000"
#: ncnn's answer to a call that succeeded.
_OK = 0


@dataclass(frozen=True)
class Port:
    """A tensor of the graph, and the blob of ncnn's that holds one image of it.

    Attributes:
        spec: of the tensor, the batch first.
        blob: an input is given as it; an output is taken from it, before ``hops``.
        packed: it stays in ncnn's own layout, in which channels lie in vectors: [n, c, h, w] is a tensor
            [n, c / lanes, h, w, lanes], its last axis as wide as this CPU's vectors. See :func:`unpack`.
        hops: of an output: (into, out) pairs. What was taken last is given as ``into``, and ``out`` taken, so that a
            layer which acts several times is there once.
    """

    spec: TensorSpec
    blob: str
    packed: bool = False
    hops: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.packed and not (len(self.spec.shape) == 4 and _is_multiple(self.spec.shape[1], WIDEST)):
            raise ArtifactError(
                f"tensor {self.spec.name!r} is {list(self.spec.shape)}: expected 4 axes to be packed, "
                f"the second a multiple of {WIDEST}"
            )

    def laid_out(self, lanes: int) -> TensorSpec:
        """The tensor as it is on a CPU with vectors of so many floats."""
        if not self.packed:
            return self.spec
        batch, channels, height, width = self.spec.shape
        return dataclasses.replace(self.spec, shape=(batch, int(channels) // lanes, height, width, lanes))


@dataclass(frozen=True)
class Description:
    """What ``NAME.json`` says.

    Attributes:
        inputs: in the order that :class:`Engine` shows; optional ones count as zeros of the first one's shape.
        outputs: likewise.
        kept: elements of the first input of one image, up to which scratch memory is kept from run to run.
        sizes: bytes of the graph's files by suffix: ncnn reads on beyond the end of a short one.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kept: int
    sizes: Mapping[str, int]

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, default=str)

    @classmethod
    def load(cls, path: Path) -> Description:
        """Read one.

        Raises:
            ArtifactError: it is missing or says something else than a description does.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            inputs, outputs = (tuple(_port(row) for row in values[side]) for side in ("inputs", "outputs"))
            return cls(inputs, outputs, int(values["kept"]), {str(k): int(v) for k, v in values["sizes"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{path}: not the description of a graph: {type(error).__name__}: {error}") from error


class WinogradEngine(Engine):
    """A graph of ncnn's on a CPU, in FP32.

    Its outputs are computed as they are taken, from the inputs as they are then; a failure inside ncnn comes up there.

    Args:
        graph: ``NAME.json``; the other files lie beside it.
        threads: that ncnn takes.

    Raises:
        ArtifactError: a file is missing, is not whole or is none that ncnn loads.
        EnvironmentFault: the package is missing.
    """

    def __init__(self, graph: Path, threads: int) -> None:
        self._ncnn = _library()
        described = Description.load(graph)
        self._net = self._load(graph, described, threads)
        self._inputs = {port.spec.name: port for port in described.inputs}
        self._outputs = {port.spec.name: port for port in described.outputs}
        self._kept = described.kept
        self._memory = _Memory(self._ncnn)
        inputs, outputs = (
            {name: port.laid_out(lanes()) for name, port in ports.items()} for ports in (self._inputs, self._outputs)
        )
        super().__init__(inputs, outputs, torch.device("cpu"))

    def _load(self, graph: Path, described: Description, threads: int) -> Any:
        net = self._ncnn.Net()
        net.opt.num_threads = threads
        net.opt.use_vulkan_compute = False
        # FP32 means FP32: by default it stores and computes in 16 bits where the CPU can.
        for kind in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
            setattr(net.opt, f"use_{kind}", False)
        for suffix, load in ((".param", net.load_param), (".bin", net.load_model)):
            path = graph.with_suffix(suffix)
            try:
                size = path.stat().st_size
            except OSError as error:
                raise ArtifactError(f"{path}: a part of the graph cannot be read: {error}") from error
            if size != described.sizes.get(suffix):
                raise ArtifactError(f"{path} has {size} bytes: expected {described.sizes.get(suffix)}")
            code = load(str(path))
            if code != _OK:
                raise ArtifactError(f"{path}: ncnn cannot load it: code {code}")
        blobs = {blob.name for blob in net.blobs()}
        for port in (*described.inputs, *described.outputs):
            missing = {port.blob, *(name for hop in port.hops for name in hop)} - blobs
            if missing:
                raise ArtifactError(f"{graph}: {sorted(missing)} of tensor {port.spec.name!r} are not in the graph")
        return net

    def _run(self, feeds: dict[str, torch.Tensor]) -> MutableMapping[str, torch.Tensor]:
        first = feeds[next(iter(self.inputs))]
        for name, spec in self.inputs.items():
            if name not in feeds:
                feeds[name] = torch.zeros(first.shape, dtype=spec.dtype)
        # Scratch of a larger image goes back with it.
        memory = self._memory if first[0].numel() <= self._kept else _Memory(self._ncnn)
        rows = [{name: tensor[row] for name, tensor in feeds.items()} for row in range(len(first))]
        return _Outputs(self._outputs, [_Image(self._ncnn, self._net, memory, self._inputs, row) for row in rows])


class _Memory:
    """Where ncnn keeps blobs and scratch between layers and runs. Must outlive every Mat out of it."""

    def __init__(self, ncnn: Any) -> None:
        self._blobs, self._scratch = ncnn.PoolAllocator(), ncnn.PoolAllocator()

    def extractor(self, net: Any) -> Any:
        """A new run of the net, its memory from here."""
        extractor = net.create_extractor()
        extractor.set_blob_allocator(self._blobs)
        extractor.set_workspace_allocator(self._scratch)
        return extractor

    def copy(self, mat: Any) -> Any:
        """Of a Mat, in memory from here."""
        return mat.clone(self._blobs)


class _Image:
    """One image on its way through the graph: what was computed for one output serves the next."""

    def __init__(
        self, ncnn: Any, net: Any, memory: _Memory, inputs: Mapping[str, Port], feeds: Mapping[str, torch.Tensor]
    ) -> None:
        self._ncnn, self._net, self._memory = ncnn, net, memory
        # Packed inputs are read where they lie.
        self._feeds = feeds
        self._extractor = memory.extractor(net)
        for name, port in inputs.items():
            self._give(self._extractor, port.blob, self._mat(feeds[name], port.packed))

    def take(self, port: Port) -> torch.Tensor:
        """An output, without the batch's axis."""
        mat = self._taken(self._extractor, port.blob, port.packed or bool(port.hops))
        for number, (into, out) in enumerate(port.hops, 1):
            extractor = self._memory.extractor(self._net)
            self._give(extractor, into, mat)
            # Layers that work in place do so on what nobody else holds, and copy it otherwise.
            mat.release()
            mat = self._taken(extractor, out, port.packed or number < len(port.hops))
            extractor.clear()
        return torch.from_numpy(np.asarray(_Array(mat, self._memory)))

    def _mat(self, tensor: torch.Tensor, packed: bool) -> Any:
        if not packed:
            # In memory of ncnn's own: a layer that works in place would crash on, or write into, a caller's. The array
            # has a name because a Mat does not hold on to what it was made of.
            array = tensor.to(torch.float32).numpy()
            return self._memory.copy(self._ncnn.Mat(array))
        *_, lanes_here = tensor.shape
        mat = self._ncnn.Mat(tensor.flatten(2).numpy())
        mat.w, mat.cstep = mat.w // lanes_here, mat.cstep // lanes_here
        mat.elempack, mat.elemsize = lanes_here, 4 * lanes_here
        return mat

    @staticmethod
    def _give(extractor: Any, blob: str, mat: Any) -> None:
        code = extractor.input(blob, mat)
        if code != _OK:
            raise EngineError(f"ncnn does not take blob {blob!r}: code {code}")

    def _taken(self, extractor: Any, blob: str, packed: bool) -> Any:
        mat = self._ncnn.Mat()
        # This form of the call copies nothing.
        code = extractor.extract(blob, mat, int(packed))
        if code != _OK or mat.empty():
            raise EngineError(f"ncnn failed at blob {blob!r}: code {code}")
        return mat

    def __del__(self) -> None:
        # Before the memory that it is in.
        self._extractor.clear()


class _Array:
    """A Mat as NumPy sees it, without a copy; NumPy holds on to this, and this to the Mat and its memory."""

    def __init__(self, mat: Any, memory: _Memory) -> None:
        self._mat, self._memory = mat, memory
        lanes_here = mat.elempack
        if lanes_here > 1:
            mat.w, mat.cstep = mat.w * lanes_here, mat.cstep * lanes_here
            mat.elempack, mat.elemsize = 1, 4
        interface = np.asarray(mat).__array_interface__
        if lanes_here > 1:
            *front, width = interface["shape"]
            interface |= {"shape": (*front, width // lanes_here, lanes_here)}
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self._mat.release()


class _Outputs(MutableMapping[str, torch.Tensor]):
    """Outputs of a batch by name, each computed when it is first asked for."""

    def __init__(self, ports: Mapping[str, Port], images: list[_Image]) -> None:
        self._ports, self._images = dict(ports), images
        self._made: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._made:
            taken = [image.take(self._ports[name]) for image in self._images]
            self._made[name] = taken[0][None] if len(taken) == 1 else torch.stack(taken)
        return self._made[name]

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self._made[name] = value

    def __delitem__(self, name: str) -> None:
        del self._ports[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)


def unpack(tensor: torch.Tensor) -> torch.Tensor:
    """[n, c / lanes, h, w, lanes], as packed tensors are, -> [n, c, h, w]; a copy."""
    return tensor.permute(0, 1, 4, 2, 3).flatten(1, 2)


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """[n, c, h, w] -> [n, c / lanes, h, w, lanes] of this CPU; a copy."""
    batch, channels, *cells = tensor.shape
    return tensor.reshape(batch, channels // lanes(), lanes(), *cells).permute(0, 1, 3, 4, 2).contiguous()


@functools.cache
def lanes() -> int:
    """How many floats a vector of this CPU has for ncnn: it says so of what it puts out.

    Raises:
        EnvironmentFault: the package is missing.
    """
    ncnn = _library()
    net = ncnn.Net()
    net.opt.use_vulkan_compute = False
    net.load_param_mem("7767517\n2 2\nInput in 0 1 in\nReLU relu 1 1 in out\n")
    net.load_model(ncnn.DataReaderFromEmpty())
    extractor = net.create_extractor()
    extractor.input("in", ncnn.Mat((1, 1, WIDEST)))
    mat = ncnn.Mat()
    extractor.extract("out", mat, 1)
    found: int = mat.elempack
    # Both are in the net's own memory, which goes first otherwise.
    mat.release()
    extractor.clear()
    return found


def _library() -> Any:
    """The package, with the OpenMP that it brings, which reads its settings once, here.

    torch's OpenMP is there before, with its own settings, and ncnn would take that one: so its own libraries come first
    in its search.
    """
    name = "GOMP_SPINCOUNT"
    before, flags = os.environ.get(name), sys.getdlopenflags()
    os.environ[name] = before or SPINS
    sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        import ncnn
    except ImportError as error:
        raise EnvironmentFault("engine winograd needs the package ncnn: pip install '.[winograd]'") from error
    finally:
        sys.setdlopenflags(flags)
        if before is None:
            del os.environ[name]
    return ncnn


def _is_multiple(axis: int | str, of: int) -> bool:
    return isinstance(axis, int) and axis % of == 0


def _port(row: Mapping[str, Any]) -> Port:
    spec = row["spec"]
    shape = tuple(axis if isinstance(axis, str) else int(axis) for axis in spec["shape"])
    hops = tuple((str(into), str(out)) for into, out in row["hops"])
    tensor = TensorSpec(str(spec["name"]), _DTYPES[spec["dtype"]], shape, bool(spec["optional"]))
    return Port(tensor, str(row["blob"]), bool(row["packed"]), hops)
