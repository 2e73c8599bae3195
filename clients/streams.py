"""The standard streams of a command, which whoever starts it may have closed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from clients.files import naming

#: The file name in errors of it.
STDOUT = "standard output"
#: Python's name of each stream, and how the null device is opened in its place: one that has no reader or writer fails
#: as the closed stream does, but for the error stream, on which nothing can be told of itself.
_CLOSED = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def prepare() -> None:
    """Have all three streams, so that no file or connection takes a closed one's number and is written to by mistake.

    Python has None for a closed stream, which print() takes for the standard output.
    """
    for number, (name, flags) in enumerate(_CLOSED):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, flags)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    # File names and the server's words may have characters that the terminal has not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Writes what is buffered when the block ends: at the program's end Python would only complain of what it cannot.

    Raises:
        OSError: with a file name; without one it comes of a print().
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = STDOUT
        raise
    finally:
        with naming(STDOUT):
            sys.stdout.flush()


def give_up() -> None:
    """Drop what the standard output did not take, without another complaint."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
