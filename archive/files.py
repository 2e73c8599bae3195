"""Files written whole or not at all, their hashes, and the progress of what takes long."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm

_BLOCK = 1 << 20


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


def progress(label: str, total: int, unit: str = "step") -> tqdm[NoReturn]:
    """A progress bar on the terminal's error stream; a context manager with ``update(n)``."""
    from tqdm import tqdm

    return tqdm(total=total, desc=label, unit=unit, unit_scale=unit == "B", leave=True, dynamic_ncols=True)
