"""Faults of a real server under a light load: what callers see, and how long until it answers again.

The load are four callers, two over REST and two over gRPC, who send one photograph each again and again and never send
one twice: every answer has to be the right one, and every refusal is counted. `pytest -s` shows the table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil
import pytest
from PIL import Image

from archive import properties
from archive.build import VERSION, Workspace
from archive.pack import ARTIFACTS, Recipe, pack
from archive.server import NotReady, Server
from clients import Answer, Client, ClientError, Retry
from clients.errors import DeadlineMissed, ServerFault
from handler.config import FILE, Settings
from handler.geometry import Canvas
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT, Start, worker_pids
from tests.serving.test_client import address, arguments

ONCE = Retry(attempts=1)
#: Of the server's settings: s that a batch may take to begin its images, and to be answered at all.
DEADLINE_S, RESPONSE_S = 2.0, 6
#: Pictures of one colour, by which the fake below fails, or takes so many seconds.
BROKEN, SLOW, SLOW_S = (255, 0, 255), (0, 255, 255), 0.5
#: Goes behind the detector in the archive: everything else is the real thing.
FAKE = f"""

_real_detect = CenterFace._detect


def _fake_detect(self, images):
    colours = {{tuple(map(int, image.array[0, 0])) for image in images}}
    if {BROKEN} in colours:
        raise EngineError("a fake fault of the engine")
    if {SLOW} in colours:
        time.sleep({SLOW_S})
    return _real_detect(self, images)


CenterFace._detect = _fake_detect
"""


def encoded(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def photograph(number: int) -> bytes:
    """A portrait of a size of its own."""
    with Image.open(HOPPER.path) as picture:
        return encoded(picture.convert("RGB").crop((175, 131, 357, 336)).resize((120 + 8 * number, 144)))


def coloured(colour: tuple[int, int, int]) -> bytes:
    return encoded(Image.new("RGB", (160, 160), colour))


@pytest.fixture(scope="module")
def faulty_mar(workspace: Workspace, centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CenterFace at a small canvas, with the fake behind it."""
    folder = tmp_path_factory.mktemp("faulty")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    settings = dataclasses.replace(
        Settings.load(folder / FILE), canvases=(Canvas(160, 160),), long_side=160, deadline_s=DEADLINE_S
    )
    real, faulty = folder / "real.mar", workspace.store / "faulty.mar"
    pack(Recipe("faulty", VERSION, settings, {"centerface.onnx": folder / "graphs" / "centerface.onnx"}), real)
    member = "handler/detectors/centerface.py"
    with zipfile.ZipFile(real) as archive, zipfile.ZipFile(faulty, "w") as changed:
        content = {name: archive.read(name) for name in archive.namelist()}
        content[member] += FAKE.encode()
        listed = json.loads(content[ARTIFACTS])
        listed["files"][member] = hashlib.sha256(content[member]).hexdigest()
        content[ARTIFACTS] = json.dumps(listed).encode()
        for name, data in content.items():
            changed.writestr(name, data)
    return faulty


@pytest.fixture(scope="module")
def server(start: Start, faulty_mar: Path) -> Iterator[Server]:
    entry = properties.models(properties.read(ROOT / "config.properties"))["centerface"]
    entry[VERSION]["responseTimeout"] = RESPONSE_S
    server = start("faulty", changes={"models": json.dumps({"faulty": entry})})
    yield server
    server.stop()


@dataclass(frozen=True)
class Outcome:
    """Of one request: its end on the monotonic clock, how long it took, and "right", "wrong" or the error's type."""

    ended: float
    seconds: float
    kind: str


@dataclass
class Load:
    """Callers who go on until the context ends."""

    server: Server
    expected: list[Answer]
    outcomes: list[Outcome] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def _call(self, number: int) -> None:
        image, transport = photograph(number), ("rest", "grpc")[number % 2]
        given = arguments(self.server, retry=ONCE, timeout_s=30.0)
        with Client(address(self.server, transport), "faulty", **given) as client:
            while not self._stop.is_set():
                started = time.monotonic()
                [outcome] = client.detect_each([image], score_threshold=0.25)
                ended = time.monotonic()
                if isinstance(outcome, Answer):
                    kind = "right" if same(outcome, self.expected[number]) else "wrong"
                else:
                    kind = outcome.type
                self.outcomes.append(Outcome(ended, ended - started, kind))
                self._stop.wait(0.02)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(4)]
        for each in self._threads:
            each.start()
        self.more(8)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(60)

    def more(self, count: int, seconds: float = 60) -> None:
        """Wait for so many right answers from now on, one after the other, with nothing else between."""
        first, deadline = len(self.outcomes), time.monotonic() + seconds
        while True:
            fresh = [outcome.kind for outcome in self.outcomes[first:]]
            if len(fresh) >= count and fresh[-count:] == ["right"] * count:
                return
            assert time.monotonic() < deadline, Counter(fresh)
            time.sleep(0.02)


