"""The archive on a node: unpacked once, and never where others can write."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bulk.errors import JobStopped
from bulk.worker import unpacked
from handler import artifacts


def test_unpacked_once_and_whole(centerface_mar: Path, tmp_path: Path) -> None:
    data = np.fromfile(centerface_mar, np.uint8)
    folder = unpacked(data, "key", tmp_path)
    artifacts.check(folder)
    assert not (folder / "packed.mar").exists()
    before = (folder / artifacts.FILE).stat().st_ino
    assert unpacked(data, "key", tmp_path) == folder
    assert (folder / artifacts.FILE).stat().st_ino == before
    assert unpacked(data, "other", tmp_path) != folder
    # No drafts stay.
    assert sorted(path.name for path in folder.parent.iterdir()) == ["key", "other"]


def test_a_folder_that_others_can_write_is_not_run_from(centerface_mar: Path, tmp_path: Path) -> None:
    mine = tmp_path / f"mogface-bulk-{os.getuid()}"
    mine.mkdir()
    mine.chmod(0o777)
    with pytest.raises(JobStopped, match="can be written by others"):
        unpacked(np.fromfile(centerface_mar, np.uint8), "key", tmp_path)
