"""Memory that is freed goes back to the system."""

from __future__ import annotations

import ctypes

#: Bytes from which a block is the system's own and returns there when it is freed. Pillow takes pictures in blocks of
#: 16 MiB. Lower costs time, because each new page has to be cleared: at 1 MB a 2 megapixel JPEG takes twice as long
#: to decode, at this none that can be measured.
THRESHOLD = 16_000_000
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def return_freed_memory() -> bool:
    """Hold glibc to THRESHOLD in this process; whether that was done, since other C libraries have no such setting.

    By itself glibc raises its threshold to 32 MB as large pictures come, and keeps what each thread has freed: after a
    burst of large pictures a worker stays at its peak.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, THRESHOLD))
