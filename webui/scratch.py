"""The page's folder for uploads and results, emptied as they grow old."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path


def sweep(folder: Path, keep_s: float, now: float | None = None) -> int:
    """Delete files that have been below a folder for over ``keep_s`` seconds, and folders that are empty then.

    Args:
        folder: itself stays.
        keep_s: since a file was made or changed here, s.
        now: seconds since the epoch; the clock's where None.

    Returns:
        How many files were deleted.
    """
    now = time.time() if now is None else now
    deleted = 0
    # Deepest first, so that a folder's files are gone when it is looked at.
    for path in sorted(folder.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        with contextlib.suppress(FileNotFoundError):
            # Since it came here: a copy keeps the time at which its original was written.
            if now - path.lstat().st_ctime <= keep_s:
                continue
            if path.is_dir() and not path.is_symlink():
                # Not empty: something younger is in it.
                with contextlib.suppress(OSError):
                    path.rmdir()
            else:
                path.unlink()
                deleted += 1
    return deleted


async def swept(folder: Path, keep_s: float) -> None:
    """Sweep a folder for ever, so that nothing is kept for much longer than ``keep_s`` seconds."""
    while True:
        await asyncio.sleep(min(30.0, keep_s / 4))
        await asyncio.to_thread(sweep, folder, keep_s)
