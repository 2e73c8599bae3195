"""What NVIDIA's management library says of the card that this worker holds.

TorchServe's own collector, which is off, needs a package of its own and starts a process a minute. Here the
package ``nvidia-ml-py`` (``import pynvml``) is asked in the worker, and only on GPU hosts.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from typing import Any

from handler import device
from handler.metrics import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    GPU_WORKERS,
    Gauge,
    Meter,
)

log = logging.getLogger("mogface")


def claims(meter: Meter) -> None:
    """How many living workers of this user hold each visible GPU: none of them is a worker's own word."""
    for gpu, count in enumerate(device.counts(device.visible_gpus())):
        meter.set(GPU_WORKERS, count, str(gpu))


class Card:
    """One GPU's use, memory and temperature.

    Args:
        gpu: its index among the visible ones, as CUDA_VISIBLE_DEVICES lists them: numbers in the order of the
            bus, or UUIDs. CUDA itself numbers faster cards first: where cards differ, set
            ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, so that both mean the same card.
    """

    def __init__(self, gpu: int) -> None:
        self._label = str(gpu)
        self._readings: dict[Gauge, Callable[[], float]] = {}
        self._refused: set[Gauge] = set()
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            self._say("no readings", "install nvidia-ml-py", "of the package pynvml there is none")
            return
        try:
            self._nvml.nvmlInit()
            handle = self._handle(gpu)
        except self._nvml.NVMLError as error:
            self._say("no readings", "is the driver there?", str(error))
            return
        self._readings = {
            GPU_UTILIZATION: lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            GPU_MEMORY_USED: lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle).used,
            GPU_MEMORY_TOTAL: lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle).total,
            GPU_TEMPERATURE: lambda: self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU),
        }

    def read(self, meter: Meter) -> None:
        """Set the gauges; one that the card refuses (a MIG slice has no use of its own) is told of once."""
        for gauge, reading in self._readings.items():
            try:
                meter.set(gauge, reading(), self._label)
            except self._nvml.NVMLError as error:
                if gauge not in self._refused:
                    self._say(f"no {gauge.name}", "left out while it is refused", str(error))
                self._refused.add(gauge)

    def _handle(self, gpu: int) -> Any:
        listed = device.visible()
        name = str(gpu) if listed is None else listed[gpu]
        if name.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _say(self, what: str, then: str, why: str) -> None:
        log.warning(json.dumps({"event": "gpu_metrics", "gpu": self._label, "what": what, "then": then, "why": why}))
