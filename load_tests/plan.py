"""How many GPUs, servers and workers a demand takes: a search over the queueing model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from archive.files import progress
from load_tests.errors import NoPlan
from load_tests.plan_model import Service, Serving
from load_tests.plan_simulation import Arrivals, Cameras, Load, Outcome, simulate

#: What is tried; TorchServe fixes them when a model is loaded.
BATCHES = (1, 2, 4, 8, 16, 32, 64)
WORKERS_A_GPU = (1, 2)
#: A model that does nothing, one request a batch, over REST on two cores: README.md, Figures.
FRONT_END_RATE = 2000.0
#: Nothing may be busier: near its limit a queue grows for longer than is simulated.
BUSIEST = 0.95
#: Requests of a first look, by which most settings are left out, and of what is told.
_LOOK, _TOLD = 600, 6000
#: A first look's p99 may be so much over the goal.
_LENIENT = 1.3
#: Over the fewest GPUs that could do, how many more are tried.
_MORE = 3.0
_HELP = {
    "devices": "a lower precision, a smaller canvas, --min-face-size (which leaves levels out) or more and faster GPUs",
    "cores": "smaller pictures from the cameras, or more cores a server",
    "front end": "fewer GPUs a server, so that more front ends share the requests",
    "network": "pictures compressed more, or a faster line to each server",
}


@dataclass(frozen=True)
class Demand:
    """What is wanted.

    Attributes:
        rate: images a second, in all.
        cameras: that send them, 0 where they come at random moments.
        p99_ms: that latencies keep to.
        refused: share of the requests that may find a full queue.
        image_kb: of one encoded picture.
    """

    rate: float
    cameras: int
    p99_ms: float
    refused: float = 0.0
    image_kb: float = 80.0

    def load(self, servers: int) -> Load:
        """What one of so many servers gets."""
        if self.cameras:
            return Cameras(self.cameras / servers, self.rate / self.cameras)
        return Arrivals(self.rate / servers)


@dataclass(frozen=True)
class Box:
    """One server's machine.

    Attributes:
        gpus: that it can hold.
        cores: of its processor.
        gbit: of its line, Gbit/s.
        queue: ``job_queue_size``.
        delay_ms: ``maxBatchDelay``.
    """

    gpus: int = 4
    cores: int = 16
    gbit: float = 10.0
    queue: int = 100
    delay_ms: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What does it.

    Attributes:
        servers: of one kind.
        serving: how each runs.
        outcome: of one of them, simulated.
        busy: share of each thing's time, by its name, the busiest first.
    """

    servers: int
    serving: Serving
    outcome: Outcome
    busy: dict[str, float]

    @property
    def gpus(self) -> int:
        """In all."""
        return self.servers * self.serving.devices

    def bottleneck(self) -> str:
        """What gives way first, and what would help."""
        name, share = next(iter(self.busy.items()))
        return f"{name}, {share:.0%} busy: {_HELP[name]} would raise it"


def fewest(demand: Demand, service: Service) -> int:
    """GPUs under which the devices alone are over their time, however requests are batched."""
    return max(1, math.ceil(demand.rate * service.device_ms(max(BATCHES)) / max(BATCHES) / 1000))


def search(demand: Demand, service: Service, box: Box) -> Plan:
    """The fewest GPUs that keep to the goal; of their settings the one with the least p99.

    Raises:
        NoPlan: none does, with what stands in the way.
    """
    if service.alone_ms() > demand.p99_ms:
        raise NoPlan(
            f"one image alone takes {service.alone_ms():.1f} ms: a p99 of {demand.p99_ms:g} ms cannot be had by more "
            "GPUs, which shorten the queue alone. A smaller canvas or a faster card would shorten it"
        )
    least = fewest(demand, service)
    layouts = list(_layouts(least, math.ceil(least * _MORE) + 3, box.gpus))
    with progress("layouts", len(layouts), "layout") as bar:
        for servers, gpus in layouts:
            bar.set_postfix_str(f"{servers * gpus} GPUs")
            plans = [
                plan
                for serving in _servings(demand, service, box, servers, gpus)
                if (plan := tried(demand, service, box, servers, serving))
            ]
            bar.update()
            if plans:
                return min(plans, key=lambda plan: (round(plan.outcome.p99_ms), plan.serving.workers))
    raise NoPlan(
        f"{layouts[-1][0] * layouts[-1][1]} GPUs do not keep to a p99 of {demand.p99_ms:g} ms, and {least} would do "
        "the work: what stands in the way is not their number. More cores, a longer queue, a faster line or a smaller "
        "canvas would help"
    )


