"""A job on a cluster: rounds of Ray Data over the parts that are not done, until all are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from bulk.cluster import Layout
from bulk.errors import JobStopped
from bulk.job import Folder, Remaining
from bulk.progress import Progress, tally
from bulk.worker import Work, Worker

#: Rounds that may pass without one more part being done, before it is said that the rest cannot be.
_FRUITLESS = 2
#: Ray keeps an object a block; of more parts than these several go together.
_BLOCKS = 4096
#: Parts that a worker is given before it is done with one: it should not wait, nor should the last ones.
_AHEAD = 2


def run(work: Work, layout: Layout, archive: Path, remaining: Remaining) -> None:
    """Run the parts of a job that are not done.

    Args:
        work: the job.
        layout: of the workers, on the cluster that is connected.
        archive: the .mar.
        remaining: what of it is left.

    Raises:
        JobStopped: parts cannot be finished, with the reason of one.
    """
    folder = Folder(work.store, work.form)
    folder.reopen(remaining.parts)
    told = tally()
    packed = ray.put(np.fromfile(archive, np.uint8))
    pending = list(remaining.parts)
    fruitless, reason = 0, ""
    with Progress(remaining, lambda: ray.get(told.counts.remote())):
        while pending:
            try:
                _round(work, layout, [packed], told, pending)
            except (ray.exceptions.RayError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[-1]
            done = folder.done()
            left = [number for number in pending if number not in done]
            fruitless = fruitless + 1 if left == pending else 0
            if left:
                why = _why(left, ray.get(told.faults.remote()), reason)
                if fruitless == _FRUITLESS:
                    raise JobStopped(f"{why}. The same command goes on with what is left")
                print(f"mogface-bulk: {why}; run again", file=sys.stderr, flush=True)
            pending = left


def _round(work: Work, layout: Layout, archive: list[Any], told: Any, pending: Sequence[int]) -> None:
    workers = min(layout.workers, len(pending))
    parts = ray.data.from_items(
        [{"part": number} for number in pending], override_num_blocks=min(len(pending), _BLOCKS)
    )
    # Idle workers are let go at the end: one whose node was lost finds room for what it still holds.
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=_AHEAD
    )
    counted = parts.map_batches(
        Worker,
        batch_size=1,
        compute=pool,
        fn_constructor_kwargs={"work": work, "archive": archive, "tally": told},
        num_cpus=layout.threads,
        num_gpus=layout.gpus or None,
    )
    for _ in counted.iter_batches(batch_size=None):
        pass


def _why(left: Sequence[int], faults: dict[int, str], reason: str) -> str:
    number = next((each for each in left if each in faults), left[0])
    why = (
        faults.get(number)
        or reason
        or "its worker's process ended each time, as an engine's or decoder's fault ends it"
    )
    return (
        f"not finished: {len(left)} of the parts; part {number}, whose images are row group {number} of "
        f"listing.parquet: {why}"
    )
