"""What a load run measured: one sample a request, one step a level of load, and the figures made of them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: The outcome of a request that was answered as it should be.
OK = "ok"
#: As answers give them, in ms.
STAGES = ("decode", "preprocess", "network", "postprocess", "landmarks")
_COLUMNS = ("step", "at_s", "latency_ms", "outcome", "batch_size", *(f"{stage}_ms" for stage in STAGES), "picture")


@dataclass(frozen=True)
class Sample:
    """One request.

    Attributes:
        at_s: when it was sent (closed loop) or should have been (open arrival), since its step began.
        latency_ms: from then to its answer, so that a late start counts.
        outcome: ``ok``, the error's type, or ``wrong_answer``.
        picture: which was sent.
        batch_size: requests that ran with it; 0 where the answer does not say.
        timing_ms: of its stages; empty where the answer does not say.
    """

    at_s: float
    latency_ms: float
    outcome: str
    picture: str
    batch_size: int = 0
    timing_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One level of load.

    Attributes:
        kind: ``closed``, where each of ``level`` users sends when its answer is there, or ``open``, where ``level``
            requests a second arrive whatever the server does.
        level: users, or requests a second.
        seconds: from the first request to the last answer.
        samples: of every request.
        left: requests that had no answer when the step was ended by force; a run with any is no success.
    """

    kind: str
    level: float
    seconds: float
    samples: Sequence[Sample]
    left: int = 0

    def summary(self) -> dict[str, Any]:
        """Its figures; times in ms, rates in answers a second.

        The rate is completed answers over wall time. The sum of latencies is not a duration where requests overlap.
        """
        good = [sample for sample in self.samples if sample.outcome == OK]
        told = [sample for sample in good if sample.batch_size]
        failures = Counter(sample.outcome for sample in self.samples if sample.outcome != OK)
        if self.left:
            failures["unanswered"] = self.left
        latencies = [sample.latency_ms for sample in good]
        p50, p95, p99 = np.percentile(latencies, [50, 95, 99]).tolist() if latencies else [None] * 3
        return {
            "kind": self.kind,
            "level": self.level,
            "seconds": round(self.seconds, 3),
            "requests": len(self.samples) + self.left,
            "answered": len(good),
            "failures": dict(sorted(failures.items())),
            "rate": round(len(good) / self.seconds, 3),
            "p50_ms": _rounded(p50),
            "p95_ms": _rounded(p95),
            "p99_ms": _rounded(p99),
            "max_ms": _rounded(max(latencies, default=None)),
            "batch_mean": _rounded(np.mean([sample.batch_size for sample in told]).item() if told else None),
            "batch_sizes": {str(size): count for size, count in sorted(Counter(s.batch_size for s in told).items())},
            "stages_ms": {
                stage: _rounded(np.mean([sample.timing_ms.get(stage, 0.0) for sample in told]).item())
                for stage in STAGES
                if told
            },
        }


def as_csv(steps: Sequence[Step]) -> str:
    """Every sample, one a row, under a heading."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for number, step in enumerate(steps):
        for sample in step.samples:
            stages = [sample.timing_ms.get(stage, "") for stage in STAGES]
            start = [number, f"{sample.at_s:.4f}", f"{sample.latency_ms:.2f}", sample.outcome, sample.batch_size or ""]
            writer.writerow([*start, *stages, sample.picture])
    return text.getvalue()


@dataclass(frozen=True)
class Limits:
    """What a run must keep to; None is no limit.

    Attributes:
        p99_ms: of every step.
        rate: answers a second that the best step must reach.
        failures: share of requests that may go without a right answer, of every step.
    """

    p99_ms: float | None = None
    rate: float | None = None
    failures: float = 0.0

    def broken(self, summaries: Sequence[Mapping[str, Any]]) -> list[str]:
        """Every limit that was passed, as a sentence with both numbers."""
        found = []
        for summary in summaries:
            where = f"{summary['kind']} {summary['level']:g}"
            failed = sum(summary["failures"].values())
            share = failed / max(1, summary["requests"])
            if share > self.failures or not summary["answered"]:
                kinds = ", ".join(f"{count} {kind}" for kind, count in summary["failures"].items()) or "no answer"
                found.append(f"{where}: {share:.2%} failed ({kinds}), the limit is {self.failures:.2%}")
            if self.p99_ms is not None and summary["answered"] and summary["p99_ms"] > self.p99_ms:
                found.append(f"{where}: p99 is {summary['p99_ms']:.0f} ms, the limit is {self.p99_ms:g} ms")
        best = max((summary["rate"] for summary in summaries), default=0.0)
        if self.rate is not None and best < self.rate:
            found.append(f"{best:.1f} answers a second at best, the least allowed is {self.rate:g}")
        return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
