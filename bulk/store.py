"""A folder of files, on a file system or behind a URL, whose files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from bulk.errors import UsageError

#: Whose PUT shows a file whole or not at all. Elsewhere a reader, or a run that goes on, could meet half a file.
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")
_LOCAL = ("file", "local")
#: Beside the folders, so that a process that is killed leaves nothing in them that is not whole.
_DRAFTS = ".drafts"


def opened(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path on it.

    Raises:
        UsageError: no such protocol, or its package is not installed.
    """
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(f"{url} cannot be opened: {error}") from error
    return filesystem, path


def is_local(filesystem: Any) -> bool:
    """Whether it is this machine's own, mounted ones included."""
    return bool(set(_protocols(filesystem)) & set(_LOCAL))


@dataclass(frozen=True)
class Store:
    """Where a job's files lie. A value: workers on other machines make their own connection of it.

    Attributes:
        url: of the folder; a local path is absolute.

    Raises:
        UsageError: a protocol whose files are not written whole.
    """

    url: str

    def __post_init__(self) -> None:
        filesystem, path = opened(self.url)
        if is_local(filesystem):
            object.__setattr__(self, "url", path)
        elif not set(_protocols(filesystem)) & set(_OBJECT_STORES):
            raise UsageError(
                f"output {self.url}: files there could be seen half written; expected a folder of a file system, or of "
                f"{', '.join(_OBJECT_STORES[:-1])}"
            )

    def write(self, name: str, data: bytes) -> None:
        """One file, whole: it takes the place of the one before at once.

        Raises:
            OSError: it cannot be written.
        """
        filesystem, root = opened(self.url)
        if not is_local(filesystem):
            filesystem.pipe_file(f"{root}/{name}", data)
            return
        path = Path(root) / name
        drafts = Path(root) / _DRAFTS
        for folder in (path.parent, drafts):
            folder.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=drafts)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files private; these are as readable as any other.
            Path(draft).chmod(0o644)
            Path(draft).replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)

    def tidy(self) -> None:
        """Remove what processes that were killed left of their files; once nobody writes any more."""
        filesystem, root = opened(self.url)
        if is_local(filesystem):
            shutil.rmtree(Path(root) / _DRAFTS, ignore_errors=True)

    def remove(self, name: str) -> None:
        """One file, which is there.

        Raises:
            OSError: it cannot be removed.
        """
        filesystem, root = opened(self.url)
        filesystem.rm_file(f"{root}/{name}")

    def read(self, name: str) -> bytes:
        """One file.

        Raises:
            OSError: it cannot be read.
        """
        filesystem, root = opened(self.url)
        data: bytes = filesystem.cat_file(f"{root}/{name}")
        return data

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Every file of a folder by its name, read side by side where the file system can; see ``names``.

        Raises:
            OSError: one cannot be read.
        """
        names = self.names(folder)
        filesystem, root = opened(self.url)
        # Asked for one path it would give bytes, and not a mapping.
        found = filesystem.cat([f"{root}/{folder}/{name}" for name in names]) if names else {}
        return {str(path).rpartition("/")[2]: data for path, data in found.items()}

    def has(self, name: str) -> bool:
        """Whether it is there."""
        filesystem, root = opened(self.url)
        # Listings are kept by some file systems, and other machines write here too.
        filesystem.invalidate_cache()
        return bool(filesystem.exists(f"{root}/{name}"))

    def names(self, folder: str) -> list[str]:
        """Files in a folder, sorted; none where it is not there. Drafts that are being written are no files."""
        filesystem, root = opened(self.url)
        filesystem.invalidate_cache()
        try:
            listed = filesystem.ls(f"{root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        names = [str(path).rpartition("/")[2] for path in listed]
        return sorted(name for name in names if name and not name.startswith("."))


def _protocols(filesystem: Any) -> tuple[str, ...]:
    given = filesystem.protocol
    return (given,) if isinstance(given, str) else tuple(given)
