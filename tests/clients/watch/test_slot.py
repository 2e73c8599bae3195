"""Frames between a thread and the event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from clients.watch.frame import Frame
from clients.watch.slot import Slot


def frame(index: int) -> Frame:
    return Frame(index, index / 25, 0.0, Path("frame.png"))


def test_the_newest_frame_wins() -> None:
    async def run() -> None:
        slot = Slot(asyncio.get_running_loop(), newest=True)
        assert all(slot.put(frame(index)) for index in range(5))
        assert await slot.filled()
        assert (slot.take().index, slot.dropped) == (4, 4)
        slot.put(frame(5))
        slot.close()
        assert not slot.put(frame(6))
        assert await slot.filled(), "what waits can still be taken"
        assert slot.take().index == 5
        assert not await slot.filled()

    asyncio.run(run())


def test_a_file_waits_for_room_and_loses_nothing() -> None:
    async def run() -> None:
        slot = Slot(asyncio.get_running_loop(), newest=False, size=2)
        put: list[bool] = []
        thread = threading.Thread(target=lambda: put.extend(slot.put(frame(index)) for index in range(4)))
        thread.start()
        thread.join(0.2)
        assert put == [True, True]
        taken: list[int] = []
        while len(taken) < 3:
            async with asyncio.timeout(10):
                assert await slot.filled()
            taken.append(slot.take().index)
        assert taken == [0, 1, 2]
        thread.join(10)
        assert (put, slot.dropped) == ([True] * 4, 0)

    asyncio.run(run())


def test_a_thread_that_waits_is_let_go() -> None:
    async def run() -> None:
        slot = Slot(asyncio.get_running_loop(), newest=False, size=1)
        slot.put(frame(0))
        put: list[bool] = []
        thread = threading.Thread(target=lambda: put.append(slot.put(frame(1))))
        thread.start()
        slot.close()
        thread.join(10)
        assert put == [False]

    asyncio.run(run())
