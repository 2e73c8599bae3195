"""``python -m load_tests plan``: its command line and what it prints."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from load_tests.arguments import count, positive, share

#: Of config.properties.
_QUEUE = 100


def add(verbs: Any) -> None:
    """The verb's command line."""
    verb = verbs.add_parser("plan", help="how many GPUs, servers and workers a demand takes, by simulation")
    asked = verb.add_argument_group("what is wanted")
    asked.add_argument("--cameras", type=count, help="with --fps")
    asked.add_argument("--fps", type=positive, default=30.0, help="frames a second of each camera (%(default)g)")
    asked.add_argument("--rate", type=positive, help="images a second at random moments, instead of cameras")
    asked.add_argument(
        "--headroom", type=share, default=0.1, metavar="SHARE", help="more than that is planned for (%(default)g)"
    )
    asked.add_argument("--p99", type=positive, default=200.0, metavar="MS", help="goal (%(default)g)")
    asked.add_argument("--refused", type=share, default=0.0, metavar="SHARE", help="that may find a full queue")
    asked.add_argument("--image-kb", type=positive, default=80.0, help="of a picture (%(default)g)")
    on = verb.add_argument_group("on what")
    on.add_argument("--gpu", choices=("t4", "a10", "a100", "h200"), help="a card that is not measured: MogFace in FP16")
    on.add_argument("--canvas", default="640x640", metavar="HEIGHTxWIDTH", help="with --gpu (%(default)s)")
    on.add_argument("--efficiency", type=share, help="with --gpu: share of the card's peak (0.6)")
    on.add_argument("--empty", type=share, default=0.0, metavar="SHARE", help="with --gpu: of images without any face")
    on.add_argument(
        "--work",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="with --gpu: of the network that a min_face_size leaves: 0.36 without the finest level, 0.2 without two",
    )
    on.add_argument("--measured", type=Path, metavar="FILE", help="a sweep's points.json: servers like that machine")
    box = verb.add_argument_group("a server")
    box.add_argument("--gpus-per-server", type=count, default=4, help="at most (%(default)s)")
    box.add_argument("--cores", type=count, default=16, help="(%(default)s)")
    box.add_argument("--gbit", type=positive, default=10.0, help="of its line (%(default)g)")
    box.add_argument("--queue", type=count, default=_QUEUE, help="job_queue_size (%(default)s)")
    box.add_argument("--delay", type=count, default=1, metavar="MS", help="maxBatchDelay (%(default)s)")
    check = verb.add_argument_group("is the model right?")
    check.add_argument(
        "--calibrate", action="store_true", help="run a model that only waits on a real server here, and compare"
    )
    check.add_argument("--seconds", type=positive, default=15.0, help="with --calibrate: of a level (%(default)g)")
    check.add_argument("--base", type=Path, default=Path("config.properties"), help="with --calibrate")
    check.add_argument("--save", type=Path, metavar="FILE", help="with --calibrate: what was measured, as JSON")
    check.add_argument("--check", type=Path, metavar="FILE", help="predict the levels of a sweep that no fit has seen")
    verb.set_defaults(call=_call)


def _call(given: argparse.Namespace) -> int:
    if given.calibrate:
        return _calibrate(given)
    if given.check:
        return _check(given)
    return _plan(given)


def _calibrate(given: argparse.Namespace) -> int:
    from archive.files import whole
    from load_tests import plan_calibration as calibration

    measured = calibration.measure(given.base, calibration.CASES, given.seconds)
    if given.save:
        with whole(given.save) as draft:
            draft.write_text(json.dumps(measured, indent=1), encoding="utf-8")
    compared = calibration.compare(measured)
    print(measured["machine"])
    print(calibration.table(compared))
    missed = [each for each in compared if not each.good]
    near = f"rates within {calibration.RATE_MISS:.0%}, p99 within {calibration.P99_MISS:.0%}"
    print(f"{len(compared) - len(missed)} of {len(compared)} levels predicted: {near}")
    return 1 if missed else 0


