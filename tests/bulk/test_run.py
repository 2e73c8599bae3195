"""Rounds over the parts, with a fake cluster: each round is lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from bulk import run as run_module
from bulk.errors import JobStopped
from bulk.job import Folder, Job
from bulk.listing import Columns, Piece
from bulk.schema import Row
from bulk.store import Store


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A job of two parts, both gone through; one image could not be read."""
    store = Store(str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path}/out")
    folder = Folder(store, "jsonl")
    folder.begin(Job("/in", {}, {}, "jsonl", Columns(), 1), [[Piece("a.jpg")], [Piece("b.jpg")]])
    folder.write(0, [Row("a.jpg", b'{"faces": []}')])
    folder.write(1, [Row.unread("b.jpg", "gone")])
    return folder


def test_a_part_that_is_asked_for_again_is_not_done_by_what_it_said_before(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("the cluster is lost")

    fake: Any = SimpleNamespace(
        counts=SimpleNamespace(remote=lambda: (0, 0)), faults=SimpleNamespace(remote=lambda: dict[int, str]())
    )
    monkeypatch.setattr(run_module, "tally", lambda: fake)
    monkeypatch.setattr(run_module, "_round", lost)
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda value: value)
    (tmp_path / "a.mar").write_bytes(b"archive")
    remaining = folder.remaining()
    assert remaining.parts == [1]
    work: Any = SimpleNamespace(store=folder.store, form="jsonl")
    layout: Any = None
    with pytest.raises(JobStopped, match="the cluster is lost"):
        run_module.run(work, layout, tmp_path / "a.mar", remaining)
    assert folder.remaining().parts == [1], "the same command goes on with it"
    assert set(folder.done()) == {0}
