"""TensorRT plans on disk: what each was made of and for, and which of them fits this machine.

A plan runs on the kind of GPU and the library it was built for, and says neither in words. So every NAME.plan has
a NAME.json beside it, written after it: a plan without one was not finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from handler.config import PRECISIONS
from handler.errors import ArtifactError

#: Folder of an archive under which each kind of GPU has a folder of its own.
FOLDER = "plans"
LIBRARIES = ("tensorrt", "tensorrt_rtx")
#: Types of tensors, by torch's names.
DTYPES = ("float32", "float16", "bfloat16", "uint8", "int8", "int32", "int64", "bool")
_FORMAT = 1

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """The shapes of one input that a profile takes.

    Attributes:
        min: least size of each axis, the batch first.
        opt: the shape that kernels were chosen for.
        max: largest size of each axis.
    """

    min: Shape
    opt: Shape
    max: Shape

    def __post_init__(self) -> None:
        if not (len(self.min) == len(self.opt) == len(self.max) > 0) or not all(
            1 <= low <= middle <= high for low, middle, high in zip(self.min, self.opt, self.max, strict=True)
        ):
            raise ArtifactError(f"a profile is {self}: expected 1 <= min <= opt <= max in each axis")

    def covers(self, shape: Sequence[int]) -> bool:
        """Whether ``shape`` lies in the range, in each axis."""
        return len(shape) == len(self.min) and all(
            low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True)
        )


#: The inputs of one optimisation profile, by name.
Profile = Mapping[str, Range]


@dataclass(frozen=True)
class Target:
    """What a plan was built for, or what a machine is.

    Attributes:
        capability: the GPU's compute capability, ``sm86`` for 8.6.
        library: ``tensorrt`` or ``tensorrt_rtx``.
        version: of the library; plans of one version do not load in another.
        precision: of the graphs.
    """

    capability: str
    library: str
    version: str
    precision: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"sm\d{2,3}", self.capability):
            raise ArtifactError(f"capability is {self.capability!r}: expected sm and digits, such as sm86")
        if not re.fullmatch(r"[\w.+-]+", self.version):
            raise ArtifactError(f"version is {self.version!r}: expected a library's version, such as 10.16.1.11")
        for name, allowed in {"library": LIBRARIES, "precision": PRECISIONS}.items():
            if getattr(self, name) not in allowed:
                raise ArtifactError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(allowed)}")

    def __str__(self) -> str:
        """The name of the folder that holds its plans."""
        return f"{self.capability}-{self.library}{self.version}-{self.precision}"


@dataclass(frozen=True)
class Flags:
    """How a plan was built.

    Attributes:
        optimization_level: 0 to 5: how long the builder searches for kernels.
        workspace: most bytes that one layer may use for scratch; 0 is the library's own limit.
        sparse: kernels for weights of which two in four are zero were allowed.
    """

    optimization_level: int = 3
    workspace: int = 0
    sparse: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.optimization_level <= 5:
            raise ArtifactError(f"optimization_level is {self.optimization_level}: expected 0 to 5")
        if self.workspace < 0:
            raise ArtifactError(f"workspace is {self.workspace}: expected bytes, or 0 for no limit")


@dataclass(frozen=True)
class Sidecar:
    """What is known of one plan.

    Attributes:
        graph: its name, such as ``trunk``.
        graph_sha256: of the ONNX file it was built from.
        target: what it was built for.
        profiles: each with every input of the graph.
        flags: see Flags.
        outputs: torch's name of each output's type, such as ``float32``.
        device_memory: bytes of scratch that it needs on the GPU at most; None of a plan built where there was no GPU
            to load it and ask.
        plan_bytes: size of the plan.
        plan_sha256: of the plan.
    """

    graph: str
    graph_sha256: str
    target: Target
    profiles: tuple[Profile, ...]
    flags: Flags
    outputs: Mapping[str, str]
    device_memory: int | None
    plan_bytes: int
    plan_sha256: str

    def __post_init__(self) -> None:
        for name in ("graph_sha256", "plan_sha256"):
            if not re.fullmatch(r"[0-9a-f]{64}", getattr(self, name)):
                raise ArtifactError(f"{name} is {getattr(self, name)!r}: expected 64 hexadecimal digits")
        if not self.profiles or any(set(profile) != set(self.profiles[0]) or not profile for profile in self.profiles):
            raise ArtifactError("profiles: expected one or more, each of the same inputs")
        unknown = set(self.outputs.values()) - set(DTYPES)
        if unknown or not self.outputs:
            raise ArtifactError(f"outputs are {dict(self.outputs)}: expected names, each of {', '.join(DTYPES)}")
        if self.plan_bytes < 1 or (self.device_memory is not None and self.device_memory < 0):
            raise ArtifactError(f"sizes are {self.plan_bytes} and {self.device_memory}: expected bytes")

    def profile(self, shapes: Mapping[str, Sequence[int]]) -> int | None:
        """Index of the profile for these inputs: of those that take them, the one tuned for a size nearest to theirs.

        A batch, each shape's first axis, may be larger than a profile's: it is run in parts.
        """
        fitting = [
            (sum(_distance(shapes[name], each.opt) for name, each in profile.items()), index)
            for index, profile in enumerate(self.profiles)
            if set(profile) == set(shapes)
            and all(
                each.covers([min(shapes[name][0], each.max[0]), *shapes[name][1:]]) for name, each in profile.items()
            )
        ]
        return min(fitting)[1] if fitting else None

    def read(self, folder: Path) -> bytes:
        """The plan itself, out of its folder.

        Raises:
            ArtifactError: it is missing, or not the one that this sidecar was written for.
        """
        path = folder / f"{self.graph}.plan"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"{path}: the plan cannot be read: {error}; {_REBUILD}") from error
        if len(data) != self.plan_bytes:
            raise ArtifactError(f"{path} has {len(data)} bytes, its sidecar says {self.plan_bytes}; {_REBUILD}")
        found = hashlib.sha256(data).hexdigest()
        if found != self.plan_sha256:
            raise ArtifactError(f"{path} has sha256 {found}, its sidecar says {self.plan_sha256}; {_REBUILD}")
        return data

    def dump(self) -> str:
        """As JSON."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=2, sort_keys=True)

    @classmethod
    def load(cls, path: Path) -> Sidecar:
        """Read one.

        Raises:
            ArtifactError: no JSON, an unknown or missing key, a value of the wrong type, by name.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: a plan's sidecar cannot be read: {error}; {_REBUILD}") from error
        try:
            if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
                raise ArtifactError(f"expected a mapping of format {_FORMAT}")
            values["target"] = _build(Target, values.get("target"))
            values["flags"] = _build(Flags, values.get("flags"))
            values["profiles"] = tuple(
                {name: _build(Range, each) for name, each in _mapping(profile).items()}
                for profile in _list(values.get("profiles"))
            )
            values["outputs"] = {name: str(each) for name, each in _mapping(values.get("outputs")).items()}
            return _build(cls, values)
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}; {_REBUILD}") from error


def read(folder: Path) -> dict[str, Sidecar]:
    """The sidecars of one folder of plans, by graph.

    Raises:
        ArtifactError: one that is damaged, under another graph's name, or of another target than the rest.
    """
    sidecars = {path.stem: Sidecar.load(path) for path in sorted(folder.glob("*.json"))}
    for name, sidecar in sidecars.items():
        if sidecar.graph != name:
            raise ArtifactError(f"{folder / name}.json is of graph {sidecar.graph!r}; {_REBUILD}")
    if len({sidecar.target for sidecar in sidecars.values()}) > 1:
        found = {name: str(sidecar.target) for name, sidecar in sidecars.items()}
        raise ArtifactError(f"{folder}: the plans are of several targets: {found}; {_REBUILD}")
    return sidecars


def choose(folder: Path, graphs: Sequence[str], targets: Sequence[Target]) -> tuple[Path, dict[str, Sidecar]]:
    """The plans that run here.

    Args:
        folder: with a folder of plans for each kind of GPU.
        graphs: that are needed.
        targets: what this machine is, one for each library it has, the preferred first.

    Returns:
        The folder of the first target that has every graph, and its sidecars by graph.

    Raises:
        ArtifactError: there is none; with what there is, what is needed and the command that makes it.
    """
    found = {path: read(path) for path in sorted(folder.glob("*/"))} if folder.is_dir() else {}
    for target in targets:
        for path, sidecars in found.items():
            if set(graphs) <= set(sidecars) and all(each.target == target for each in sidecars.values()):
                return path, sidecars
    there = [
        f"{next(iter(sidecars.values())).target} ({', '.join(sidecars)})" for sidecars in found.values() if sidecars
    ]
    needed = " or ".join(map(str, targets))
    raise ArtifactError(
        f"no plans for this machine in {folder}: it has {'; '.join(there) or 'none'}, needed is {needed} "
        f"({', '.join(graphs)}); on this machine run `mogface-archive engine --precision {targets[0].precision}`, "
        "and pack the archive again with its folder after --plans"
    )


_REBUILD = "build the plans again: `mogface-archive engine`"
_T = typing.TypeVar("_T")


def _distance(shape: Sequence[int], opt: Shape) -> int:
    return sum(abs(size - middle) for size, middle in zip(shape[1:], opt[1:], strict=True))


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArtifactError(f"got {value!r:.80}: expected a mapping")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ArtifactError(f"got {value!r:.80}: expected a list")
    return value


def _build(cls: type[_T], value: object) -> _T:
    """A dataclass out of JSON, keys and types checked by name."""
    values = dict(_mapping(value))
    types = typing.get_type_hints(cls)
    if set(values) != set(types):
        raise ArtifactError(f"keys {sorted(values)}: expected {sorted(types)}")
    for name, kind in types.items():
        if kind == Shape:
            values[name] = tuple(_list(values[name]))
            good = all(type(size) is int for size in values[name])
        else:
            # bool is an int to Python, and not here.
            expected = kind if isinstance(kind, UnionType) else typing.get_origin(kind) or kind
            good = isinstance(values[name], expected) and (kind is bool or not isinstance(values[name], bool))
        if not good:
            raise ArtifactError(f"{name} is {values[name]!r:.80}: expected {kind}")
    return cls(**values)
