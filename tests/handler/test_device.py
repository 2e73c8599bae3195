from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handler import device
from handler.device import Claim, choose, claim, claims_folder, counts, visible_gpus
from handler.errors import EnvironmentFault

# A worker with nothing but its claim: without torch it starts at once.
WORKER = """
import sys, types
from pathlib import Path
sys.modules["torch"] = types.ModuleType("torch")
from handler.device import claim
held = claim(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
print(held.gpu, flush=True)
sys.stdin.read()
"""


class Worker:
    """A process that holds one claim."""

    def __init__(self, gpus: int, preferred: int, folder: Path) -> None:
        command = [sys.executable, "-c", WORKER, str(gpus), str(preferred), str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.gpu = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    living: list[Worker] = []
    yield living
    for worker in living:
        worker.kill()


def held_by(gpus: list[int], count: int) -> list[int]:
    return [gpus.count(gpu) for gpu in range(count)]


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_after_scaling_and_crashes_the_gpus_are_level_again(gpus: int, tmp_path: Path, workers: list[Worker]) -> None:
    """As TorchServe does it: the last one started goes, and one that died is started again with its old number."""
    chance = random.Random(gpus)

    def scale(count: int) -> None:
        while len(workers) > count:
            workers.pop().kill()
        while len(workers) < count:
            # TorchServe's own counter goes on for ever.
            workers.append(Worker(gpus, len(workers) * 7 % gpus, tmp_path))
        held = counts(gpus, tmp_path)
        assert sum(held) == count
        assert max(held) - min(held) <= 1, held

    for count in (gpus + 1, 1, 2 * gpus):
        scale(count)
    for victim in chance.sample(range(2 * gpus), gpus):
        workers[victim].kill()
        workers[victim] = Worker(gpus, 0, tmp_path)
        assert counts(gpus, tmp_path) == [2] * gpus
    # All at once, as where the machine ran out of memory.
    for worker in workers:
        worker.kill()
    assert counts(gpus, tmp_path) == [0] * gpus


def test_claims_of_real_processes_stay_balanced_however_they_end(tmp_path: Path, workers: list[Worker]) -> None:
    gpus, chance = 3, random.Random(5)
    for step in range(24):
        if workers and chance.random() < 0.4:
            worker = workers.pop(chance.randrange(len(workers)))
            worker.kill() if step % 3 else worker.end()
        else:
            before = held_by([worker.gpu for worker in workers], gpus)
            workers.append(Worker(gpus, chance.randrange(gpus), tmp_path))
            assert before[workers[-1].gpu] == min(before)
        assert counts(gpus, tmp_path) == held_by([worker.gpu for worker in workers], gpus)
    assert len(workers) > gpus


def test_processes_that_claim_at_once_share_the_gpus_evenly(tmp_path: Path, workers: list[Worker]) -> None:
    command = [sys.executable, "-c", WORKER, "4", "0", str(tmp_path)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    try:
        claimed = [int(process.stdout.readline()) for process in started if process.stdout]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert sorted(claimed) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert counts(4, tmp_path) == [0, 0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 11]), st.lists(st.integers(-20, 20), max_size=40))
def test_the_gpu_with_the_fewest_claims_is_taken(gpus: int, steps: list[int]) -> None:
    """A step under 0 releases one of the claims, another claims with that preference."""
    living: list[Claim] = []
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            if step < 0 and living:
                living.pop(step % len(living)).release()
            else:
                before = held_by([each.gpu for each in living], gpus)
                living.append(claim(gpus, step, Path(folder)))
                equals = [gpu for gpu in range(gpus) if before[gpu] == min(before)]
                assert living[-1].gpu == (step if step in equals else equals[0])
            assert counts(gpus, Path(folder)) == held_by([each.gpu for each in living], gpus)
        for each in living:
            each.release()


def test_gpus_of_two_digits_are_not_taken_for_others(tmp_path: Path) -> None:
    held = [claim(12, 0, tmp_path) for _ in range(24)]
    assert sorted(each.gpu for each in held) == sorted([*range(12)] * 2)
    for each in held:
        each.release()


