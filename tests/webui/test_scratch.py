from __future__ import annotations

import os
import time
from pathlib import Path

from webui.scratch import sweep


def test_what_is_old_goes_and_what_is_young_stays(tmp_path: Path) -> None:
    (tmp_path / "run" / "001").mkdir(parents=True)
    for name in ("run/001/a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"x")
    now = time.time()
    assert sweep(tmp_path, 60, now) == 0
    assert sweep(tmp_path, 60, now + 59) == 0
    assert (tmp_path / "run" / "001" / "a.jpg").exists()
    assert sweep(tmp_path, 60, now + 120) == 2
    # Its folders were changed just now by the files' going: by the clock they are young.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert sweep(tmp_path, 60, now + 240) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_an_old_file_is_young(tmp_path: Path) -> None:
    path = tmp_path / "example.jpg"
    path.write_bytes(b"x")
    os.utime(path, (1, 1))
    assert sweep(tmp_path, 60) == 0
    assert path.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept.jpg").write_bytes(b"x")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "link").symlink_to(tmp_path / "elsewhere")
    assert sweep(tmp_path / "scratch", 60, time.time() + 120) == 1
    assert (tmp_path / "elsewhere" / "kept.jpg").exists()
