"""Where a source's frames wait for the server: few of them, whatever the source does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

from clients.watch.frame import Frame


class Slot:
    """Between a thread that puts and an event loop that takes.

    Args:
        loop: that takes.
        newest: whether a new frame pushes the oldest out, as of a camera; else the thread waits for room, so that none
            is lost, as of a file.
        size: how many frames wait at most.

    Attributes:
        dropped: frames that were pushed out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, newest: bool, size: int = 1) -> None:
        self.dropped = 0
        self._loop = loop
        self._newest = newest
        self._size = size
        self._frames: deque[Frame] = deque()
        self._closed = False
        self._room = threading.Condition()
        self._filled = asyncio.Event()

    def put(self, frame: Frame) -> bool:
        """Leave a frame, by the thread.

        Returns:
            Whether more are taken: not after ``close``.
        """
        with self._room:
            if not self._newest:
                self._room.wait_for(lambda: self._closed or len(self._frames) < self._size)
            if self._closed:
                return False
            if len(self._frames) == self._size:
                self._frames.popleft()
                self.dropped += 1
            self._frames.append(frame)
        self._wake()
        return True

    def close(self) -> None:
        """No more come or are taken; what waits can still be taken. By either side, any number of times."""
        with self._room:
            self._closed = True
            self._room.notify_all()
        self._wake()

    async def filled(self) -> bool:
        """Wait for a frame.

        Returns:
            Whether there is one; none comes any more where not.
        """
        while True:
            with self._room:
                if self._frames:
                    return True
                if self._closed:
                    return False
                self._filled.clear()
            await self._filled.wait()

    def take(self) -> Frame:
        """The frame that waited longest, of those that wait."""
        with self._room:
            frame = self._frames.popleft()
            self._room.notify_all()
        return frame

    def _wake(self) -> None:
        # A loop that has ended has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._filled.set)
