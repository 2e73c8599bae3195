"""One fault on one server under load, and what its callers saw."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.recovery.faults import Act
from tests.recovery.load import Load, NotWell, Outcome
from tests.recovery.subjects import Subject

#: Right answers one after the other, by which all is well again.
_WELL = 12


@dataclass(frozen=True)
class Row:
    """What callers saw of one fault.

    Attributes:
        subject: the server's name.
        fault: its name.
        right: answers in the window.
        wrong: likewise.
        failed: the load's requests that failed, by type, until all was well.
        sender: what those who sent the fault were answered.
        silence_s: the longest time without a right answer.
        recovery_s: from the fault to the first right answer after the last failure; 0 where nothing failed, None where
            the server did not become well again by itself.
        workers_lost: workers that ended.
    """

    subject: str
    fault: str
    right: int
    wrong: int
    failed: dict[str, int]
    sender: dict[str, int]
    silence_s: float
    recovery_s: float | None
    workers_lost: int

    def __str__(self) -> str:
        seen = " ".join(f"{count} {kind}" for kind, count in self.failed.items()) or "none"
        well = "never well" if self.recovery_s is None else f"well after {self.recovery_s:.2f} s"
        return (
            f"{self.subject}, {self.fault}: {self.right} right, {self.wrong} wrong, failed: {seen}, "
            f"{self.silence_s:.2f} s silent, {well}, sender: {self.sender or 'none'}"
        )


def row(
    subject: str,
    fault: str,
    outcomes: Sequence[Outcome],
    began: float,
    window_s: float = 0.0,
    sender: Counter[str] | None = None,
    workers_lost: int = 0,
    ended: float | None = None,
) -> Row:
    """What outcomes come to.

    Args:
        subject: the server's name.
        fault: its name.
        outcomes: of the load since ``began``, in the order of their ends.
        began: when the fault began, on the clock of the outcomes.
        window_s: right answers are counted for so long; 0 counts all.
        sender: see Row.
        workers_lost: likewise.
        ended: when it was given up, for a server that did not become well; None for one that did.
    """
    right = [outcome.ended for outcome in outcomes if outcome.kind == "right"]
    bad = [outcome.ended for outcome in outcomes if outcome.kind != "right"]
    failed = Counter(outcome.kind for outcome in outcomes if outcome.kind not in ("right", "wrong"))
    until = began + window_s if window_s else float("inf")
    well = next((at for at in right if at > bad[-1]), None) if bad else began
    if ended is not None:
        well = None
    times = [began, *right, *([] if ended is None else [ended])]
    return Row(
        subject=subject,
        fault=fault,
        right=sum(ended <= until for ended in right),
        wrong=sum(outcome.kind == "wrong" for outcome in outcomes),
        failed=dict(failed),
        sender=dict(sender or {}),
        silence_s=max((after - before for before, after in itertools.pairwise(times)), default=0.0),
        recovery_s=None if well is None else well - began,
        workers_lost=workers_lost,
    )


def run(subject: Subject, expected: list[object], fault: str, act: Act, window_s: float = 0.0) -> Row:
    """Do something to the server under load, and wait until all is well again.

    Args:
        subject: the server.
        expected: see Load.
        fault: its name.
        act: that does it.
        window_s: the load goes on at least so long, and right answers are counted in it.

    A server that does not become well by itself is started again afterwards.
    """
    sender, given_up = Counter[str](), None
    with Load(subject, expected) as load:
        before = set(subject.pids)
        first, began = len(load.outcomes), time.monotonic()
        try:
            sender = act(load)
            load.more(_WELL)
            time.sleep(max(0.0, began + window_s - time.monotonic()))
        except NotWell:
            given_up = time.monotonic()
        lost = len(before - set(subject.pids))
        outcomes = load.outcomes[first:]
    if given_up is not None:
        subject.server.stop()
        subject.server.start()
        subject.server.wait([subject.model])
    return row(subject.name, fault, outcomes, began, window_s, sender, lost, given_up)
