"""A whole run: its outputs, its end. Only the server is a fake."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from clients import Answer, Model
from clients.errors import UsageError
from clients.watch import run
from clients.watch.follow import Sending
from clients.watch.reader import Reading
from clients.watch.run import Written, watch
from clients.watch.sources import sources
from tests.films import SIZE, film


class FakeClient:
    """Finds nobody on frames of the films' size, after ``wait_s``."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *reason: object) -> None:
        pass

    async def detect(self, picture: object, **options: object) -> Answer:
        await asyncio.sleep(self._wait_s)
        return Answer(Model("m", "1", "w", "e", "p"), *SIZE, "480x640", 1.0, (), {}, 1)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "AsyncClient", FakeClient)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def told(after_s: float, times: int = 1) -> None:
    """Sends this process SIGINT, a second apart."""

    def send() -> None:
        time.sleep(after_s)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    threading.Thread(target=send, daemon=True).start()


def test_sources_that_say_nothing_do_not_hold_the_end(silent: str) -> None:
    found = sources([f"{silent}/{index}" for index in range(12)])
    told(1)
    started = time.monotonic()
    assert watch({"wait_s": 0}, found, Reading(), Sending({}), Written()) == 1, "none ever came"
    assert time.monotonic() - started < 8


def test_told_twice_it_waits_no_more(tmp_path: Path) -> None:
    found = sources([str(film(tmp_path / "door.mp4").path)])
    told(1, times=2)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        watch({"wait_s": 60}, found, Reading(), Sending({}), Written(tmp_path / "out.jsonl"))
    assert time.monotonic() - started < 20


def test_where_one_output_fails_the_others_are_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sources([str(film(tmp_path / "door.mp4").path)])
    written = Written(Path("/dev/full"), tmp_path / "videos")
    # The video comes first, so that it has a frame.
    outputs = Written.outputs

    def turned(self: Written, out: object, sources: object) -> object:
        return outputs(self, out, sources)[::-1]  # type: ignore[arg-type]

    monkeypatch.setattr(Written, "outputs", turned)
    with pytest.raises(OSError, match="/dev/full"):
        watch({"wait_s": 0}, found, Reading(), Sending({}), written)
    assert f"mogface watch: {found[0].name}: " in capfd.readouterr().err, "what became of the frames is told"
    [video] = (tmp_path / "videos").iterdir()
    assert video.name == "door.mp4"
    with av.open(str(video)) as container:
        assert len(list(container.decode(video=0))) >= 1


@pytest.mark.parametrize(
    ("written", "option"),
    [
        (Written(videos=Path()), "--video"),
        (Written(output=Path("door.mp4")), "--output"),
        (Written(crops=Path()), "--crops"),
    ],
)
def test_no_source_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Written, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    door = film(tmp_path / "door.mp4", count=2)
    before = door.path.read_bytes()
    frames = tmp_path / "frames"
    frames.mkdir()
    (frames / "1.jpg").write_bytes(b"a picture")
    with pytest.raises(UsageError, match=option):
        watch({"wait_s": 0}, sources(["door.mp4", "frames"]), Reading(), Sending({}), written)
    assert door.path.read_bytes() == before
    assert [path.name for path in frames.iterdir()] == ["1.jpg"]
