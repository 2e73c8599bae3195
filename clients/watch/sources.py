"""From the command line's words to sources of frames."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from clients.errors import UsageError
from clients.sources import SUFFIXES

_SCHEMES = ("rtsp", "rtsps", "http", "https", "rtmp", "rtmps", "srt", "udp", "tcp", "rtp")
#: Characters of a message; bytes of a file's name, which has 255 at most.
_TEXT_LIMIT, _FILE_LIMIT = 200, 100


class Kind(Enum):
    """What a source is."""

    CAMERA = "camera"
    STREAM = "stream"
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True)
class Source:
    """Where frames come from.

    Attributes:
        name: as results tell it: an address without its user, password and query, which may hold secrets.
        kind: what it is.
        address: what is opened.
        live: whether frames come by a clock and are lost when they are not taken.
        file: its name as one of a file, without a suffix.
    """

    name: str
    kind: Kind
    address: str = field(repr=False)
    live: bool
    file: str = ""

    @property
    def lasting(self) -> bool:
        """Whether it is opened again when it ends: cameras and streams are."""
        return self.kind in (Kind.CAMERA, Kind.STREAM)


def sources(words: Sequence[str], live: bool = False) -> list[Source]:
    """Each word's source, their names made distinct.

    Args:
        words: a camera's number, an address, a file, a folder of frames.
        live: have files play at their own pace and lose frames, as a camera would.

    Raises:
        UsageError: there is no such thing, by name.
    """
    found = [_source(word, live) for word in words]
    names = _distinct([source.name for source in found], " ({})")
    files = _distinct([_file(source) for source in found], ".{}")
    return [replace(source, name=name, file=file) for source, name, file in zip(found, names, files, strict=True)]


def _file(source: Source) -> str:
    path = Path(source.name)
    name = {Kind.FILE: path.stem, Kind.FOLDER: path.resolve().name}.get(source.kind, source.name)
    name = re.sub(r"[^\w.-]+", "_", name).encode("utf-8", "replace")[-_FILE_LIMIT:].decode("utf-8", "ignore")
    return name.strip("._") or source.kind.value


def _source(word: str, live: bool) -> Source:
    if re.fullmatch(r"\d{1,3}", word):
        device = Path(f"/dev/video{word}")
        if not device.exists():
            raise UsageError(f"camera {word}: there is no {device}")
        return Source(f"camera {word}", Kind.CAMERA, str(device), True)
    if "://" in word:
        try:
            address = urllib.parse.urlsplit(word)
            host = f"{address.hostname}:{address.port}" if address.port else address.hostname
        except ValueError as error:
            raise UsageError(f"an address of a source cannot be read: {error}") from error
        name = f"{address.scheme}://{host}{address.path}"
        if address.scheme not in _SCHEMES or not host:
            raise UsageError(f"{name}: expected HOST and a scheme of {', '.join(_SCHEMES)}")
        # FFmpeg knows the schemes in small letters alone.
        return Source(name, Kind.STREAM, address.scheme + word[len(address.scheme) :], True)
    path = Path(word)
    if path.is_dir():
        if not frames_of(path):
            raise UsageError(f"{word}: the folder has no pictures ({', '.join(SUFFIXES)})")
        return Source(word, Kind.FOLDER, word, live)
    if not path.is_file():
        raise UsageError(
            f"{word[:_TEXT_LIMIT]}: no such file or folder; a camera is told by its number, a stream by its address"
        )
    return Source(word, Kind.FILE, word, live)


def frames_of(folder: Path) -> list[Path]:
    """A folder's pictures, in the order of their names, numbers in them by value."""
    files = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    return sorted(files, key=lambda path: [(int(part), "") if part.isdigit() else (-1, part) for part in _parts(path)])


def _parts(path: Path) -> list[str]:
    return [part for part in re.split(r"([0-9]+)", path.name) if part]


def _distinct(names: Sequence[str], number: str) -> list[str]:
    """The names, those that came before with a number behind: ``door``, ``door (2)``."""
    given: list[str] = []
    for name in names:
        count, distinct = 1, name
        while distinct in given:
            count += 1
            distinct = name + number.format(count)
        given.append(distinct)
    return given
