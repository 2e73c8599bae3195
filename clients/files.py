"""Files written whole or not at all, and errors that name the file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_UMASK = os.umask(0)
os.umask(_UMASK)
# A name of its own, not the file's: that may have all of the 255 bytes that a name can have.
_DRAFT = ".mogface-"


@contextlib.contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write beside ``path``; it takes its place when the block ends without an exception.

    A symbolic link at ``path`` is replaced as any other file is: what it points to is left as it was.

    Raises:
        OSError: with ``path`` as its file name.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_DRAFT, dir=path.parent)
        draft = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files private: a file keeps the mode it had, a new one has that of any other.
            draft.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_UMASK)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(name: str | Path) -> Iterator[None]:
    """Gives the block's OSErrors a file name: those of a write have none, those of a draft its."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(name)) from error
