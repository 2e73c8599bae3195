"""Workers that come and go with the load of a real TorchServe, one at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from archive.server import Server
from clients import Answer, Client, ClientError, Management, UsageError
from clients.autoscale import Observer, steps, totals_of
from handler import device
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT, Start, worker_pids

COMMAND = [sys.executable, "-m", "clients.cli", "scale"]
UP_AFTER_S, DOWN_AFTER_S, INTERVAL_S = 3.0, 6.0, 0.5


def flags(server: Server) -> list[str]:
    return ["--management", server.management, "--token-file", str(server.folder / "key_file.json")]


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOGFACE_")}
    return inherited | {"PYTHONPATH": str(ROOT)}


class Load:
    """So many requests at once, until the block ends."""

    def __init__(self, server: Server, concurrency: int) -> None:
        self.outcomes: list[Answer | ClientError] = []
        self._ended = threading.Event()
        self._client = Client(server.inference, token=server.folder / "key_file.json", concurrency=concurrency)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for outcome in self._client.detect_each(self._images()):
            self.outcomes.append(outcome)

    def _images(self) -> Iterator[bytes]:
        while not self._ended.is_set():
            yield HOPPER.path.read_bytes()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


def until(what: Callable[[], bool], seconds: float, why: Callable[[], str]) -> float:
    """How long it took."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, why()
        time.sleep(0.05)
    return time.monotonic() - started


def ready(server: Server) -> list[bool]:
    return [worker["status"] == "READY" for version in server.describe("centerface") for worker in version["workers"]]


