"""Every rule of a soak finds its breach, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.soak.ask import Outcome
from tests.soak.disturb import Window, schedule
from tests.soak.mix import SHARES
from tests.soak.verdict import Run, excused, judge, judged
from tests.soak.watch import Held, Sample, deaths

HELD = Held(rss=400.0, files=50, threads=10)


def well(seconds: int = 1800) -> Run:
    """Nothing went wrong: all kinds were answered, one worker was killed by us at 100 s."""
    kinds = list(SHARES)
    outcomes = [
        Outcome(kind, float(at), at + 0.1, "gone" if kind == "client gone" else "right")
        for at in range(0, seconds, 5)
        for kind in kinds
    ]
    samples = [Sample(float(at), HELD, {1 if at < 100 else 3: HELD, 2: HELD}) for at in range(0, seconds, 2)]
    heap = [(float(at), 60.0) for at in range(0, seconds, 60)]
    return Run(0.0, float(seconds), 2.2, outcomes, samples, heap, [Window("kill", 99.0, 105.0)], 200)


def ended(run: Run, *more: Outcome) -> Run:
    return dataclasses.replace(run, outcomes=[*run.outcomes, *more])


def test_nothing_wrong_is_no_breach() -> None:
    found = judge(well())
    assert found.breaches == []
    assert (found.restarts, found.died) == (1, [])
    assert set(found.counts) == set(SHARES)
    assert len(found.minutes) == 30
    assert found.minutes[0].p99_ms == pytest.approx(100)
    assert found.minutes[1].done == ("kill",)
    assert len(found.trends) == 9
    assert all(trend and trend.noise for trend in found.trends.values())


@pytest.mark.parametrize(
    ("end", "breach"),
    [
        ("wrong", "1 wrong answers"),
        ("undocumented", "1 undocumented answers"),
        ("hung", "1 requests that hung"),
        ("worker_died", "1 requests turned away"),
        ("queue_full", "1 requests turned away"),
        ("deadline", "1 requests turned away"),
        ("unreachable", "1 requests turned away"),
    ],
)
def test_one_request_that_ends_badly_is_a_breach(end: str, breach: str) -> None:
    found = judge(ended(well(), Outcome("raw", 300.0, 301.0, end, "a photograph: expected 200")))
    assert len(found.breaches) == 1
    assert found.breaches[0].startswith(breach)
    assert found.said == [f"raw: {end}: a photograph: expected 200"]


@pytest.mark.parametrize(
    ("end", "window", "is_excused"),
    [
        ("worker_died", "kill", True),
        ("queue_full", "kill", True),
        ("worker_died", "scale", True),
        ("queue_full", "burst", True),
        ("deadline", "burst", True),
        ("worker_died", "burst", False),
        ("unreachable", "burst", False),
        ("queue_full", "renew", False),
        ("worker_died", "renew", False),
        ("out_of_memory", "kill", False),
    ],
)
def test_what_a_disturbance_explains(end: str, window: str, is_excused: bool) -> None:
    windows = [Window(window, 10.0, 20.0)]
    assert excused(Outcome("raw", 19.0, 21.0, end), windows) == is_excused
    assert excused(Outcome("raw", 9.0, 9.5, end), windows) is False
    assert excused(Outcome("raw", 20.5, 21.0, end), windows) is False


def test_no_disturbance_explains_a_wrong_answer() -> None:
    assert judge(ended(well(), Outcome("grpc", 100.0, 101.0, "wrong"))).breaches == ["1 wrong answers: expected 0"]


def growing(run: Run, per_hour: float, of: str, what: str) -> Run:
    def more(sample: Sample) -> Sample:
        def held(value: Held) -> Held:
            return dataclasses.replace(value, **{what: getattr(value, what) + per_hour * sample.at / 3600})

        if of == "front":
            return dataclasses.replace(sample, front=held(sample.front))
        return dataclasses.replace(sample, workers={pid: held(each) for pid, each in sample.workers.items()})

    return dataclasses.replace(run, samples=[more(each) for each in run.samples])


@pytest.mark.parametrize(
    ("of", "what"),
    [("worker", "rss"), ("worker", "files"), ("worker", "threads"), ("front", "files"), ("front", "threads")],
)
def test_what_grows_is_a_breach(of: str, what: str) -> None:
    found = judge(growing(well(), 300, of, what))
    assert found.breaches
    assert all(f", {what} grows" in breach for breach in found.breaches)


def test_what_grows_for_a_few_minutes_warms_up() -> None:
    found = judge(growing(well(900), 300, "worker", "rss"))
    assert found.breaches == []
    memory = [found.trends[f"worker {number}, rss"] for number in (1, 2)]
    assert all(trend and not trend.noise for trend in memory)


def test_a_heap_that_grows_is_a_breach_and_memory_that_java_merely_took_is_none() -> None:
    run = well()
    assert judge(growing(run, 2000, "front", "rss")).breaches == []
    leak = dataclasses.replace(run, heap=[(at, size + at) for at, size in run.heap])
    [breach] = judge(leak).breaches
    assert breach.startswith("front end, live heap grows")
    # Without jcmd there is nothing better than the memory itself.
    blind = dataclasses.replace(growing(run, 2000, "front", "rss"), heap=[])
    assert [each[:25] for each in judge(blind).breaches] == ["front end, rss grows: +20"]


def test_a_worker_that_ended_by_itself_is_a_breach() -> None:
    run = well()
    # Number 2 gives way to number 4 at 300 s, where nothing was done to it.
    samples = [
        Sample(each.at, each.front, {(4 if pid == 2 else pid): held for pid, held in each.workers.items()})
        if each.at >= 300
        else each
        for each in run.samples
    ]
    found = judge(dataclasses.replace(run, samples=samples))
    assert found.died == [2]
    assert "1 workers that ended by themselves: expected 0" in found.breaches


def test_a_front_end_that_ended_is_a_breach() -> None:
    assert judge(dataclasses.replace(well(), front_ended=412.0)).breaches == ["the front end ended after 412 s"]


def test_a_server_that_did_not_become_well_is_a_breach() -> None:
    run = well()
    windows = [*run.windows, Window("scale", 150.0, failed="TimeoutError()")]
    assert "scale after 150 s: TimeoutError()" in judge(dataclasses.replace(run, windows=windows)).breaches


def test_what_was_never_answered_is_a_breach() -> None:
    run = well()
    found = judge(dataclasses.replace(run, outcomes=[each for each in run.outcomes if each.kind != "options, grpc"]))
    assert found.breaches == ["no options, grpc was answered"]


def test_many_open_files_are_a_breach() -> None:
    run = well()
    samples = [dataclasses.replace(each, front=dataclasses.replace(HELD, files=700)) for each in run.samples]
    assert judge(dataclasses.replace(run, samples=samples)).breaches == [
        "the front end had 700 files open: expected at most 600"
    ]


def test_trends_are_of_one_life_without_its_beginning() -> None:
    # The life begins with the last third's beginning, or with the last worker that was made anew.
    assert judged(well()) == pytest.approx(600 + 1200 / 4)
    late = dataclasses.replace(well(), windows=[Window("scale", 280.0, 800.0)])
    assert judged(late) == pytest.approx(800 + 1000 / 4)


def kinds(seconds: float) -> Sequence[str]:
    return [event.kind for event in schedule(seconds)]


def test_workers_end_in_the_first_third_alone() -> None:
    for seconds in (60.0, 240.0, 1800.0, 7200.0):
        events = schedule(seconds)
        assert {event.kind for event in events} >= {"kill", "burst", "renew"}
        assert all(event.at < seconds / 3 for event in events if event.kind in ("kill", "scale"))
        assert all(0 < event.at < 0.9 * seconds for event in events)
    assert kinds(240).count("scale") == 1
    assert kinds(1800).count("kill") == 3
    assert kinds(1800).count("burst") == 9


def test_deaths_between_samples() -> None:
    samples = [
        Sample(0.0, HELD, {1: HELD, 2: HELD}),
        Sample(2.0, HELD, {1: HELD}),
        Sample(4.0, HELD, {1: HELD, 3: HELD}),
    ]
    assert deaths(samples, []) == ([2], 1)
    assert deaths(samples, [Window("kill", 1.0, 3.0)]) == ([], 1)
    assert deaths(samples, [Window("burst", 1.0, 3.0)]) == ([2], 1)
