"""``artifacts.json`` in an unpacked archive: the hash of every file, looked at before any of them is used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from handler.errors import ArtifactError

FILE = "artifacts.json"
_REPACK = "pack the archive again, or copy it again from where it was whole"


def identity(folder: Path) -> bytes:
    """The sha256 of the list, and so of everything in the archive: [32] bytes.

    Raises:
        ArtifactError: there is no list.
    """
    try:
        return hashlib.sha256((folder / FILE).read_bytes()).digest()
    except OSError as error:
        raise ArtifactError(f"{FILE} of the archive cannot be read: {error}; {_REPACK}") from error


def check(folder: Path) -> None:
    """Compare every file with the list that was written when the archive was packed.

    It finds damage and files that were changed or left out since. It is no proof of who packed the archive: whoever can
    change a file can change the list.

    Args:
        folder: of the unpacked archive.

    Raises:
        ArtifactError: which file is not what the list says, or that there is no list.
    """
    try:
        listed: dict[str, str] = json.loads((folder / FILE).read_bytes())["files"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ArtifactError(f"{FILE} of the archive cannot be read: {error}; {_REPACK}") from error
    for name, expected in listed.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ArtifactError(
                f"{name} of the archive cannot be read: {error.strerror or error}; {_REPACK}"
            ) from error
        if found != expected:
            raise ArtifactError(f"{name} has sha256 {found}, {FILE} says {expected}; {_REPACK}")