def tried(demand: Demand, service: Service, box: Box, servers: int, serving: Serving) -> Plan | None:
    """A plan of these servers, where it keeps to the goal."""
    one = demand.rate / servers
    busy = {"front end": one / FRONT_END_RATE, "network": one * demand.image_kb * 8 / 1e6 / box.gbit}
    if max(busy.values()) > BUSIEST:
        return None
    for requests, leniency in ((_LOOK, _LENIENT), (_TOLD, 1.0)):
        outcome = simulate(service, serving, demand.load(servers), requests)
        if outcome.p99_ms > demand.p99_ms * leniency or outcome.refused > demand.refused:
            return None
    busy |= {"devices": outcome.device_busy, "cores": outcome.cores_busy}
    if max(busy.values()) > BUSIEST:
        return None
    return Plan(servers, serving, outcome, dict(sorted(busy.items(), key=lambda each: -each[1])))


def _layouts(least: int, most: int, gpus: int) -> list[tuple[int, int]]:
    """Servers and GPUs of each, from the fewest GPUs in all, then the fewest servers."""
    sizes = {count for count in (1, 2, 4, 8, 16) if count < gpus} | {gpus}
    found = {(-(-total // each), each) for each in sizes for total in range(least, most + each, each)}
    # One server may be of any size.
    found |= {(1, total) for total in range(least, min(gpus, most) + 1)}
    return sorted(found, key=lambda layout: (layout[0] * layout[1], layout[0]))


def _servings(demand: Demand, service: Service, box: Box, servers: int, gpus: int) -> Iterator[Serving]:
    for a_gpu in WORKERS_A_GPU:
        for batch in BATCHES:
            # A full batch alone must keep to the goal, and full batches must keep up.
            alone = service.front_ms + service.host_image_ms + service.device_ms(batch)
            share = demand.rate / servers * service.device_ms(batch) / batch / 1000 / gpus
            if alone <= demand.p99_ms and share <= BUSIEST:
                yield Serving(a_gpu * gpus, batch, box.delay_ms, box.queue, gpus, box.cores)


def told(plan: Plan, demand: Demand, what: str) -> Sequence[str]:
    """The plan in words.

    Args:
        plan: to tell of.
        demand: that it meets.
        what: a device is called, as ``a10``.
    """
    serving, outcome = plan.serving, plan.outcome
    each = f"server{'s' if plan.servers > 1 else ''}"
    return [
        f"plan: {plan.gpus} {what} in {plan.servers} {each} of {serving.devices}",
        f"each server: {serving.workers} workers, batchSize {serving.batch}, maxBatchDelay {serving.delay_ms:g} ms, "
        f"job_queue_size {serving.queue}, {serving.cores} cores",
        f"simulated: {outcome.rate * plan.servers:.0f} images a second, p50 {outcome.p50_ms:.0f} ms, p99 "
        f"{outcome.p99_ms:.0f} ms of {demand.p99_ms:g}, {outcome.refused:.1%} refused, {outcome.batch_mean:.1f} images "
        "a batch",
        "busy: " + ", ".join(f"{name} {share:.0%}" for name, share in plan.busy.items()),
        f"first bottleneck: {plan.bottleneck()}",
    ]
