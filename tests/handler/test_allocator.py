from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

_MEASURE = """
import sys, threading
from pathlib import Path
import numpy as np
from handler import allocator
if sys.argv[1] == "held":
    assert allocator.return_freed_memory()
def resident():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
def work():
    # glibc by itself keeps blocks of this size, once one such was freed.
    for _ in range(3):
        blocks = [np.ones(20_000_000, np.uint8) for _ in range(8)]
        small = np.ones(10_000, np.uint8)
        keep.append(small)
        del blocks
keep = []
before = resident()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_large_blocks_go_back_when_they_are_freed() -> None:
    command = [sys.executable, "-c", _MEASURE, "held"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 30_000_000
