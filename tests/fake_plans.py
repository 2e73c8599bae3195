"""Plans of the fake TensorRT, and archives that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from archive.engine import Builder, Order
from handler.cuda import Device
from handler.engines import trt
from handler.engines.trt import TrtEngine, Worker
from handler.geometry import Canvas
from handler.plans import Profile, Range, Shape, Sidecar
from tests import fake_tensorrt
from tests.handler.engine_contract import WIDTH, doubled

#: Of the known-answer graph: batches of 2 for the first one, of 4 for none that comes.
PROFILES: tuple[Profile, ...] = (
    {"x": Range((1, WIDTH), (1, WIDTH), (2, WIDTH))},
    {"x": Range((1, 9), (2, 9), (4, 9))},
)


class AnyBuilder(Builder):
    """A builder for graphs that are not this project's."""

    given: Sequence[Profile] = ()

    def _profiles(self, graph: str) -> tuple[Profile, ...]:
        return tuple(self.given)


def fake_plans(
    graphs: Mapping[str, Path],
    order: Order,
    folder: Path,
    profiles: Sequence[Profile] = (),
    device: Device | None = None,
) -> Path:
    """Build ``graphs`` with the fake; the folder of the plans."""
    kind = AnyBuilder if profiles else Builder
    builder = kind("tensorrt", fake_tensorrt, order, folder, fake_tensorrt.CAPABILITY, folder / "timing", device)
    if isinstance(builder, AnyBuilder):
        builder.given = profiles
    return builder.build(graphs)


def doubled_plan(folder: Path, profiles: Sequence[Profile] = PROFILES[:1]) -> tuple[bytes, Sidecar]:
    """The known-answer graph as a plan of the fake."""
    order = Order("centerface", [Canvas(32, 32)], 32)
    place = fake_plans({"doubled": doubled(folder / "doubled.onnx")}, order, folder, profiles)
    sidecar = Sidecar.load(place / "doubled.json")
    return sidecar.read(place), sidecar


def doubled_engine(
    folder: Path, profiles: Sequence[Profile] = PROFILES[:1], recorded: Sequence[Shape] = ()
) -> TrtEngine:
    plan, sidecar = doubled_plan(folder, profiles)
    return TrtEngine(plan, sidecar, Worker(fake_tensorrt, fake_tensorrt.Host()), recorded=recorded)


#: What the module ends with that another process imports as ``tensorrt``: the CPU stands in for its GPU.
HOOK = """

import sys  # noqa: E402

import handler.engines.trt  # noqa: E402

for each in ("handler.engines.trt", "archive.engine"):
    if each in sys.modules:
        sys.modules[each].Cuda = Host
"""


def as_tensorrt(folder: Path) -> Path:
    """A folder for PYTHONPATH, in which ``tensorrt`` is the fake."""
    source = Path(fake_tensorrt.__file__).read_text(encoding="utf-8")
    (folder / "tensorrt.py").write_text(source + HOOK, encoding="utf-8")
    return folder


def pretend(monkeypatch: pytest.MonkeyPatch, host: Device | None = None) -> None:
    """Let ``engines.load`` find the fake, and the CPU in the place of a GPU."""
    trt._open.cache_clear()
    monkeypatch.setattr(trt, "libraries", lambda: {"tensorrt": fake_tensorrt})
    monkeypatch.setattr(trt, "Cuda", lambda device: host or fake_tensorrt.Host())
