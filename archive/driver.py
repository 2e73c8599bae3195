"""NVIDIA's driver, asked before gigabytes are installed that it cannot run. Needs the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from handler.errors import EnvironmentFault

#: The oldest branch that runs what constraints/gpu.txt pins: CUDA 13, in PyTorch's build, in ONNX Runtime's and in
#: the wheels of TensorRT that end in cu13.
NEEDED = 580
#: The oldest one of CUDA 12's wheels.
NEEDED_BY_CUDA_12 = 535


@dataclass(frozen=True)
class Gpu:
    """One GPU as ``nvidia-smi`` names it, and the driver's version, such as ``580.65.06``."""

    name: str
    driver: str


def gpus() -> list[Gpu]:
    """The GPUs of this machine.

    Raises:
        EnvironmentFault: ``nvidia-smi`` is missing, fails or names none.
    """
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stdout", None) or "").strip().partition("\n")[0]
        raise EnvironmentFault(f"no NVIDIA driver answers: {said or error}; `make setup GPU=0` is for CPUs") from error
    rows = [line.rpartition(",") for line in done.stdout.splitlines() if line.strip()]
    if not rows:
        raise EnvironmentFault("nvidia-smi names no GPU; `make setup GPU=0` is for CPUs")
    return [Gpu(name.strip(), driver.strip()) for name, _, driver in rows]


def require(found: list[Gpu]) -> None:
    """Raises EnvironmentFault unless the driver runs what is pinned for GPU hosts."""
    driver = found[0].driver
    branch = driver.partition(".")[0]
    if not branch.isdecimal():
        raise EnvironmentFault(f"nvidia-smi gives the driver's version as {driver!r}: expected one such as 580.65.06")
    if int(branch) < NEEDED:
        older = (
            f"; this one runs CUDA 12's wheels (r{NEEDED_BY_CUDA_12} or newer), of which constraints/gpu.txt has none"
            if int(branch) >= NEEDED_BY_CUDA_12
            else ""
        )
        raise EnvironmentFault(
            f"the NVIDIA driver is {driver}: PyTorch's CUDA 13 build, onnxruntime-gpu and tensorrt-cu13 need r{NEEDED} "
            f"or newer{older}. Renew the driver, or use `make setup GPU=0`"
        )


def main() -> int:
    """Print what is there; 1 where it does not do."""
    try:
        found = gpus()
        require(found)
    except EnvironmentFault as error:
        print(error, file=sys.stderr)
        return 1
    print(f"NVIDIA driver {found[0].driver}, {len(found)} GPUs: {', '.join(gpu.name for gpu in found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
