"""One event loop for all clients of a process."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clients import loop


def test_many_threads_begin_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    barrier = threading.Barrier(16)
    new = asyncio.new_event_loop

    def slow() -> Any:
        # Long enough for every thread to come by.
        threading.Event().wait(0.1)
        made.append(new())
        return made[-1]

    def ask(_: int) -> Any:
        barrier.wait()
        return loop.shared()

    monkeypatch.setattr(loop, "_loop", None)
    monkeypatch.setattr(asyncio, "new_event_loop", slow)
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(ask, range(16)))
    assert len(made) == 1
    assert set(map(id, got)) == {id(made[0])}
    made[0].call_soon_threadsafe(made[0].stop)


def test_a_fork_in_the_middle_of_the_beginning_does_not_stop_the_child() -> None:
    with loop._lock:
        child = os.fork()
        if not child:
            done = threading.Thread(target=loop.shared, daemon=True)
            done.start()
            done.join(20)
            os._exit(int(done.is_alive()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