def _check(given: argparse.Namespace) -> int:
    from load_tests import plan_calibration as calibration
    from load_tests.plan_measured import predictions
    from load_tests.results import Results

    found = predictions(Results.read(given.check).points, _box(given))
    missed = 0
    for each in found:
        near = abs(each.rate_miss) <= calibration.RATE_MISS and abs(each.p99_miss) <= calibration.P99_MISS
        missed += not near
        print(
            f"{each.point.name}, {each.level['level']:g} users: {each.level['rate']:.1f} answers a second, predicted "
            f"{each.predicted.rate:.1f} ({each.rate_miss:+.0%}); p99 {each.level['p99_ms']:.0f} ms, predicted "
            f"{each.predicted.p99_ms:.0f} ({each.p99_miss:+.0%}){'' if near else '  MISS'}"
        )
    if not found:
        raise ValueError(f"{given.check} has no level between one user and the most: nothing is left to predict")
    return 1 if missed else 0


def _plan(given: argparse.Namespace) -> int:
    from load_tests import plan
    from load_tests.errors import NoPlan

    if (given.cameras is None) == (given.rate is None):
        raise ValueError("say what is wanted: either --cameras N (with --fps), or --rate N")
    if not given.work or given.efficiency == 0:
        raise ValueError("--work and --efficiency are over 0")
    if (given.gpu is None) == (given.measured is None):
        raise ValueError(
            "say on what: either --gpu CARD, by its physical floor, or --measured FILE, a sweep's points.json"
        )
    rate = given.rate or given.cameras * given.fps
    planned = rate * (1 + given.headroom)
    demand = plan.Demand(planned, given.cameras or 0, given.p99, given.refused, given.image_kb)
    came = f"{given.cameras} cameras x {given.fps:g} a second: " if given.cameras else ""
    print(
        f"wanted: {came}{rate:g} images a second and {given.headroom:.0%} of headroom, p99 within {given.p99:g} ms, "
        f"{given.refused:.1%} refused at most"
    )
    try:
        lines = _on_gpus(given, rate, demand) if given.gpu else _on_measured(given, demand)
    except NoPlan as error:
        print(f"no plan: {error}")
        return 1
    print("\n".join(lines))
    return 0


def _on_gpus(given: argparse.Namespace, rate: float, demand: Any) -> list[str]:
    from handler.geometry import Canvas
    from load_tests import plan, plan_service
    from load_tests.errors import NoPlan

    canvas = Canvas.parse(given.canvas)
    floor, peak = plan_service.floor_ms(given.gpu, canvas), plan_service.PEAK_TFLOPS[given.gpu]
    efficiency = given.efficiency or plan_service.EFFICIENCY
    work = given.work * (1 - plan_service.BOX_HEADS * given.empty)
    service = plan_service.assumed(given.gpu, canvas, efficiency, work)
    print(
        f"floor: {plan_service.flop(canvas) / 1e12:.2f} TFLOP an image at {canvas}, {peak:g} TFLOP/s of dense FP16 at "
        f"the peak of one {given.gpu}: {floor:.1f} ms an image"
    )
    print(
        f"planned: {efficiency:.0%} of the peak, {work:.0%} of the network: {service.device_image_ms:.1f} ms an image "
        "in the mean. Not measured: a sweep on such a card (--measured) is better"
    )
    # Of the slowest in a hundred: those have faces, whatever the others have.
    if demand.p99_ms < floor * given.work:
        raise NoPlan(
            f"a p99 of {demand.p99_ms:g} ms is below the physical limit: no software runs this network on one "
            f"{given.gpu} in less than {floor * given.work:.1f} ms. A smaller canvas or another card could"
        )
    physical = max(1, math.ceil(rate * floor * work / 1000))
    print(f"physical limit: {physical} {given.gpu} at the least, whatever runs on them")
    return list(plan.told(plan.search(demand, service, _box(given)), demand, given.gpu))


def _on_measured(given: argparse.Namespace, demand: Any) -> list[str]:
    from load_tests import plan
    from load_tests.plan_measured import search
    from load_tests.results import Results

    results = Results.read(given.measured)
    point, found = search(results.points, demand, _box(given))
    print(f"measured: {results.conditions.get('machine', 'a machine that is not named')}")
    return [f"each server runs {point.name} of the sweep", *plan.told(found, demand, "devices")]


def _box(given: argparse.Namespace) -> Any:
    from load_tests.plan import Box

    return Box(given.gpus_per_server, given.cores, given.gbit, given.queue, given.delay)
