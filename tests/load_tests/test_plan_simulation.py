"""The queueing model against what queueing theory and arithmetic say, and against TorchServe's own rules."""

from __future__ import annotations

import math

import pytest

from load_tests.plan_model import Service, Serving, Spread
from load_tests.plan_simulation import Arrivals, Cameras, Users, simulate

PLAIN = Service(0.0, 0.0, 0.0, 10.0)


def serving(workers: int = 1, batch: int = 1, delay: float = 1, queue: int = 100_000, devices: int = 1) -> Serving:
    return Serving(workers, batch, delay, queue, devices, cores=4)


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_random_arrivals_at_a_fixed_service_wait_as_pollaczek_and_khinchine_say(busy: float) -> None:
    outcome = simulate(PLAIN, serving(), Arrivals(busy * 100), requests=25_000)
    # Of M/D/1: the mean wait is busy / (2 (1 - busy)) services.
    assert outcome.rate == pytest.approx(busy * 100, rel=0.03)
    assert outcome.device_busy == pytest.approx(busy, rel=0.03)
    expected = 10 * (1 + busy / (2 * (1 - busy)))
    assert outcome.mean_ms == pytest.approx(expected, rel=0.06)


def test_exponential_services_wait_as_of_two_servers_at_one_queue() -> None:
    steps = [(1 - math.exp(-x / 40), x / 40) for x in range(400)]
    spread = Spread((*((share, factor) for share, factor in steps), (1.0, 12.0)))
    service = Service(0.0, 0.0, 0.0, 10 / spread.mean, spread)
    outcome = simulate(service, serving(workers=2, devices=2), Arrivals(140), requests=30_000)
    # M/M/2 at 0.7: Erlang's C is 2 r^2 / (1 + r) with r the share, and the mean wait C x service / (2 (1 - r)).
    share = 0.7
    waits = 2 * share**2 / (1 + share) * 10 / (2 * (1 - share))
    assert outcome.mean_ms == pytest.approx(10 + waits, rel=0.08)


def test_a_closed_loop_is_arithmetic() -> None:
    outcome = simulate(PLAIN, serving(), Users(4), requests=500)
    assert (outcome.rate, outcome.p50_ms, outcome.p99_ms) == pytest.approx((100, 40, 40))
    half = simulate(Service(20.0, 0.0, 0.0, 10.0), serving(), Users(1), requests=500)
    assert (half.rate, half.p50_ms) == pytest.approx((1000 / 30, 30))


def test_workers_of_one_device_share_it_and_of_two_do_not() -> None:
    assert simulate(PLAIN, serving(workers=2, devices=1), Users(8), 2000).rate == pytest.approx(100, rel=0.01)
    assert simulate(PLAIN, serving(workers=2, devices=2), Users(8), 2000).rate == pytest.approx(200, rel=0.01)


def test_batches_fill_from_the_queue() -> None:
    service = Service(0.0, 0.0, 20.0, 5.0)
    outcome = simulate(service, serving(batch=8), Users(16))
    assert outcome.batch_mean == pytest.approx(8, rel=0.01)
    assert outcome.rate == pytest.approx(8000 / 60, rel=0.01)


def test_a_lone_request_waits_out_the_delay_where_batches_are_larger_than_one() -> None:
    assert simulate(PLAIN, serving(batch=8, delay=100), Users(1), 500).p50_ms == pytest.approx(110)
    assert simulate(PLAIN, serving(batch=1, delay=100), Users(1), 500).p50_ms == pytest.approx(10)


def test_while_one_worker_gathers_no_other_takes_a_request() -> None:
    # Two users, two idle workers: both requests come into one batch, and the second worker stays idle.
    outcome = simulate(Service(0.0, 0.0, 10.0, 0.001), serving(workers=2, devices=2, batch=4, delay=50), Users(2))
    assert outcome.batch_mean == pytest.approx(2, rel=0.05)


def test_a_full_queue_refuses_and_what_is_taken_waits_no_longer_than_it() -> None:
    outcome = simulate(PLAIN, serving(queue=4), Arrivals(200))
    assert outcome.refused == pytest.approx(0.5, abs=0.04)
    assert outcome.rate == pytest.approx(100, rel=0.03)
    assert outcome.p99_ms <= 10 * (4 + 2)


def test_decoding_takes_the_cores() -> None:
    # Two cores, 10 ms an image on one, and a device that takes nearly nothing: 200 a second.
    outcome = simulate(Service(0.0, 10.0, 0.0, 0.01), Serving(4, 4, 1, 1000, 4, cores=2), Users(40))
    assert outcome.rate == pytest.approx(200, rel=0.03)
    assert outcome.cores_busy == pytest.approx(1, abs=0.03)


def test_cameras_send_what_they_send() -> None:
    outcome = simulate(PLAIN, serving(workers=2, devices=2), Cameras(4.5, 30))
    assert outcome.rate == pytest.approx(135, rel=0.02)
    # Evenly spread frames wait less than random ones.
    assert outcome.p99_ms < simulate(PLAIN, serving(workers=2, devices=2), Arrivals(135)).p99_ms


def test_equal_arguments_give_equal_outcomes() -> None:
    first, second = (simulate(PLAIN, serving(), Arrivals(60), 1000) for _ in range(2))
    assert first == second


def test_a_spread_is_drawn_as_it_is_drawn_up() -> None:
    spread = Spread(((0.0, 1.0), (0.5, 1.0), (0.9, 2.0), (1.0, 4.0)))
    assert [spread.draw(share) for share in (0.0, 0.4, 0.7, 0.9, 0.95)] == pytest.approx([1, 1, 1.5, 2, 3])
    assert spread.mean == pytest.approx(0.5 + 0.4 * 1.5 + 0.1 * 3)
    with pytest.raises(ValueError, match="rises"):
        Spread(((0.0, 2.0), (1.0, 1.0)))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a multiple"):
        serving(workers=3, devices=2)
    with pytest.raises(ValueError, match="time on the device"):
        Service(1.0, 1.0, 0.0, 0.0)
