"""The planner: physics, the search, and what it says of what cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handler.geometry import Canvas
from load_tests import plan_service
from load_tests.errors import NoPlan
from load_tests.plan import BUSIEST, FRONT_END_RATE, Box, Demand, fewest, search, told
from load_tests.plan_model import Service, Serving
from load_tests.plan_service import assumed, fitted, floor_ms
from load_tests.plan_simulation import Users, simulate
from load_tests.points import Measured, Point
from tests.checkout import ROOT

VGA, SQUARE = Canvas(480, 640), Canvas(640, 640)


@pytest.mark.parametrize(("card", "milliseconds"), [("t4", 25.0), ("a10", 13.0), ("a100", 5.2), ("h200", 2.1)])
def test_floors_are_flop_over_the_peak(card: str, milliseconds: float) -> None:
    assert floor_ms(card, SQUARE) == pytest.approx(milliseconds, rel=0.03)
    assert floor_ms(card, VGA) == pytest.approx(milliseconds * 0.75, rel=0.03)


def test_what_is_not_run_costs_nothing() -> None:
    assert assumed("a10", SQUARE, 1.0, work=0.6).device_image_ms == pytest.approx(0.6 * floor_ms("a10", SQUARE))
    half = plan("--rate", "20", "--gpu", "a10", "--empty", "0.5", "--work", "0.36")
    # 13 ms x 0.36 x (1 - 0.4 x 0.5) / 0.6
    assert "6.2 ms an image in the mean" in half.stdout, half.stdout + half.stderr


def test_the_least_number_of_gpus_is_arithmetic() -> None:
    # 10 ms an image, whatever the batch: 100 a second and GPU.
    assert [fewest(Demand(rate, 0, 100), Service(0, 0, 0, 10)) for rate in (1, 99, 101, 1000)] == [1, 1, 2, 10]


def test_a_plan_keeps_to_its_goal_and_one_gpu_less_cannot() -> None:
    demand, service = Demand(900, 30, 200), assumed("a10", VGA)
    found = search(demand, service, Box())
    outcome = found.outcome
    assert outcome.p99_ms <= 200
    assert outcome.refused == 0
    assert outcome.rate * found.servers == pytest.approx(900, rel=0.03)
    assert max(found.busy.values()) <= BUSIEST
    # The devices' own time, without any queueing.
    work = 900 * service.device_ms(1) / 1000
    assert found.gpus == pytest.approx(work / BUSIEST, abs=1.6)
    assert list(found.busy) == sorted(found.busy, key=lambda name: -found.busy[name])
    assert next(iter(found.busy)) == "devices"
    assert any("first bottleneck: devices" in line for line in told(found, demand, "a10"))


def test_a_tight_goal_takes_more_than_a_wide_one() -> None:
    service = Service(1.0, 0.0, 0.0, 20.0)
    wide, tight = (search(Demand(90, 0, goal), service, Box()).gpus for goal in (400, 45))
    assert tight > wide


def test_the_front_end_is_never_asked_for_more_than_it_does() -> None:
    fast = Service(2.0, 0.1, 0.1, 0.2)
    found = search(Demand(2500, 0, 100), fast, Box(gpus=4))
    assert 2500 / found.servers <= FRONT_END_RATE * BUSIEST
    assert next(iter(found.busy)) == "front end"


def test_a_line_that_is_too_narrow_is_no_matter_of_gpus() -> None:
    with pytest.raises(NoPlan, match="a faster line"):
        search(Demand(100, 0, 100, image_kb=10_000), Service(1, 1, 0, 5), Box(gpus=1, gbit=0.01))


def test_what_one_image_alone_takes_too_long_for_has_no_plan() -> None:
    with pytest.raises(NoPlan, match="one image alone takes"):
        search(Demand(10, 0, 15), assumed("a10", SQUARE), Box())


def level(users: int, rate: float, quantiles: tuple[float, float, float, float], batch: float = 1) -> dict[str, Any]:
    names = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    told = {"level": users, "kind": "closed", "rate": rate, "batch_sizes": {str(round(batch)): 100}}
    told |= {"batch_mean": batch, "answered": 100, "requests": 100}
    return told | dict(zip(names, quantiles, strict=True)) | {"stages_ms": {"network": 38.0}, "failures": {}}


def synthetic(service: Service, workers: int, devices: int, batches: tuple[int, ...]) -> list[Measured]:
    """What a sweep would measure, were the model the truth."""
    found = []
    for batch in batches:
        serving = Serving(workers, batch, 1, 100, devices, 2)
        levels = []
        for users in (2 * workers * batch, 1):
            outcome = simulate(service, serving, Users(users), 3000)
            quantiles = (outcome.p50_ms, outcome.p99_ms, outcome.p99_ms, outcome.p99_ms)
            one = level(users, outcome.rate, quantiles, outcome.batch_mean)
            stages = {"network": service.host_image_ms + service.device_ms(1)}
            levels.append(one | {"stages_ms": stages})
        found.append(Measured(Point("a", workers, batch, 1), levels, 1.0, None, 1.0))
    return found


@pytest.mark.parametrize(("workers", "devices"), [(1, 1), (2, 2), (2, 1)])
def test_a_fit_finds_the_service_that_was_there(workers: int, devices: int) -> None:
    # Of workers that take turns at one device, what they do beside it cannot be told from a saturated one.
    true = Service(4.0, 0.0, 12.0, 6.0)
    found = fitted(synthetic(true, workers, devices, (1, 4, 8)))
    assert found.devices == devices
    assert found.service.front_ms == pytest.approx(4.0, abs=0.3)
    assert [found.service.device_ms(n) for n in (1, 4, 8)] == pytest.approx([18, 36, 60], rel=0.05)


def test_a_fit_wants_its_levels() -> None:
    point = Measured(Point("a", 1, 1, 1), [level(2, 10, (1, 1, 1, 1))], 1.0, None, 1.0)
    with pytest.raises(NoPlan, match="a plan needs its levels of one user and of the most"):
        fitted([point])


def plan(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "load_tests", "plan", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_below_the_physical_limit_is_said() -> None:
    done = plan("--cameras", "30", "--canvas", "640x480", "--gpu", "a10", "--p99", "0.8")
    assert done.returncode == 1
    assert "below the physical limit" in done.stdout
    assert "9.7 ms" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu", "a10"), "either --cameras N (with --fps), or --rate N"),
        (("--rate", "10"), "either --gpu CARD"),
        (("--rate", "10", "--measured", "none.json"), "none.json is not there"),
        (("--rate", "10", "--gpu", "a10", "--canvas", "nothing"), "nothing"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], words: str) -> None:
    done = plan(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_peaks_are_the_presets() -> None:
    from archive.configure import PRESETS

    for card in plan_service.PEAK_TFLOPS:
        assert floor_ms(card, SQUARE) == pytest.approx(PRESETS[card].image_ms["mogface"], rel=0.03), card
    assert plan_service.PEAK_TFLOPS.keys() == PRESETS.keys() - {"cpu"}