def same(answer: Answer, expected: Answer) -> bool:
    """But for times, and how many requests happened to run together."""
    return (answer.faces, answer.width, answer.height) == (expected.faces, expected.width, expected.height)


@dataclass(frozen=True)
class Row:
    """What callers saw of one fault."""

    fault: str
    outcomes: list[Outcome]
    gap_s: float

    @property
    def kinds(self) -> Counter[str]:
        return Counter(outcome.kind for outcome in self.outcomes)

    def __str__(self) -> str:
        failed = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items() if kind != "right") or "none"
        slowest = max(outcome.seconds for outcome in self.outcomes)
        return f"{self.fault:38} {self.kinds['right']:6} {failed:34} {slowest:9.2f} {self.gap_s:9.2f}"


Measure = Callable[[str, Callable[[Load], None]], Row]


@pytest.fixture(scope="module")
def table(pytestconfig: pytest.Config) -> Iterator[list[Row]]:
    rows: list[Row] = []
    yield rows
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        head = f"{'fault':38} {'right':>6} {'failed':34} {'slowest s':>9} {'without s':>9}"
        sys.stderr.write("\n".join(["", head, *map(str, rows), ""]))


@pytest.fixture(scope="module")
def expected(server: Server) -> list[Answer]:
    """Of the well server, each photograph alone."""
    with Client(address(server, "rest"), "faulty", **arguments(server)) as client:
        answers = [client.detect(photograph(number), score_threshold=0.25) for number in range(4)]
    assert [len(answer.faces) for answer in answers] == [1] * 4
    assert len({answer.faces[0].box for answer in answers}) == 4
    return answers


@pytest.fixture(scope="module")
def measure(server: Server, expected: list[Answer], table: list[Row]) -> Measure:
    """Do something to the server under load; what callers saw from then on until all was well again."""

    def run(fault: str, act: Callable[[Load], None]) -> Row:
        with Load(server, expected) as load:
            first, began = len(load.outcomes), time.monotonic()
            act(load)
            load.more(12)
            right = [began, *(outcome.ended for outcome in load.outcomes[first:] if outcome.kind == "right")]
        row = Row(fault, load.outcomes[first:], max(after - before for before, after in itertools.pairwise(right)))
        table.append(row)
        assert row.kinds["wrong"] == 0
        assert row.kinds["right"] >= 12
        return row

    return run


def replaced(server: Server, pid: int) -> None:
    """Wait until another worker is ready."""
    deadline = time.monotonic() + 60
    while True:
        ready = [
            worker["pid"]
            for version in server.describe("faulty")
            for worker in version["workers"]
            if worker["status"] == "READY"
        ]
        if ready and pid not in ready:
            return
        assert time.monotonic() < deadline, server.describe("faulty")
        time.sleep(0.05)


def kept(server: Server, act: Callable[[Load], None]) -> Callable[[Load], None]:
    """The same, after which the worker has to be the one that it was."""

    def watched(load: Load) -> None:
        pids = worker_pids(server, "faulty")
        act(load)
        load.more(8)
        assert worker_pids(server, "faulty") == pids

    return watched


def test_nothing(server: Server, measure: Measure) -> None:
    row = measure("nothing", kept(server, lambda load: load.more(60)))
    assert set(row.kinds) == {"right"}


def test_worker_killed(server: Server, measure: Measure) -> None:
    def act(load: Load) -> None:
        [pid] = worker_pids(server, "faulty")
        os.kill(pid, signal.SIGKILL)
        replaced(server, pid)

    row = measure("worker killed", act)
    # Those that it had; those in the queue wait for the next worker.
    assert set(row.kinds) <= {"right", "worker_died"}
    assert row.kinds["worker_died"] <= 4
    assert row.gap_s < 30


def test_worker_stopped(server: Server, measure: Measure) -> None:
    """A worker that hangs: responseTimeout ends it."""

    def act(load: Load) -> None:
        [pid] = worker_pids(server, "faulty")
        os.kill(pid, signal.SIGSTOP)
        replaced(server, pid)
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    row = measure(f"worker stopped (responseTimeout {RESPONSE_S} s)", act)
    assert set(row.kinds) == {"right", "worker_died"}
    assert row.kinds["worker_died"] <= 4
    assert RESPONSE_S <= row.gap_s < RESPONSE_S + 30


def _ask(server: Server, image: bytes, count: int) -> list[Answer | ClientError]:
    """The same picture so many times at once."""
    with Client(address(server, "rest"), "faulty", **arguments(server, retry=ONCE, concurrency=count)) as client:
        return list(client.detect_each([image] * count))


