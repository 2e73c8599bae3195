"""Openly a fake of ``pynvml``: two cards with readings that are made up, no driver, no NVIDIA library.

Names and errors are those of nvidia-ml-py 13; a test puts this file where ``import pynvml`` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    """Root of the library's errors."""


@dataclass(frozen=True)
class _Memory:
    total: int
    used: int


@dataclass(frozen=True)
class _Utilization:
    gpu: int


@dataclass(frozen=True)
class _Card:
    uuid: str
    utilization: int
    memory: _Memory
    temperature: int


CARDS = (
    _Card("GPU-fake-0", 42, _Memory(80_000_000_000, 20_000_000_000), 51),
    _Card("GPU-fake-1", 7, _Memory(80_000_000_000, 79_000_000_000), 88),
)
_ready = False


def nvmlInit() -> None:  # noqa: N802
    global _ready
    _ready = True


def nvmlDeviceGetHandleByIndex(index: int) -> _Card:  # noqa: N802
    if not _ready:
        raise NVMLError("Uninitialized")
    if not 0 <= index < len(CARDS):
        raise NVMLError("Invalid Argument")
    return CARDS[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> _Card:  # noqa: N802
    for card in CARDS:
        if card.uuid == uuid:
            return card
    raise NVMLError("Not Found")


def nvmlDeviceGetUtilizationRates(card: _Card) -> _Utilization:  # noqa: N802
    return _Utilization(card.utilization)


def nvmlDeviceGetMemoryInfo(card: _Card) -> _Memory:  # noqa: N802
    return card.memory


def nvmlDeviceGetTemperature(card: _Card, sensor: int) -> int:  # noqa: N802
    if sensor != NVML_TEMPERATURE_GPU:
        raise NVMLError("Invalid Argument")
    return card.temperature
