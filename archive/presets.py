"""Kinds of machines: what an image takes there at least, and how many workers are worth while."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from handler.errors import ConfigError

#: Of a MIG instance's name, as `nvidia-smi mig -lgip` lists them: sevenths of the card's arithmetic, and memory.
_SLICE = re.compile(r"([1-7])g\.([1-9][0-9]{0,2})gb")
_SEVENTHS = 7


@dataclass(frozen=True)
class Preset:
    """A kind of machine.

    Attributes:
        image_ms: the least time of a 640x640 image there.
        ground: where that figure comes from.
        workers: a GPU, or in all on a CPU.
        gpu_memory_mb: of one card, or of one MIG instance; 0 on a CPU.
    """

    image_ms: Mapping[str, float]
    ground: str
    workers: int
    gpu_memory_mb: int = 0

    def sliced(self, name: str) -> Preset:
        """The same card cut into MIG instances of this name, such as ``1g.5gb``.

        An instance has so many sevenths of the card's arithmetic, and its image time is taken to grow by as much: an
        estimate on the fast side, since a seventh is a little less than that of the card's processors.

        Raises:
            ConfigError: no such name, an instance larger than the card, or a machine without GPUs.
        """
        match = _SLICE.fullmatch(name)
        if not match or not self.gpu_memory_mb:
            raise ConfigError(f"mig is {name!r}: expected the name of a GPU's MIG instance, such as 1g.5gb")
        share, memory_mb = int(match[1]), int(match[2]) * 1000
        if memory_mb > self.gpu_memory_mb:
            raise ConfigError(f"mig is {name!r}: the whole card has {self.gpu_memory_mb:,} MB")
        return replace(
            self,
            image_ms={detector: each * _SEVENTHS / share for detector, each in self.image_ms.items()},
            ground=f"{self.ground}, on {share} sevenths of the card",
            gpu_memory_mb=memory_mb,
        )


def _gpu(floor_ms: float, tflops: int, memory_gb: int) -> Preset:
    # CenterFace is a hundredth of MogFace's work; on a GPU its time is launches. Two workers: one decodes and packs
    # answers while the other's network runs, TorchServe keeping each strictly serial.
    return Preset(
        {"mogface": floor_ms, "centerface": 1.0},
        f"floor, not measured: 1.62 TFLOP an image over {tflops} TFLOP/s of dense FP16",
        2,
        memory_gb * 1000,
    )


PRESETS = {
    "cpu": Preset({"mogface": 10_000.0, "centerface": 100.0}, "measured on two cores, rounded up", 1),
    "t4": _gpu(25.0, 65, 16),
    "a10": _gpu(13.0, 125, 24),
    "a100": _gpu(5.2, 312, 40),
    "h200": _gpu(2.1, 790, 141),
}


def preset(name: str, mig: str = "") -> Preset:
    """The preset of this name, cut into MIG instances where ``mig`` names them.

    Raises:
        ConfigError: none of them, or see :meth:`Preset.sliced`.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}: expected one of {', '.join(PRESETS)}")
    return PRESETS[name].sliced(mig) if mig else PRESETS[name]
