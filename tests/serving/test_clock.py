"""The wall clock jumps, as it does when a machine's time is set: nothing here may hang on it but a token's end."""

from __future__ import annotations

import datetime
import itertools
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from archive.server import Server
from clients import Answer, Client, Retry
from handler.config import FILE, Settings
from handler.pipeline import Pipeline
from handler.request import Request
from tests.photographs import HOPPER
from tests.requirements import lacking
from tests.serving.conftest import Start, worker_pids

LIBRARIES = [Path(f"/usr/lib/{each}/faketime/libfaketime.so.1") for each in ("x86_64-linux-gnu", "aarch64-linux-gnu")]
JPEG = HOPPER.path.read_bytes()
DAY = 24


class Clock:
    """The wall clock of one server's processes; steady clocks go on as they do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, hours: int) -> None:
        """So many hours beside the real time."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(f"{hours:+d}h\n", encoding="ascii")
        draft.replace(self.path)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock") / "faketime")


@pytest.fixture(scope="module")
def server(start: Start, centerface_mar: Path, clock: Clock) -> Iterator[Server]:
    library = next((each for each in LIBRARIES if each.is_file()), None)
    if library is None:
        lacking("faketime", "install Debian's libfaketime")
    env = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock.path),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    server = start("centerface", env=env)
    yield server
    server.stop()


def ends(server: Server, api: str = "inference") -> datetime.datetime:
    """When a token ends, by the front end's clock."""
    said = json.loads((server.folder / "key_file.json").read_text())[api]["expiration time"]
    return datetime.datetime.fromisoformat(said.replace("Z", "+00:00"))


def client(server: Server) -> Client:
    return Client(
        server.inference, token=server.folder / "key_file.json", management=server.management, retry=Retry(attempts=1)
    )


def test_tokens_end_and_are_renewed_and_answers_stay_right(server: Server, clock: Clock) -> None:
    pids = worker_pids(server)
    environment = Path(f"/proc/{pids[0]}/environ").read_bytes()
    assert b"LD_PRELOAD=" in environment
    with client(server) as asking:
        faces = asking.detect(JPEG).faces
        assert len(faces) == 1
        before, old = ends(server), server.headers()
        clock.set(3 * DAY)
        # Tokens are for a day: the front end has seen the jump.
        refused = httpx.post(f"{server.inference}/predictions/centerface", content=JPEG, headers=old, timeout=60)
        assert refused.json()["type"] == "InvalidKeyException"
        assert asking.detect(JPEG).faces == faces
        assert ends(server) - before > datetime.timedelta(days=2)
        # Back again: the token ends later than it should, and is taken.
        clock.set(0)
        assert asking.detect(JPEG).faces == faces
        assert worker_pids(server) == pids


def test_requests_under_way_do_not_notice(server: Server, clock: Clock) -> None:
    """Deadlines of a request are seconds; the clock goes hours forth and back meanwhile, a token is for a day."""
    pids, done = worker_pids(server), threading.Event()

    def jump() -> None:
        for hours in itertools.cycle((6, -6, 0)):
            clock.set(hours)
            if done.wait(0.01):
                return

    jumping = threading.Thread(target=jump)
    with client(server) as asking:
        faces = asking.detect(JPEG).faces
        jumping.start()
        try:
            answers = list(asking.detect_each([JPEG] * 24))
        finally:
            done.set()
            jumping.join()
            clock.set(0)
    assert [answer.faces if isinstance(answer, Answer) else answer for answer in answers] == [faces] * 24
    assert worker_pids(server) == pids


@pytest.fixture(scope="module")
def pipeline(centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = tmp_path_factory.mktemp("pipeline")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    return Pipeline.load(folder, Settings.load(folder / FILE), "centerface", "1.0", torch.device("cpu"))


def test_the_handler_asks_no_clock_that_jumps(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day forth at each question; of the steady clock, to show that this would be seen."""
    request = Request({"body": JPEG}, {"Content-Length": str(len(JPEG))}, "id")
    [well] = pipeline.answer([request])
    for name in ("time", "monotonic"):
        days = itertools.count()
        real = getattr(time, name)
        with monkeypatch.context() as patched:
            patched.setattr(time, name, lambda real=real, days=days: real() + 86_400 * next(days))
            [answered] = pipeline.answer([request])
        content = json.loads(answered.body)
        if name == "time":
            assert content["faces"] == json.loads(well.body)["faces"]
        else:
            assert content["error"]["type"] == "deadline"