def test_one_worker_at_a_time_counts_and_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, lock, within, most = device._counts, threading.Lock(), [0], [0]

    def slow_counts(gpus: int, folder: Path) -> list[int]:
        with lock:
            within[0] += 1
            most[0] = max(most[0], within[0])
        # Long enough for the others to come in, were nothing to keep them out.
        time.sleep(0.02)
        try:
            return original(gpus, folder)
        finally:
            with lock:
                within[0] -= 1

    monkeypatch.setattr(device, "_counts", slow_counts)
    with ThreadPoolExecutor(4) as pool:
        held = list(pool.map(lambda _: claim(4, 0, tmp_path), range(4)))
    assert most == [1]
    assert sorted(each.gpu for each in held) == [0, 1, 2, 3]
    for each in held:
        each.release()


def test_preferred_only_breaks_ties(tmp_path: Path) -> None:
    first, second, third = (claim(2, 1, tmp_path) for _ in range(3))
    assert [first.gpu, second.gpu, third.gpu] == [1, 0, 1]
    first.release()
    third.release()
    fourth = claim(2, 0, tmp_path)
    assert fourth.gpu == 1
    for each in (second, fourth):
        each.release()


def test_a_claim_is_free_again_once_released(tmp_path: Path) -> None:
    held = claim(1, 0, tmp_path)
    assert counts(1, tmp_path) == [1]
    held.release()
    held.release()
    assert counts(1, tmp_path) == [0]


def test_no_folder_means_no_claims(tmp_path: Path) -> None:
    assert counts(3, tmp_path / "none") == [0, 0, 0]
    assert not (tmp_path / "none").exists()


def test_the_folder_is_this_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = claim(1, 0)
    assert claims_folder().parent == tmp_path
    assert stat.S_IMODE(claims_folder().stat().st_mode) == 0o700
    assert counts(1) == [1]
    held.release()


@pytest.mark.parametrize(("listed", "expected"), [("0", 1), ("2,3", 2), ("0, 1 ,5,", 3), ("", 0), ("GPU-a,GPU-b", 2)])
def test_visible_gpus_are_those_listed(listed: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert visible_gpus() == expected


def test_visible_gpus_are_all_where_none_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert visible_gpus() == 8


@pytest.mark.parametrize(
    ("setting", "gpus", "claimed", "expected"),
    [
        ("cpu", 0, None, "cpu"),
        ("cpu", 8, None, "cpu"),
        ("auto", 0, None, "cpu"),
        ("auto", 8, 3, "cuda:3"),
        ("auto", 8, None, "cuda:0"),
        ("cuda", 8, 7, "cuda:7"),
    ],
)
def test_choose(
    setting: str, gpus: int, claimed: int | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    held = None if claimed is None else claim(gpus, claimed, tmp_path)
    assert choose(setting, held) == torch.device(expected)
    assert current == ([torch.device(expected)] if expected != "cpu" else [])
    if held:
        held.release()


@pytest.mark.parametrize(("setting", "shown"), [("auto", "MIG-b"), ("cuda", "MIG-b"), ("cpu", None)])
def test_a_worker_is_shown_the_mig_instance_that_it_claimed(
    setting: str, shown: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pretended driver: CUDA counts what CUDA_VISIBLE_DEVICES says when it is first asked, and no more than one."""
    monkeypatch.setenv("MOGFACE_VISIBLE_DEVICES", " MIG-a, MIG-b,")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    asked: list[str | None] = []

    def is_available() -> bool:
        asked.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return True

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("CUDA would count the first instance alone"))
    assert visible_gpus() == 2
    first, second = claim(2, 0, tmp_path), claim(2, 0, tmp_path)
    chosen = choose(setting, second)
    # The variable that the test took away is not to stay changed.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.pop("CUDA_VISIBLE_DEVICES", ""))
    assert chosen == torch.device("cpu" if shown is None else "cuda:0")
    assert asked[:1] == ([shown])
    assert visible_gpus() == 2
    for each in (first, second):
        each.release()


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentFault, match=r"device is 'cuda' in detector\.yaml, but torch sees no GPU"):
        device.choose("cuda", None)
