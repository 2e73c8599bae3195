"""The handler's metrics on TorchServe's own endpoint: over all workers, over their deaths."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil
import pytest

from archive.server import Server
from clients import Management
from clients.autoscale import Observer
from load_tests.watch import batch_buckets
from tests.photographs import HOPPER
from tests.serving.conftest import Start, worker_pids

_SERIES = re.compile(r"^(mogface_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def scrape(server: Server) -> dict[tuple[str, str], float]:
    """Values of ours by name and last label of its own."""
    text = httpx.get(f"{server.values['metrics_address']}/metrics").text
    found = {}
    for name, labels, value in _SERIES.findall(text):
        own = [
            each for each in re.findall(r'(\w+)="([^"]*)"', labels) if each[0] not in ("model", "version", "Hostname")
        ]
        found[name, ",".join(each for _, each in own)] = float(value)
    return found


def settled(server: Server, expected: Mapping[tuple[str, str], float]) -> None:
    """These values are reached, and not passed in the seconds after."""
    deadline = time.monotonic() + 60
    while {key: value for key, value in scrape(server).items() if key in expected} != expected:
        assert time.monotonic() < deadline, {key: (scrape(server).get(key), expected[key]) for key in expected}
        time.sleep(0.2)
    time.sleep(2.5)
    assert {key: value for key, value in scrape(server).items() if key in expected} == expected


def ask(server: Server, content: bytes = b"") -> int:
    return httpx.post(
        f"{server.inference}/predictions/centerface",
        content=content or HOPPER.path.read_bytes(),
        headers=server.headers(),
        timeout=120,
    ).status_code


@pytest.fixture(scope="module")
def counted(start: Start, centerface_mar: Path) -> Server:
    return start("centerface")


def test_series_are_there_at_zero_before_the_first_request(counted: Server) -> None:
    found = scrape(counted)
    assert found["mogface_worker_starts_total", ""] == 1
    assert found["mogface_requests_total", "deadline"] == 0
    assert found["mogface_stage_seconds_bucket", "network,0.001"] == 0
    assert ("mogface_gpu_utilization_ratio", "0") not in found


def test_counts_outlive_a_worker(counted: Server) -> None:
    assert [ask(counted), ask(counted), ask(counted, b"no picture")] == [200, 200, 400]
    settled(
        counted,
        {
            ("mogface_requests_total", "ok"): 2,
            ("mogface_images_total", "invalid_image"): 1,
            ("mogface_faces_total", ""): 2,
            ("mogface_batch_requests_bucket", "1"): 3,
            ("mogface_stage_seconds_count", "network"): 2,
        },
    )
    [pid] = worker_pids(counted)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while pid in worker_pids(counted) or scrape(counted)["mogface_worker_starts_total", ""] != 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert ask(counted) == 200
    settled(
        counted,
        {
            ("mogface_requests_total", "ok"): 3,
            ("mogface_requests_total", "invalid_image"): 1,
            ("mogface_faces_total", ""): 3,
            ("mogface_batch_requests_bucket", "1"): 4,
            ("mogface_batch_requests_bucket", "+Inf"): 4,
            ("mogface_worker_starts_total", ""): 2,
        },
    )


def test_counts_of_two_workers_add_up(counted: Server) -> None:
    before = scrape(counted)["mogface_requests_total", "ok"]
    scaled = httpx.put(
        f"{counted.management}/models/centerface?min_worker=2&max_worker=2&synchronous=true",
        headers=counted.headers("management"),
        timeout=60,
    )
    assert scaled.status_code == 200
    workers = [psutil.Process(pid) for pid in worker_pids(counted)]
    assert len(workers) == 2
    idle = [worker.cpu_times().user for worker in workers]
    # One after the other: a worker that is busy leaves the next request to the other.
    assert {ask(counted) for _ in range(20)} == {200}
    settled(counted, {("mogface_requests_total", "ok"): before + 20, ("mogface_worker_starts_total", ""): 3})
    busy = [worker.cpu_times().user - was for worker, was in zip(workers, idle, strict=True)]
    assert min(busy) > 0.1 * max(busy), "one of them answered alone"


@pytest.fixture(scope="module")
def twice(start: Start, centerface_mar: Path) -> Server:
    """One archive under its own name and, registered while the server runs, under another."""
    server = start("centerface", changes={"enable_model_api": "true"})
    with Management(server.management, server.folder / "key_file.json") as management:
        management.register("centerface.mar", model="alias", batch_size=4)
    return server


def test_a_model_goes_by_the_name_it_was_registered_under(twice: Server) -> None:
    named = {}
    for name, times in {"centerface": 2, "alias": 5}.items():
        for _ in range(times):
            answer = httpx.post(
                f"{twice.inference}/predictions/{name}",
                content=HOPPER.path.read_bytes(),
                headers=twice.headers(),
                timeout=120,
            )
            assert answer.status_code == 200
            named[name] = answer.json()["model"]
    assert {name: model["name"] for name, model in named.items()} == {"centerface": "centerface", "alias": "alias"}
    # What the archive is does not depend on the name.
    assert named["alias"] | {"name": "centerface"} == named["centerface"]
    assert named["alias"]["weights"].startswith("centerface (")

    def ended() -> dict[str, float]:
        text = httpx.get(f"{twice.values['metrics_address']}/metrics").text
        found = re.findall(r'mogface_requests_total\{model="([^"]*)",[^}]*outcome="ok"[^}]*\} (\S+)', text)
        return {name: float(value) for name, value in found}

    deadline = time.monotonic() + 60
    while ended() != {"centerface": 2, "alias": 5}:
        assert time.monotonic() < deadline, ended()
        time.sleep(0.2)
    lines = (twice.folder / "logs" / "model_log.log").read_text(encoding="utf-8").splitlines()
    ready = [json.loads(line[line.index("{") :])["model"] for line in lines if '"event": "ready"' in line]
    assert sorted(ready) == ["alias", "centerface"]


def test_the_scaler_and_the_tuner_find_the_series_of_a_name(twice: Server) -> None:
    """After the test above, whose requests they see."""
    with Management(twice.management, twice.folder / "key_file.json") as management:
        seen, batches = {}, {}
        for name in ("centerface", "alias"):
            with Observer(management, twice.values["metrics_address"], name) as observer:
                seen[name] = observer.observe()
                batches[name] = max(batch_buckets(observer.metrics(), name).values())
    assert {name: each.requests for name, each in seen.items()} == {"centerface": 2, "alias": 5}
    assert batches == {"centerface": 2, "alias": 5}
    assert all(each.busy_s > 0.005 for each in seen.values())
