"""From the command line's words to images: files, folders, patterns, the standard input."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO

from clients.errors import UsageError

#: Of pictures: what a folder is searched for. Some kinds the server may refuse, and says so of each.
SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".apng",
    ".webp",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".avif",
    ".heic",
    ".heif",
)
STDIN = "-"


@dataclass(frozen=True)
class Source:
    """One image that is asked for.

    Attributes:
        path: as it is told: a file's, or ``-``.
        data: of the standard input; None for a file, which is read when it is its turn.
        error: why there is nothing to send.
    """

    path: str
    data: bytes | None = None
    error: UsageError | None = None

    @property
    def image(self) -> bytes | Path:
        """What is sent."""
        return Path(self.path) if self.data is None else self.data

    def read(self) -> bytes:
        """The bytes that are sent.

        Raises:
            UsageError: the file cannot be read.
        """
        if self.data is not None:
            return self.data
        try:
            return Path(self.path).read_bytes()
        except OSError as error:
            raise UsageError(f"image {self.path} cannot be read: {error.strerror or error}") from error


def sources(words: Sequence[str], stdin: IO[bytes], apart: Sequence[Path] = ()) -> list[Source]:
    """Each image once, in the order of the words; a folder's by name.

    Args:
        words: a file is taken whatever its name; a folder is searched, with those below it, for files of ``SUFFIXES``;
            a pattern is what a shell would make of it, ``**`` included; ``-`` is the standard input.
        stdin: read where a word asks for it.
        apart: folders that are written to: none may lie where images are looked for.

    Raises:
        UsageError: a word that names nothing, a folder of ``apart`` inside a searched one, or a standard input that
            cannot be read.
    """
    found: dict[str, Source] = {}
    for word in words:
        for path in _named(word):
            if path == STDIN:
                if STDIN not in found:
                    found[STDIN] = Source(STDIN, _all(stdin))
                continue
            for source in _folder(path, apart) if os.path.isdir(path) else [Source(str(PurePath(path)))]:
                found.setdefault(os.path.abspath(source.path), source)
    return list(found.values())


def _all(stdin: IO[bytes]) -> bytes:
    try:
        return stdin.read()
    except OSError as error:
        raise UsageError(f"the standard input cannot be read: {error.strerror or error}") from error


def _named(word: str) -> list[str]:
    if word == STDIN or os.path.lexists(word):
        return [word]
    matches = sorted(glob.glob(word, recursive=True), key=os.fsencode) if glob.has_magic(word) else []
    if not matches:
        raise UsageError(f"{word!r} names no file, no folder and no pattern that fits one")
    return matches


def _folder(path: str, apart: Sequence[Path]) -> list[Source]:
    for folder in apart:
        if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(path)):
            raise UsageError(
                f"{folder} lies inside {path}, which is searched for images: the next run would take what is written "
                "for images; choose a folder elsewhere"
            )
    found = list(_walk(PurePath(path), set()))
    if not found:
        raise UsageError(f"{path} holds no picture, nor do the folders below it ({', '.join(SUFFIXES)})")
    return found


def _walk(folder: PurePath, above: set[tuple[int, int]]) -> Iterator[Source]:
    """Depth first, by the names' bytes; a link to a folder above is not gone round again."""
    try:
        seen = os.stat(folder)
        if (seen.st_dev, seen.st_ino) in above:
            return
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        yield Source(str(folder), error=UsageError(f"folder {folder} cannot be read: {error.strerror or error}"))
        return
    for entry in entries:
        path = folder / entry.name
        if _is_folder(entry):
            yield from _walk(path, above | {(seen.st_dev, seen.st_ino)})
        elif path.suffix.lower() in SUFFIXES:
            yield Source(str(path), error=_unfit(path))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that goes in a circle by itself.
        return False


def _unfit(path: PurePath) -> UsageError | None:
    """Why a file that was found is not read: a pipe would be waited for without end."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return UsageError(f"image {path} cannot be read: {error.strerror or error}")
    return None if stat.S_ISREG(mode) else UsageError(f"image {path} is no regular file")