def test_engine_fails_over_one_image(server: Server, measure: Measure) -> None:
    outcomes: list[Answer | ClientError] = []
    broken = coloured(BROKEN)

    def act(load: Load) -> None:
        for _ in range(5):
            outcomes.extend(_ask(server, broken, 4))

    row = measure("engine fails over one image (fake)", kept(server, act))
    assert {(type(each), getattr(each, "status", 0)) for each in outcomes} == {(ServerFault, 500)}
    assert {getattr(each, "type", "") for each in outcomes} == {"engine"}
    assert set(row.kinds) == {"right"}


def test_batch_past_its_deadline(server: Server, measure: Measure) -> None:
    """Eight images of half a second in one batch, of which the deadline of 2 s lets four or five begin."""
    outcomes: list[Answer | ClientError] = []
    slow = coloured(SLOW)
    row = measure(
        f"slow images (fake), deadline {DEADLINE_S:g} s",
        kept(server, lambda load: outcomes.extend(_ask(server, slow, 20))),
    )
    kinds = Counter(type(each) for each in outcomes)
    assert set(kinds) == {Answer, DeadlineMissed}, outcomes
    assert kinds[Answer] >= 4
    # Whoever shares a batch with them may be late, and is told so.
    assert set(row.kinds) <= {"right", "deadline"}


def _half(server: Server) -> socket.socket:
    """A connection with a request of which half is sent."""
    port = int(server.inference.rpartition(":")[2])
    image = photograph(0)
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"POST /predictions/faulty HTTP/1.1\r\nHost: a\r\nContent-Length: {len(image)}\r\n"
    head += f"Authorization: Bearer {server.key()}\r\n\r\n"
    connection.sendall(head.encode() + image[: len(image) // 2])
    return connection


def test_clients_gone_in_the_middle_of_an_upload(server: Server, measure: Measure) -> None:
    def act(load: Load) -> None:
        for _ in range(40):
            _half(server).close()

    row = measure("40 clients gone in their uploads", kept(server, act))
    assert set(row.kinds) == {"right"}


def test_slow_uploads_straight_at_torchserve(server: Server, measure: Measure) -> None:
    """They take no worker; but TorchServe lets them stay for ever, which nginx in front does not."""
    with ExitStack() as stack:

        def act(load: Load) -> None:
            slow = [stack.enter_context(_half(server)) for _ in range(100)]
            for _ in range(5):
                load.more(8)
                for each in slow:
                    each.sendall(b"x")
            for each in slow:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):
                    each.recv(1)

        row = measure("100 slow uploads", kept(server, act))
    assert set(row.kinds) == {"right"}


def test_front_end_killed_and_started_again(server: Server, measure: Measure) -> None:
    def act(load: Load) -> None:
        assert server._process is not None
        family = psutil.Process(server._process.pid).children(recursive=True)
        [java] = [process for process in family if "java" in process.name()]
        workers = [process for process in family if process.pid in worker_pids(server, "faulty")]
        assert len(workers) == 1
        java.kill()
        # Without their front end workers end by themselves, and leave their memory to the next ones.
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert not alive
        server.stop()
        server.start()
        server.wait(["faulty"])

    row = measure("front end killed, started again", act)
    # A new front end has new tokens: whoever has the file reads them again.
    assert set(row.kinds) <= {"right", "unreachable", "not_authorised", "usage"}
    assert row.kinds["unreachable"] > 0


def test_archives_that_are_none_cost_the_others_nothing(start: Start, workspace: Workspace, faulty_mar: Path) -> None:
    whole = faulty_mar.read_bytes()
    for name, content in {"half": whole[: len(whole) // 2], "text": b"no archive", "empty": b""}.items():
        (workspace.store / f"{name}.mar").write_bytes(content)
    names = ["half", "text", "empty"]
    server = start("faulty", *names, wait=False)
    server.wait(["faulty"])
    for name in names:
        workers = [worker for version in server.describe(name) for worker in version["workers"]]
        assert "READY" not in {worker["status"] for worker in workers}
    [answer] = _ask(server, photograph(0), 1)
    assert isinstance(answer, Answer)
    for name in names:
        (workspace.store / f"{name}.mar").unlink()
    server.stop()


def test_disk_without_room_for_the_archive(start: Start, centerface_mar: Path) -> None:
    """No file may grow over 1 MB, as on a full disk: the network's graph does not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        server = start("centerface", wait=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(NotReady):
        server.wait(["centerface"], seconds=8)
    written = (server.folder / "logs" / "ts_log.log").read_text(errors="replace")
    assert "File too large" in written
    server.stop()
    # With room it starts, out of the same folder.
    server.start()
    server.wait(["centerface"])
    server.stop()
