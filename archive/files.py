"""Files written whole or not at all, their hashes, and the progress of what takes long."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

_BLOCK = 1 << 20
#: Between two lines of progress where nobody watches: a log keeps them all.
_LINES_S = 30.0


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to beside ``path``; it takes its place when the block ends without an exception.

    Args:
        path: the file wanted; its folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp makes files private; what is built here is as readable as any other file.
        draft.chmod(0o644)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


class _Lines:
    """A stream that what tqdm draws becomes lines on: in a file, a redrawn bar is one line without an end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        # tqdm pads what it redraws with blanks, and ends it with an empty line.
        if line := text.strip():
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        self._stream.flush()


def progress(label: str, total: int, unit: str = "step") -> tqdm[NoReturn]:
    """On the error stream: a bar on a terminal, elsewhere a plain line at each end and now and then between.

    Args:
        label: what goes on.
        total: units in all.
        unit: what is counted; B is shown by its multiples.

    Returns:
        A context manager with ``update(n)``, and ``set_postfix_str``, which off a terminal writes a line each.
    """
    from tqdm import tqdm

    bytewise = unit == "B"
    if sys.stderr.isatty():
        return tqdm(total=total, desc=label, unit=unit, unit_scale=bytewise, leave=True, dynamic_ncols=True)
    counts = "{n_fmt} of {total_fmt}{unit}" if bytewise else "{n:.0f} of {total:.0f} {unit}"
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        unit_scale=bytewise,
        file=_Lines(sys.stderr),
        mininterval=_LINES_S,
        miniters=0,
        bar_format=f"{{desc}}: {counts}, {{elapsed}}{{postfix}}",
    )
