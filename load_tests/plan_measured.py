"""Plans and predictions out of a sweep: servers like the machine that was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archive.files import progress
from load_tests.errors import NoPlan
from load_tests.plan import Box, Demand, Plan, tried
from load_tests.plan_model import Serving
from load_tests.plan_service import Fitted, fitted
from load_tests.plan_simulation import Outcome, Users, simulate
from load_tests.points import Measured, Point

#: Servers over the fewest that could do that are tried.
_MORE = 2.0
_Kind = tuple[str, int]


@dataclass(frozen=True)
class Prediction:
    """A level that no fit has seen, measured and predicted.

    Attributes:
        point: that ran.
        level: as ``load_tests run`` summarises it.
        predicted: by the simulation.
    """

    point: Point
    level: Mapping[str, Any]
    predicted: Outcome

    @property
    def rate_miss(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted.rate / float(self.level["rate"]) - 1

    @property
    def p99_miss(self) -> float:
        """Likewise."""
        return self.predicted.p99_ms / float(self.level["p99_ms"]) - 1


def fits(measured: Sequence[Measured]) -> dict[_Kind, Fitted]:
    """By archive and number of workers.

    Raises:
        NoPlan: nothing was measured that can be planned with.
    """
    kinds: dict[_Kind, list[Measured]] = defaultdict(list)
    for each in measured:
        if not each.lost:
            kinds[each.point.archive, each.point.workers].append(each)
    if not kinds:
        raise NoPlan("the sweep has no point that was measured to its end: run it again")
    return {kind: fitted(points) for kind, points in kinds.items()}


def predictions(measured: Sequence[Measured], box: Box) -> list[Prediction]:
    """Every level but those of one user and of the most, which the fits are made of."""
    known = fits(measured)
    found = []
    for each in measured:
        if each.lost:
            continue
        fit = known[each.point.archive, each.point.workers]
        most = max(float(level["level"]) for level in each.levels)
        for level in each.levels:
            if 1 < level["level"] < most and level["answered"]:
                outcome = simulate(
                    fit.service, _serving(each.point, fit, box), Users(int(level["level"])), int(level["requests"])
                )
                found.append(Prediction(each.point, level, outcome))
    return found


def search(measured: Sequence[Measured], demand: Demand, box: Box) -> tuple[Point, Plan]:
    """The fewest servers like the measured one, and the point of the sweep that each runs.

    Raises:
        NoPlan: none does, with what stands in the way.
    """
    known = fits(measured)
    best = max(float(level["rate"]) for each in measured for level in each.levels)
    least = max(1, math.ceil(demand.rate / best))
    most = math.ceil(least * _MORE) + 1
    with progress("servers", most - least + 1, "server") as bar:
        for servers in range(least, most + 1):
            plans = []
            for each in measured:
                fit = known.get((each.point.archive, each.point.workers))
                if fit and (plan := tried(demand, fit.service, box, servers, _serving(each.point, fit, box))):
                    plans.append((each.point, plan))
            bar.update()
            if plans:
                return min(plans, key=lambda found: (round(found[1].outcome.p99_ms), found[0].workers))
    alone = min(fit.service.alone_ms() for fit in known.values())
    raise NoPlan(
        f"{most} servers like this one do not keep to a p99 of {demand.p99_ms:g} ms; {least} would do the work, and "
        f"one image alone takes {alone:.1f} ms"
    )


def _serving(point: Point, fit: Fitted, box: Box) -> Serving:
    return Serving(point.workers, point.batch, point.delay_ms, box.queue, fit.devices, box.cores)
