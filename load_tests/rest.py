"""CenterFace through a real server: time to ready, memory of the worker, answers a second by connections."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import psutil

from archive.serve import isolated
from archive.server import Server
from load_tests import machine
from load_tests.overhead import photograph

_ROW = "{:>11}  {:>9}  {:>8}  {:>8}  {:>10}"


def run(config: Path, model: str, connections: Sequence[int], seconds: float) -> None:
    """Print a table; each answer is checked.

    Args:
        config: config.properties to take everything but the ports from.
        model: to ask.
        connections: closed loops at once, one row each.
        seconds: a row.
    """
    with tempfile.TemporaryDirectory(prefix="mogface-load-") as scratch:
        folder = Path(scratch)
        private = isolated(config, folder)
        with (folder / "console.log").open("wb") as console:
            started = time.monotonic()
            with Server(private, [f"{model}.mar"], folder, folder / "tmp", console) as server:
                server.wait([model])
                ready = time.monotonic() - started
                print(machine.describe())
                print(f"start to ready: {ready:.1f} s")
                print(_ROW.format("connections", "answers/s", "p50 ms", "p99 ms", "batch mean"))
                for count in connections:
                    _measure(server, model, count, seconds)
                worker = psutil.Process(server.describe(model)[0]["workers"][0]["pid"])
                print(f"worker after that load: {worker.memory_info().rss / 1e6:.0f} MB resident")


def _measure(server: Server, model: str, connections: int, seconds: float) -> None:
    data = photograph(640, 480)
    address = f"{server.inference}/predictions/{model}"
    latencies: list[float] = []
    batches: list[int] = []
    begin = time.monotonic()
    end = begin + seconds

    def loop() -> None:
        with httpx.Client(headers=server.headers(), timeout=120) as client:
            while time.monotonic() < end:
                sent = time.perf_counter()
                answer = client.post(address, content=data).json()
                assert len(answer["faces"]) == 1, answer
                latencies.append((time.perf_counter() - sent) * 1000)
                batches.append(answer["batch_size"])

    threads = [threading.Thread(target=loop) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A rate is completed answers over wall time; the sum of latencies is not a duration.
    wall = time.monotonic() - begin
    p50, p99 = np.percentile(latencies, [50, 99])
    print(
        _ROW.format(
            connections,
            f"{len(latencies) / wall:.1f}",
            f"{p50:.0f}",
            f"{p99:.0f}",
            f"{statistics.mean(batches):.1f}",
        )
    )
