"""A soak: a real server with two workers, an open stream of requests at a steady rate, disturbances, and a watch."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from archive import properties
from archive.build import VERSION, Build, Wanted, Workspace
from archive.serve import isolated
from archive.server import Server
from handler.config import Limits
from tests.soak import watch
from tests.soak.ask import Ask, Outcome
from tests.soak.caller import CONNECTIONS, Caller, opened
from tests.soak.disturb import WORKERS, Disturbances
from tests.soak.good import photographs, require_faces, told
from tests.soak.mix import OPTIONS, Known, Mix, raw
from tests.soak.verdict import Run
from tests.soak.watch import Watch

ROOT = Path(__file__).resolve().parents[2]
MODEL = "centerface"
#: Of what the machine carries.
SHARE = 0.6
#: How that is measured: so many requests under way for so long.
_CLOSED, _CLOSED_S = 16, 10.0
#: Full collections of the front end's garbage, in all.
_COLLECTIONS = 24
TIMEOUT_S = 120.0

Say = Callable[[str], None]


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """CenterFace with two workers in batches of eight, all else as it is shipped.

    Args:
        folder: an empty one, for all that it writes.
    """
    store = folder / "store"
    Build(Wanted(MODEL), Workspace(ROOT / "build", store)).archive()
    config = isolated(ROOT / "config.properties", folder)
    values = properties.read(config) | {"model_store": str(store)}
    entries = properties.models(values)
    entries[MODEL][VERSION] |= {"minWorkers": WORKERS, "maxWorkers": WORKERS, "batchSize": 8}
    config.write_text(properties.render(values | {"models": json.dumps(entries)}), encoding="utf-8")
    with (
        (folder / "console.log").open("wb") as console,
        Server(config, [f"{MODEL}.mar"], folder, folder / "tmp", console) as running,
    ):
        running.wait([MODEL])
        yield running


async def soak(running: Server, seconds: float, rate: float | None, say: Say, progress: Callable[[float], Any]) -> Run:
    """Ask for so long, and see what came of it.

    Args:
        running: a server that is ready, with two workers.
        seconds: after the rate is known.
        rate: requests a second; None measures what the machine carries and takes 60 % of it.
        say: takes one line at a time.
        progress: takes seconds that passed.

    Raises:
        AssertionError: the server does not know its photographs.
    """
    async with opened(running, MODEL, TIMEOUT_S) as caller:
        known, chosen = await _known(caller)
        mix = Mix(known, chosen, Limits())
        say(f"{len(known)} photographs, {len(chosen)} with options, {mix.hostile} hostile images")
        if rate is None:
            carried = await _carried(caller, mix)
            rate = SHARE * carried
            say(f"{_CLOSED} at once: {carried:.1f} requests a second; asks {rate:.1f} a second from now on")
        seen, outcomes = Watch(running), list[Outcome]()

        async def burst(count: int) -> None:
            now = time.monotonic()
            outcomes.extend(await asyncio.gather(*(caller.outcome(ask, now) for ask in mix.burst(count))))

        began = time.monotonic()
        disturbances = Disturbances(running, MODEL, seen.pids, burst)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_watch(seen, seconds, began, caller, progress))
            tasks.create_task(disturbances.run(seconds, began))
            tasks.create_task(_ask(caller, mix, rate, began + seconds, outcomes))
        return Run(
            began,
            time.monotonic(),
            rate,
            outcomes,
            seen.samples,
            seen.heap,
            disturbances.windows,
            CONNECTIONS,
            mix.hostile,
            seen.ended,
        )


async def _known(caller: Caller) -> tuple[list[Known], list[Known]]:
    """What the well server says of each photograph, alone; with each set of options too."""

    async def answer(known: Known) -> Known:
        reply = await caller.reply(raw("known", known))
        if reply.status != 200:
            raise AssertionError(f"{known.photograph.name} {known.options}: {reply.status} {reply.body[:300]!r}")
        if not known.options:
            require_faces(known.photograph, json.loads(reply.body))
        return Known(known.photograph, known.options, told(reply.body))

    plain = [await answer(Known(each, {}, None)) for each in photographs()]
    options: list[Mapping[str, str]] = list(OPTIONS)
    chosen = [
        await answer(Known(photograph, given, None))
        for given, photograph in itertools.product(options, photographs()[:5])
    ]
    return plain, chosen


async def _carried(caller: Caller, mix: Mix) -> float:
    """Requests of the mix a second, so many always under way."""
    asks, until, done = iter(mix), time.monotonic() + _CLOSED_S, 0

    async def one() -> None:
        nonlocal done
        while time.monotonic() < until:
            await caller.outcome(next(asks), time.monotonic())
            done += 1

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(_CLOSED)))
    return done / (time.monotonic() - began)


async def _ask(caller: Caller, mix: Mix, rate: float, until: float, outcomes: list[Outcome]) -> None:
    """Independent callers: times between requests are distributed exponentially. Waits for all ends."""
    chance, due = random.Random(1), time.monotonic()

    async def one(ask: Ask, due: float) -> None:
        outcomes.append(await caller.outcome(ask, due))

    async with asyncio.TaskGroup() as tasks:
        for ask in mix:
            due += chance.expovariate(rate)
            if due >= until:
                return
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.create_task(one(ask, due))


async def _watch(seen: Watch, seconds: float, began: float, caller: Caller, progress: Callable[[float], Any]) -> None:
    """A sample every two seconds, a collection of garbage now and then."""
    shown, collections = 0.0, 0
    while (passed := time.monotonic() - began) < seconds:
        await asyncio.to_thread(seen.look)
        if passed >= seconds * collections / _COLLECTIONS:
            collections += 1
            await asyncio.to_thread(seen.collect)
        progress(passed - shown)
        shown = passed
        await asyncio.sleep(watch.EVERY_S)
    progress(seconds - shown)
