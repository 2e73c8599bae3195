from __future__ import annotations

import subprocess
import sys
import time

import pytest

from load_tests.peers.usage import Usage

#: Burns a second of the processor while it holds 200 MB.
CHILD = """
import time
held = bytearray(200_000_000)
end = time.process_time() + 1.0
while time.process_time() < end:
    pass
print("done", flush=True)
time.sleep(60)
"""
#: Starts it at a line, says when it is done, and ends it at another.
PARENT = """
import subprocess, sys
sys.stdin.readline()
process = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
print(process.stdout.readline(), end="", flush=True)
sys.stdin.readline()
process.kill()
"""


def test_a_tree_is_measured_with_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        with Usage(parent.pid) as usage:
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "done\n"
            time.sleep(0.7)
        parent.stdin.write("\n")
    # Of this machine's clock ticks and the interpreters' start.
    assert 0.95 <= usage.cpu_s <= 2.5
    assert 200 <= usage.pss_mb <= 300


def test_a_process_that_waits_takes_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        time.sleep(0.5)
        with Usage(idle.pid) as usage:
            time.sleep(0.3)
        idle.communicate(b"\n")
    assert usage.cpu_s == pytest.approx(0, abs=0.2)
