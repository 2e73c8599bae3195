"""The event loop of all of a process's threaded clients: gRPC's poller does not get on with several."""

from __future__ import annotations

import asyncio
import os
import threading

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def shared() -> asyncio.AbstractEventLoop:
    """The one loop, which runs in a thread of its own, begun by the first call.

    The thread is a daemon: a client that nobody closed does not keep the program from ending.
    """
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="mogface-client", daemon=True).start()
        return _loop


def _forget() -> None:
    """A forked process has no such thread, and perhaps a lock that nobody is there to open."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