def test_workers_follow_the_load(
    start: Start, centerface_mar: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    server = start("centerface")
    log = tmp_path / "auto.log"
    policy = ["--auto", "--min", "1", "--max", "2", "--goal-queue-ms", "50", "--interval", str(INTERVAL_S)]
    policy += ["--up-after", str(UP_AFTER_S), "--down-after", str(DOWN_AFTER_S)]
    policy += ["--metrics", server.values["metrics_address"]]
    with log.open("wb") as output:
        auto = subprocess.Popen([*COMMAND, *policy, *flags(server)], stdout=output, stderr=output, env=environment())
    try:
        # Long enough for an idle server to be let alone.
        time.sleep(UP_AFTER_S + 2 * INTERVAL_S)
        assert log.read_text() == ""
        with Load(server, concurrency=16) as load:
            asked = until(lambda: "1 -> 2 workers" in log.read_text(), 60, log.read_text)
            came = asked + until(lambda: ready(server) == [True, True], 60, lambda: str(ready(server)))
            # Loaded, it keeps them.
            time.sleep(DOWN_AFTER_S + 2 * INTERVAL_S)
            assert ready(server) == [True, True]
            ended = time.monotonic()
        until(lambda: ready(server) == [True], 60, lambda: str(ready(server)))
        went = time.monotonic() - ended
        # It says so once the server has taken it, which may be done before it is said.
        until(lambda: "2 -> 1 workers" in log.read_text(), 10, log.read_text)
        auto.send_signal(signal.SIGINT)
        assert auto.wait(timeout=30) == 0
    finally:
        auto.kill()
        auto.wait()
    # The last word is for a machine on which everything takes its time.
    assert asked >= UP_AFTER_S / 3
    assert asked <= UP_AFTER_S + 2 * INTERVAL_S + 10
    assert went >= DOWN_AFTER_S - 2 * INTERVAL_S
    assert went <= DOWN_AFTER_S + 2 * INTERVAL_S + 10
    assert len(load.outcomes) > 50
    assert [outcome for outcome in load.outcomes if not isinstance(outcome, Answer)] == []
    assert log.read_text().count(" workers: queue ") == 2
    for name, seconds in {"asked_s": asked, "ready_s": came, "gone_s": went}.items():
        record_property(name, round(seconds, 1))
    server.stop()


def test_a_start_of_the_server_is_waited_through_and_its_workers_are_followed(
    start: Start, centerface_mar: Path, tmp_path: Path
) -> None:
    server = start("centerface")
    log = tmp_path / "auto.log"
    policy = ["--auto", "--min", "2", "--max", "2", "--interval", "0.5", "--up-after", "1", "--down-after", "1"]
    policy += ["--metrics", server.values["metrics_address"]]
    with log.open("wb") as output:
        auto = subprocess.Popen([*COMMAND, *policy, *flags(server)], stdout=output, stderr=output, env=environment())
    try:
        until(lambda: ready(server) == [True, True], 90, log.read_text)
        server.stop()
        until(lambda: "waiting for the server" in log.read_text(), 60, log.read_text)
        server.start()
        server.wait(["centerface"])
        # It comes with one worker and new tokens, and has the least that is wanted again.
        until(lambda: log.read_text().count("1 -> 2 workers: 2 to 2 workers are wanted") == 2, 90, log.read_text)
        until(lambda: ready(server) == [True, True], 90, log.read_text)
        assert "the server answers again" in log.read_text()
        assert "2 -> 1 workers, not by this command" in log.read_text()
        auto.send_signal(signal.SIGTERM)
        assert auto.wait(timeout=30) == 0
    finally:
        auto.kill()
        auto.wait()
    server.stop()


def test_cards_stay_level_while_workers_come_and_go_one_at_a_time(
    start: Start, centerface_mar: Path, tmp_path: Path
) -> None:
    """On two pretended GPUs: the front end counts them, and the workers claim them and run on the CPU."""
    server = start("centerface", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    folder = server._temp / device.claims_folder().name
    seen: list[list[int]] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.02):
            seen.append(device.counts(2, folder))

    watcher = threading.Thread(target=watch)
    watcher.start()
    pids = worker_pids(server)
    try:
        with Load(server, concurrency=2) as load:
            for workers in (4, 1, 3, 1):
                done = subprocess.run(
                    [*COMMAND, "--workers", str(workers), "--wait", *flags(server)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=180,
                    env=environment(),
                )
                assert done.returncode == 0, done.stderr
                assert len(worker_pids(server)) == workers
                until(lambda wanted=workers: sum(device.counts(2, folder)) == wanted, 30, lambda: str(seen[-1]))  # type: ignore[misc]
    finally:
        watching.set()
        watcher.join()
    assert worker_pids(server) == pids, "the first one stays: the last one goes first"
    totals = [sum(held) for held in seen]
    assert (min(totals), max(totals)) == (1, 4)
    assert all(abs(first - second) <= 1 for first, second in seen), sorted({tuple(held) for held in seen})
    assert len(load.outcomes) > 20
    assert [outcome for outcome in load.outcomes if not isinstance(outcome, Answer)] == [], "nobody is refused"
    server.stop()


def test_what_is_observed_is_what_the_server_did(server: Server, post: Callable[..., httpx.Response]) -> None:
    with (
        Management(server.management, server.folder / "key_file.json") as management,
        Observer(management, server.values["metrics_address"], "centerface") as observer,
    ):
        before = observer.observe()
        for _ in range(3):
            assert post(content=HOPPER.path.read_bytes()).status_code == 200
        # A worker tells its times once a second.
        until(lambda: observer.observe().busy_s > before.busy_s, 20, lambda: str(observer.observe()))
        time.sleep(1.5)
        after = observer.observe()
    assert (after.wanted, after.workers, after.ready, after.pending) == (1, 1, 1, 0)
    assert after.settled
    assert after.requests - before.requests == 3
    assert after.queue_s >= before.queue_s
    assert 0.005 < after.busy_s - before.busy_s <= after.at - before.at


def test_totals_of_one_model_and_version() -> None:
    requests, queue, busy = "ts_inference_requests_total", "ts_queue_latency_microseconds", "mogface_batch_seconds_sum"
    text = "".join(f"# TYPE {name} counter\n" for name in (requests, queue, busy))
    for model, version, count in [("a", "default", 1.0), ("a", "2.0", 2.0), ("b", "default", 4.0)]:
        text += f'{requests}{{model_name="{model}",model_version="{version}",hostname="h",}} {count}\n'
        text += f'{busy}{{model="{model}",version="{version}",Hostname="h",}} {10 * count}\n'
    assert totals_of(text, "a", {"default", "1.0"}) == {requests: 1, queue: 0, busy: 10}
    assert totals_of(text, "a", {"default", "2.0"}) == {requests: 3, queue: 0, busy: 30}
    assert totals_of(text, "a", {"2.0"}) == {requests: 2, queue: 0, busy: 20}
    assert totals_of(text, "nobody", {"default"}) == {requests: 0, queue: 0, busy: 0}
    for name in (requests, queue, busy):
        with pytest.raises(UsageError, match=f"have no {name}: config.properties needs metrics_mode=prometheus"):
            totals_of(text.replace(f"# TYPE {name}", "# TYPE other"), "a", {"default"})


@pytest.mark.parametrize(
    ("now", "wanted", "way"), [(1, 4, [2, 3, 4]), (4, 1, [3, 2, 1]), (2, 2, []), (0, 1, [1]), (1, 0, [0])]
)
def test_steps(now: int, wanted: int, way: list[int]) -> None:
    assert list(steps(now, wanted)) == way
