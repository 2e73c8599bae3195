"""The loop round the decision: what is done, said and waited through. A real server's is tests/serving's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from clients.autoscale import autoscale, totals_of
from clients.errors import BadAnswer, ClientError, NotFound, ServerFault, Unreachable, UsageError
from clients.scaler import Observation, Policy

POLICY = Policy(1, 4, goal_queue_ms=100, up_after_s=2, down_after_s=4)


def seen(at: int, workers: int = 1, wait_s: float = 0.0) -> Observation:
    """Ten requests a second, each of which waited so long."""
    return Observation(float(at), workers, workers, workers, 0, 10.0 * at, 10.0 * at * wait_s, 0.1 * at)


class FakeObserver:
    """Says what it was given, one a look; an exception is raised."""

    def __init__(self, outcomes: Iterable[Observation | ClientError]) -> None:
        self._outcomes: Iterator[Observation | ClientError] = iter(outcomes)

    def observe(self) -> Observation:
        outcome = next(self._outcomes)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


def followed(
    outcomes: list[Observation | ClientError],
    scale: Callable[[int], None] = lambda workers: None,
    policy: Policy = POLICY,
    revised: Callable[[Policy], Policy] = lambda policy: policy,
) -> list[str]:
    said: list[str] = []
    turns = iter([False] * (len(outcomes) - 1) + [True])
    autoscale(FakeObserver(outcomes), scale, policy, said.append, lambda _: next(turns), 1.0, revised)  # type: ignore[arg-type]
    return said


def test_a_change_is_done_and_said() -> None:
    asked: list[int] = []
    said = followed([seen(at, wait_s=0.5) for at in range(3)], asked.append)
    assert asked == [2]
    assert said == ["1 -> 2 workers: queue 500 ms, use 10%: over the goal"]


@pytest.mark.parametrize(
    "trouble", [Unreachable("nobody there"), ServerFault("Internal Server Error", status=500)], ids=["away", "fault"]
)
def test_trouble_of_the_server_is_said_once_and_waited_through(trouble: ClientError) -> None:
    asked: list[int] = []
    # A server that started anew meanwhile, as its totals tell.
    outcomes: list[Observation | ClientError] = [seen(20), trouble, trouble]
    outcomes += [replace(seen(at, wait_s=0.5), at=25.0 + at) for at in range(3)]
    said = followed(outcomes, asked.append)
    assert said == [
        f"waiting for the server: {trouble.message}",
        "the server answers again",
        "1 -> 2 workers: queue 500 ms, use 10%: over the goal",
    ]
    assert asked == [2]


def test_a_fault_of_scaling_is_said_and_tried_again() -> None:
    asked: list[int] = []

    def scale(workers: int) -> None:
        asked.append(workers)
        if len(asked) == 1:
            raise ServerFault("Failed to start workers", status=500)

    said = followed([seen(at, wait_s=0.5) for at in range(8)], scale)
    assert asked[:2] == [2, 2]
    assert said[:3] == [
        "waiting for the server: Failed to start workers",
        "the server answers again",
        "1 -> 2 workers: queue 500 ms, use 10%: over the goal",
    ]


def test_no_room_for_one_more_is_said_once_and_nothing_else() -> None:
    def scale(workers: int) -> None:
        raise UsageError("one more needs 900 MB, of which 100 are free")

    said = followed([seen(at, wait_s=0.5) for at in range(12)], scale)
    assert said == ["1 workers stay: one more needs 900 MB, of which 100 are free"]


def test_what_the_server_refuses_ends_it() -> None:
    with pytest.raises(NotFound):
        followed([seen(0), NotFound("no model")])
    with pytest.raises(ServerFault):
        followed([ServerFault("at the begin")])


def test_another_one_that_scales_is_said() -> None:
    [line] = followed([seen(0), seen(1), seen(2, workers=3), seen(3, workers=3)])
    assert line.startswith("1 -> 3 workers, not by this command")
    assert "run one scaler a model" in line


def test_its_own_changes_are_not_anothers() -> None:
    outcomes = [seen(at, wait_s=0.5) for at in range(3)] + [seen(3, workers=2)]
    assert [line for line in followed([*outcomes]) if "not by this command" in line] == []


def test_a_change_that_was_done_though_its_answer_was_lost_is_not_anothers() -> None:
    def scale(workers: int) -> None:
        raise Unreachable("no answer")

    said = followed([*(seen(at, wait_s=0.5) for at in range(3)), seen(3, workers=2)], scale)
    assert said == ["waiting for the server: no answer", "the server answers again"]


def test_a_policy_may_change_on_the_way() -> None:
    asked: list[int] = []
    given = []

    def revised(policy: Policy) -> Policy:
        given.append(policy.goal_queue_ms)
        return Policy(1, 4, goal_queue_ms=2 * policy.goal_queue_ms, up_after_s=2, down_after_s=4)

    followed([seen(at, wait_s=0.3) for at in range(6)], asked.append, revised=revised)
    assert given == [100, 200, 400, 800, 1600]
    assert asked == [], "over the first goal, under those that came"


@pytest.mark.parametrize("text", ["many", "NaN", "+Inf", "-1", "1,5"])
def test_totals_that_are_no_numbers_are_said_by_name(text: str) -> None:
    names = ("ts_inference_requests_total", "ts_queue_latency_microseconds", "mogface_batch_seconds_sum")
    lines = "".join(f"# TYPE {name} counter\n" for name in names)
    lines += f'{names[0]}{{model_name="a",model_version="default",hostname="h",}} {text}\n'
    with pytest.raises(
        BadAnswer, match=re.escape(f"{names[0]} of the server's metrics is '{text}': expected a number")
    ):
        totals_of(lines, "a", {"default"})
    assert totals_of(lines, "b", {"default"})[names[0]] == 0, "another model's are not looked at"
