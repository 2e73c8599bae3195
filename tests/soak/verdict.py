"""What a soak found: counts, latencies, trends, and every rule that was broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.soak.ask import AWAY, HUNG, UNDOCUMENTED, WRONG, Outcome
from tests.soak.disturb import SHARE, WORKER, Window
from tests.soak.mix import PLAIN, SHARES
from tests.soak.trend import Trend, fit, floors
from tests.soak.watch import Held, Sample, deaths

#: By so much of its mean may the floor of a process rise over the judged time, though it is no noise.
ALLOWED = 0.02
#: Of one life, what is left out before it is judged.
WARM_UP = 0.25
#: s that have to be left: until every kind of picture has come a worker's memory rises by itself.
LEAST_S = 600.0
#: Kept open beside the callers' connections: logs, jars, sockets to the workers.
FILES = 400
_SHOWN = 20
_WORKER_AWAY = ("worker_died", "queue_full", "deadline", "unreachable")
#: What is done to the server -> how a request may end meanwhile.
_EXCUSES = {"kill": _WORKER_AWAY, "scale": _WORKER_AWAY, "burst": ("queue_full", "deadline")}


@dataclass(frozen=True)
class Run:
    """All that a soak saw.

    Attributes:
        began: on the monotonic clock, s, as all times.
        ended: likewise.
        rate: requests a second.
        outcomes: of all requests.
        samples: of the processes.
        heap: of the front end, after full collections, MB.
        windows: of what was done to the server.
        connections: of callers at once, at most.
        corpus: hostile images that there are; they are sent one after the other.
        front_ended: when the front end was found to be gone; None where it lived.
    """

    began: float
    ended: float
    rate: float
    outcomes: Sequence[Outcome]
    samples: Sequence[Sample]
    heap: Sequence[tuple[float, float]]
    windows: Sequence[Window]
    connections: int = 0
    corpus: int = 0
    front_ended: float | None = None


@dataclass(frozen=True)
class Minute:
    """Plain good photographs of one minute: how many were answered, ms, and what was done meanwhile."""

    minute: int
    right: int
    p50_ms: float
    p99_ms: float
    done: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What it comes to.

    Attributes:
        counts: kind to end to number.
        minutes: in order.
        trends: what to its line; None where there were too few samples.
        restarts: workers that began anew.
        died: pids of workers that ended by themselves.
        breaches: of rules, in words; empty where none was broken.
        said: of requests that broke one, the first few.
    """

    counts: dict[str, dict[str, int]]
    minutes: list[Minute]
    trends: dict[str, Trend | None]
    restarts: int
    died: list[int]
    breaches: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def judge(run: Run) -> Verdict:
    """All rules, applied to a run."""
    died, restarts = deaths(run.samples, run.windows)
    counts: dict[str, Counter[str]] = {}
    for outcome in run.outcomes:
        counts.setdefault(outcome.kind, Counter())[outcome.end] += 1
    bad = [outcome for outcome in run.outcomes if outcome.end in (WRONG, UNDOCUMENTED, HUNG)]
    lost = [outcome for outcome in run.outcomes if outcome.end in AWAY and not excused(outcome, run.windows)]
    trends = _trends(run)
    breaches = [
        *_over_zero("wrong answers", [each for each in bad if each.end == WRONG]),
        *_over_zero("undocumented answers", [each for each in bad if each.end == UNDOCUMENTED]),
        *_over_zero("requests that hung", [each for each in bad if each.end == HUNG]),
        *_over_zero("requests turned away while nothing was done to the server", lost),
        *_over_zero("workers that ended by themselves", died),
        *([] if run.front_ended is None else [f"the front end ended after {run.front_ended - run.began:.0f} s"]),
        *(f"{each.kind} after {each.began - run.began:.0f} s: {each.failed}" for each in run.windows if each.failed),
        *(f"{name} grows: {_shown(trend)}" for name, trend in trends.items() if trend and leaks(trend)),
        *_files(run),
        *_unanswered(counts),
    ]
    said = [f"{each.kind}: {each.end}: {each.said}" for each in [*bad, *lost][:_SHOWN]]
    plain = {kind: dict(ends) for kind, ends in sorted(counts.items())}
    return Verdict(plain, minutes(run), trends, restarts, died, breaches, said)


def leaks(trend: Trend) -> bool:
    """Whether it was looked at for long enough, and grows."""
    return trend.seconds >= LEAST_S and trend.grows(ALLOWED)


def excused(outcome: Outcome, windows: Sequence[Window]) -> bool:
    """Whether something was done to the server while a request was under way, for which it may be turned away."""
    return any(
        outcome.end in _EXCUSES.get(window.kind, ()) and window.meets(outcome.due, outcome.ended) for window in windows
    )


def minutes(run: Run) -> list[Minute]:
    """Of plain good photographs that came right, by the minute they were due in."""
    found: dict[int, list[float]] = {}
    for outcome in run.outcomes:
        if outcome.kind in PLAIN and outcome.end == "right":
            found.setdefault(int((outcome.due - run.began) // 60), []).append((outcome.ended - outcome.due) * 1000)
    rows = []
    for minute, taken in sorted(found.items()):
        first = run.began + 60 * minute
        done = tuple(window.kind for window in run.windows if window.meets(first, first + 60))
        p50, p99 = np.percentile(taken, (50, 99))
        rows.append(Minute(minute, len(taken), float(p50), float(p99), done))
    return rows


def judged(run: Run) -> float:
    """From when on trends are taken: a quarter into the last life of the workers."""
    workers = [window.ended for window in run.windows if window.kind in WORKER]
    life = min(run.ended, max([run.began + (run.ended - run.began) * SHARE, *workers]))
    return life + (run.ended - life) * WARM_UP


def _trends(run: Run) -> dict[str, Trend | None]:
    since = judged(run)
    late = [sample for sample in run.samples if sample.at >= since]
    lives = set.intersection(*(set(sample.workers) for sample in late)) if late else set()
    trends: dict[str, Trend | None] = {}

    def add(name: str, of: Callable[[Sample], Held]) -> None:
        for what in ("rss", "files", "threads"):
            trends[f"{name}, {what}"] = fit(floors([(each.at, float(getattr(of(each), what))) for each in late]))

    for number, pid in enumerate(sorted(lives)):
        add(f"worker {number + 1}", lambda sample, pid=pid: sample.workers[pid])  # type: ignore[misc]
    add("front end", lambda sample: sample.front)
    # Java takes what it may of its heap before it cleans it: only what lives after that tells of a leak.
    resident = trends.pop("front end, rss")
    trends["front end, live heap"] = fit([each for each in run.heap if each[0] >= since])
    if resident and trends["front end, live heap"] is None:
        trends["front end, rss"] = resident
    return trends


def _files(run: Run) -> list[str]:
    most = max((sample.front.files for sample in run.samples), default=0)
    allowed = run.connections + FILES
    return [f"the front end had {most} files open: expected at most {allowed}"] if most > allowed else []


def _unanswered(counts: Mapping[str, Counter[str]]) -> list[str]:
    """What nothing was learned of: rules about it could not have been broken."""
    kinds = [kind for kind in SHARES if kind != "client gone"]
    return [f"no {kind} was answered" for kind in kinds if kind not in counts or not counts[kind]["right"]]


def _over_zero(what: str, found: Sequence[object]) -> list[str]:
    return [f"{len(found)} {what}: expected 0"] if found else []


def _shown(trend: Trend) -> str:
    return f"{trend.per_hour:+.1f} ± {trend.error:.1f} an hour, mean {trend.mean:.1f}"
