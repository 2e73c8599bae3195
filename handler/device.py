"""Which GPU a worker owns.

TorchServe numbers its workers' GPUs by a counter that is never given back, so that scaling down and up can
leave two workers on one GPU and none on the other. Here each worker claims the GPU that the fewest living
workers hold. A claim is a lock on a small file, which the kernel drops when the worker ends, however it
ends. Servers that share a temporary folder share the claims.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

import torch

from handler.errors import EnvironmentFault

#: As CUDA_VISIBLE_DEVICES, for workers alone: MIG instances by name, with which TorchServe's front end does not start.
#: Of several a process sees the first, so each worker is shown the one that it claimed.
INSTANCES = "MOGFACE_VISIBLE_DEVICES"


def claims_folder() -> Path:
    """Where this user's claims lie."""
    return Path(tempfile.gettempdir()) / f"mogface-gpu-claims-{os.getuid()}"


class Claim:
    """A GPU held until ``release`` or the end of the process.

    Attributes:
        gpu: its index among the visible ones.
    """

    def __init__(self, gpu: int, file: IO[str]) -> None:
        self.gpu = gpu
        self._file = file

    def release(self) -> None:
        """Give the GPU back."""
        self._file.close()


def claim(gpus: int, preferred: int, folder: Path | None = None) -> Claim:
    """Claim the GPU with the fewest claims; among equals ``preferred``, then the lowest index.

    Args:
        gpus: how many are visible; at least 1.
        preferred: TorchServe's own choice.
        folder: of the claims; made when it is not there.
    """
    folder = folder or claims_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as guard:
        # One worker at a time counts and claims.
        fcntl.flock(guard, fcntl.LOCK_EX)
        held = _counts(gpus, folder)
        gpu = min(range(gpus), key=lambda each: (held[each], each != preferred, each))
        slot = 0
        while (file := _lock(folder / f"gpu{gpu}.{slot}")) is None:
            slot += 1
        return Claim(gpu, file)


def counts(gpus: int, folder: Path | None = None) -> list[int]:
    """Living claims on each GPU."""
    folder = folder or claims_folder()
    if not folder.exists():
        return [0] * gpus
    with (folder / "lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        return _counts(gpus, folder)


def _counts(gpus: int, folder: Path) -> list[int]:
    held = [0] * gpus
    for gpu in range(gpus):
        for path in folder.glob(f"gpu{gpu}.*"):
            file = _lock(path)
            if file is None:
                held[gpu] += 1
            else:
                file.close()
    return held


def _lock(path: Path) -> IO[str] | None:
    """The file, locked, or None where another holds it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def visible() -> list[str] | None:
    """The GPUs or MIG instances that are listed for this process, as they are named; None where nothing is said."""
    listed = os.environ.get(INSTANCES) or os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if listed is None else [entry.strip() for entry in listed.split(",") if entry.strip()]


def visible_gpus() -> int:
    """How many there are of them; by CUDA_VISIBLE_DEVICES TorchServe counts the same way."""
    listed = visible()
    return torch.cuda.device_count() if listed is None else len(listed)


def choose(setting: str, claimed: Claim | None) -> torch.device:
    """The device for a worker.

    Args:
        setting: ``auto``, ``cpu`` or ``cuda`` of ``detector.yaml``.
        claimed: the GPU that this worker holds, if TorchServe gave it one.

    Raises:
        EnvironmentFault: a GPU is asked for and torch sees none.
    """
    index = claimed.gpu if claimed else 0
    if claimed and os.environ.get(INSTANCES) and setting != "cpu":
        # Before anything asks CUDA, which reads it once.
        os.environ["CUDA_VISIBLE_DEVICES"], index = (visible() or [])[index], 0
    available = torch.cuda.is_available()
    if setting == "cpu" or (setting == "auto" and not available):
        return torch.device("cpu")
    if not available:
        raise EnvironmentFault("device is 'cuda' in detector.yaml, but torch sees no GPU here")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
