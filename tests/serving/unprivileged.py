"""Servers without root's power over files, so that a file's mode counts for them as for any other user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.requirements import lacking

_DROPPED = "-dac_override,-dac_read_search"


@contextmanager
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever server is started meanwhile reads and writes only what its user may.

    Another user would do as well, but may not even enter the folders of an environment that root has installed for
    itself; a process that is root's without those two capabilities is held to the files' modes just the same.
    """
    if os.geteuid() != 0:
        yield
        return
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        lacking("setpriv", "root's power over files cannot be dropped")
    start = subprocess.Popen

    def dropped(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        return start([setpriv, f"--bounding-set={_DROPPED}", f"--inh-caps={_DROPPED}", *command], **how)

    with monkeypatch.context() as patched:
        patched.setattr("archive.server.subprocess.Popen", dropped)
        yield
