"""Many requests at once on a real TorchServe, while it is well and while it is not: none is lost, doubled or mixed up.

CenterFace runs at small canvases here, so that a thousand requests take seconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import re
import signal
import zipfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from archive import properties
from archive.build import VERSION, Workspace
from archive.pack import Recipe, pack
from archive.server import Server
from clients import Answer, AsyncClient, ClientError, InvalidImage, InvalidOption, Management
from handler.config import FILE, Settings
from handler.geometry import Canvas
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT, Start, worker_pids
from tests.serving.test_client import PATIENT, address, arguments, keys


@pytest.fixture(scope="module")
def small(
    start: Start, workspace: Workspace, centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One worker, the shipped configuration."""
    folder = tmp_path_factory.mktemp("small")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    settings = dataclasses.replace(Settings.load(folder / FILE), canvases=(Canvas(160, 160),), long_side=160)
    pack(
        Recipe("small", VERSION, settings, {"centerface.onnx": folder / "graphs" / "centerface.onnx"}),
        workspace.store / "small.mar",
    )
    shipped = properties.read(ROOT / "config.properties")
    entry = properties.models(shipped)["centerface"]
    server = start("small", changes={"models": json.dumps({"small": entry})})
    yield server
    server.stop()


@dataclass(frozen=True)
class Case:
    """A request that no other equals, and what has to come of it."""

    image: bytes
    size: tuple[int, int]
    options: dict[str, Any]
    error: type[ClientError] | None = None


def case(number: int) -> Case:
    """Of every five, three images are whole, one is damaged and one comes with a bad option."""
    size = (96 + number % 65, 96 + number // 65)
    data = io.BytesIO()
    with Image.open(HOPPER.path) as photograph:
        photograph.crop((175, 131, 357, 336)).resize(size).save(data, "JPEG")
    image = data.getvalue()
    match number % 5:
        case 3:
            # Its header is whole, so that only decoding finds out.
            return Case(image[: len(image) // 2], size, {}, InvalidImage)
        case 4:
            return Case(image, size, {"max_faces": -number}, InvalidOption)
        case _:
            return Case(image, size, {"score_threshold": 0.25})


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    made = [case(number) for number in range(1000)]
    assert len({each.size for each in made}) == 1000
    return made


Outcome = Answer | ClientError
Disturb = Callable[[Callable[[], int]], Coroutine[Any, Any, None]]


async def _sent(
    server: Server, cases: Sequence[Case], disturb: Disturb | None, concurrency: int
) -> tuple[list[Outcome], int]:
    """Every case at once, by turns over REST and gRPC; what came of each, and how many were sent again."""
    given = arguments(server, concurrency=concurrency, retry=PATIENT)
    done = 0

    async def ask(client: AsyncClient, each: Case) -> Outcome:
        nonlocal done
        try:
            return await client.detect(each.image, **each.options)
        except ClientError as error:
            return error
        finally:
            done += 1

    async with (
        AsyncClient(address(server, "rest"), "small", **given) as rest,
        AsyncClient(address(server, "grpc"), "small", **given) as grpc,
    ):
        calls = [asyncio.create_task(ask((rest, grpc)[number % 2], each)) for number, each in enumerate(cases)]
        if disturb:
            await disturb(lambda: done)
        outcomes = await asyncio.gather(*calls)
        return outcomes, rest.retries + grpc.retries


def send(server: Server, cases: Sequence[Case], disturb: Disturb | None = None, concurrency: int = 40) -> int:
    """Send, check that each got the answer that is its own, and say how many requests were sent again."""
    outcomes, retries = asyncio.run(_sent(server, cases, disturb, concurrency))
    assert len(outcomes) == len(cases)
    for each, outcome in zip(cases, outcomes, strict=True):
        if each.error is None:
            assert isinstance(outcome, Answer), repr(outcome)
            assert (outcome.width, outcome.height) == each.size
        else:
            assert type(outcome) is each.error, repr(outcome)
        if each.error is InvalidOption:
            assert f"'{each.options['max_faces']}'" in str(outcome)
        if each.error is InvalidImage:
            assert f"{len(each.image):,}" in str(outcome) or "truncated" in str(outcome)
    return retries


async def _until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not ready():
            await asyncio.sleep(0.02)


def test_a_thousand_requests_of_every_outcome(small: Server, cases: list[Case]) -> None:
    """Twice as many under way as the server's queue takes: those that it refuses come back."""
    before = _access(small)
    send(small, cases, concurrency=100)
    assert sum(each.error is None for each in cases) == 600
    # As the server counts them: each was answered once over REST, besides the refusals of a full queue.
    found = _access(small) - before
    assert (found["200"], found["400"]) == (300, 200)


def _access(server: Server) -> Counter[str]:
    """How often the server answered predictions with each status."""
    log = (server.folder / "logs" / "access_log.log").read_text()
    return Counter(re.findall(r'"POST /predictions/small HTTP/1\.1" (\d+)', log))


def test_a_worker_that_is_killed_loses_nothing(small: Server, cases: list[Case]) -> None:
    [pid] = worker_pids(small, "small")

    async def kill(done: Callable[[], int]) -> None:
        await _until(lambda: done() >= 60)
        os.kill(pid, signal.SIGKILL)

    retries = send(small, cases[:300], kill)
    assert retries > 0
    assert worker_pids(small, "small") != [pid]


def test_scaling_under_load_loses_nothing(small: Server, cases: list[Case]) -> None:
    with Management(small.management, keys(small)) as management:

        async def up_and_down(done: Callable[[], int]) -> None:
            await _until(lambda: done() >= 20)
            await asyncio.to_thread(management.scale, "small", 2)
            at = done()
            assert at < len(cases)
            await _until(lambda: done() >= at + 50)
            await asyncio.to_thread(management.scale, "small", 1)
            assert done() < len(cases) * 2

        send(small, cases * 2, up_and_down)
        [version] = management.describe("small")
        assert len(version.workers) == 1
