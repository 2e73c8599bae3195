"""A model through a real server: time to ready, memory of the worker, answers a second by connections."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil

from archive.files import progress
from archive.serve import isolated
from archive.server import Server
from load_tests import machine
from load_tests.overhead import photograph

_ROW = "{:>11}  {:>9}  {:>8}  {:>8}  {:>10}"


@dataclass(frozen=True)
class Round:
    """What one closed loop of some connections came to; times in ms."""

    rate: float
    p50: float
    p99: float
    batch: float


def run(config: Path, model: str, connections: Sequence[int], seconds: float, rounds: int) -> None:
    """Print a table of medians over interleaved rounds; each answer is checked.

    Args:
        config: config.properties to take everything but the ports from.
        model: to ask.
        connections: closed loops at once, one row each.
        seconds: of one round.
        rounds: for each number of connections.
    """
    found: dict[int, list[Round]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mogface-load-") as scratch:
        folder = Path(scratch)
        private = isolated(config, folder)
        with (folder / "console.log").open("wb") as console:
            started = time.monotonic()
            with Server(private, [f"{model}.mar"], folder, folder / "tmp", console) as server:
                server.wait([model])
                ready = time.monotonic() - started
                with progress("rounds", rounds * len(connections), "round") as bar:
                    for _ in range(rounds):
                        for count in connections:
                            found[count].append(_measure(server, model, count, seconds))
                            bar.update(1)
                worker = psutil.Process(server.describe(model)[0]["workers"][0]["pid"])
                memory = worker.memory_info().rss / 1e6
    print(machine.describe())
    print(f"{model}: server started to ready {ready:.1f} s; worker after the load {memory:.0f} MB resident")
    print(_ROW.format("connections", "answers/s", "p50 ms", "p99 ms", "batch mean"))
    for count, each in found.items():
        rate, p50, p99, batch = (
            statistics.median(getattr(one, name) for one in each) for name in ("rate", "p50", "p99", "batch")
        )
        print(_ROW.format(count, f"{rate:.1f}", f"{p50:.0f}", f"{p99:.0f}", f"{batch:.1f}"))


def _measure(server: Server, model: str, connections: int, seconds: float) -> Round:
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
                latencies.append((time.perf_counter() - sent) * 1000)
                # An error has no "faces", which ends this loop; either way the check below fails.
                batches.append(answer["batch_size"] if len(answer["faces"]) == 1 else 0)

    threads = [threading.Thread(target=loop) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A rate is completed answers over wall time; the sum of latencies is not a duration.
    wall = time.monotonic() - begin
    if len(batches) != len(latencies) or 0 in batches:
        raise RuntimeError("an answer was not what it should be: the figures would mean nothing")
    p50, p99 = np.percentile(latencies, [50, 99])
    return Round(len(latencies) / wall, float(p50), float(p99), statistics.mean(batches))
