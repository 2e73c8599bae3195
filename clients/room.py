"""Whether this machine has memory for one more worker, where the server runs on it.

TorchServe starts as many workers as it is told to, until the kernel kills one, or the front end with every request
that waits in it.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

from clients.errors import UsageError
from clients.version import Version

_MEMORY = Path("/proc/meminfo")
#: Of the largest worker's memory: a new one reads its archive while it loads.
_MARGIN = 1.2


def require(address: str, version: Version) -> None:
    """Raise unless one more worker like the largest fits into the memory that is free.

    Args:
        address: of the management API; another machine's memory is not known here, and nothing is asked of it.
        version: whose workers are measured.

    Raises:
        UsageError: with both numbers.
    """
    sizes = [_resident(worker.pid) for worker in version.workers] if _local(address) else []
    free = _free()
    if not sizes or free is None:
        return
    needed = _MARGIN * max(sizes)
    if needed > free:
        raise UsageError(
            f"{version.name} has {len(version.workers)} workers, and one more needs about {needed / 1e6:.0f} MB, "
            f"of which {free / 1e6:.0f} are free here: the server would be ended for want of memory"
        )


def _local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _resident(pid: int) -> int:
    """Bytes; 0 where there is no such process, or it is in another container."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _free() -> int | None:
    """Bytes that programs can have without swapping; None where this system does not say."""
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
