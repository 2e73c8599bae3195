from __future__ import annotations

import numpy as np
import pytest

from tests.soak.trend import fit, floors

HOUR = 3600.0


def series(
    per_hour: float, noise: float, seconds: float = 900, every: float = 2, seed: int = 0
) -> list[tuple[float, float]]:
    """400 MB that grow, and pictures in work on top of it now and then."""
    rng = np.random.default_rng(seed)
    at = np.arange(0, seconds, every)
    work = rng.exponential(noise, len(at)) * (rng.random(len(at)) < 0.8)
    return [(float(t), float(400 + per_hour * t / HOUR + w)) for t, w in zip(at, work, strict=True)]


def test_a_line_is_found_as_it_is() -> None:
    trend = fit([(0.0, 10.0), (360.0, 11.0), (720.0, 12.0), *((360.0 * n, 10.0 + n) for n in range(3, 9))])
    assert trend is not None
    assert trend.per_hour == pytest.approx(10.0)
    assert trend.error == pytest.approx(0.0, abs=1e-9)
    assert trend.gain == pytest.approx(8.0)
    assert not trend.noise


def test_slope_and_error_are_the_textbooks_where_neighbours_do_not_resemble_each_other() -> None:
    """Against NumPy's own fit and covariance."""
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 2.0, 6.0, 1.0, 5.0, 2.0]
    hours = np.arange(10) / 10
    trend = fit([(float(h * HOUR), v) for h, v in zip(hours, values, strict=True)])
    [slope, _], covariance = np.polyfit(hours, values, 1, cov=True)
    assert trend is not None
    assert trend.per_hour == pytest.approx(slope)
    assert trend.error == pytest.approx(covariance[0, 0] ** 0.5)


def test_what_drifts_is_less_sure_than_what_jumps() -> None:
    """The same residuals, once in an order in which neighbours resemble each other."""
    jumps = [1.0, -1.0] * 10
    drifts = sorted(jumps[:10]) + sorted(jumps[10:], reverse=True)
    errors = []
    for residuals in (jumps, drifts):
        trend = fit([(float(n), 100 + r) for n, r in enumerate(residuals)])
        assert trend is not None
        errors.append(trend.error)
    assert errors[1] > 2 * errors[0]


@pytest.mark.parametrize("seed", range(8))
def test_pictures_in_work_are_no_leak(seed: int) -> None:
    trend = fit(floors(series(0, 60, seed=seed)))
    assert trend is not None
    assert not trend.grows(0.02)


@pytest.mark.parametrize("seed", range(8))
def test_a_leak_of_a_megabyte_a_minute_is_one(seed: int) -> None:
    trend = fit(floors(series(60, 60, seed=seed)))
    assert trend is not None
    assert trend.grows(0.02)
    assert trend.per_hour == pytest.approx(60, abs=10)


def test_what_falls_or_hardly_rises_does_not_grow() -> None:
    for per_hour in (-60.0, 5.0):
        trend = fit(floors(series(per_hour, 0)))
        assert trend is not None
        assert not trend.noise
        assert not trend.grows(0.02)


def test_few_samples_say_nothing() -> None:
    assert fit([(0.0, 1.0)] * 3) is None
    assert floors([]) == []


def test_floors_are_the_least_of_each_part() -> None:
    assert floors([(0.0, 5.0), (1.0, 4.0), (2.0, 9.0), (3.0, 8.0)], 2) == [(1.0, 4.0), (3.0, 8.0)]
