from __future__ import annotations

import threading
import time

import pytest

from load_tests.peers.loops import Load, run

PICTURES = [b"a", b"b", b"c"]


class Counted:
    """A fake detector that counts who is inside."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.lock = seconds, threading.Lock()
        self.inside = self.most = 0
        self.seen: list[bytes] = []

    def __call__(self, photograph: bytes) -> bytes:
        with self.lock:
            self.seen.append(photograph)
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        with self.lock:
            self.inside -= 1
        return photograph * 2


def test_a_closed_loop_has_as_many_under_way_as_clients() -> None:
    detect = Counted(0.3)
    timed = run(detect, PICTURES, Load(clients=4, answers=8))
    assert len(timed) == len(detect.seen) == 12
    assert detect.most == 4
    assert sorted(detect.seen) == sorted(PICTURES * 4)
    assert all(each.body == PICTURES[each.picture].decode() * 2 for each in timed)
    assert [each.sent_s for each in timed] == sorted(each.sent_s for each in timed)
    # Each slept 300 ms; the last was sent when two had been answered to its client.
    assert all(each.latency_ms >= 290 for each in timed)
    assert timed[-1].sent_s >= 0.58


def test_arrivals_do_not_wait_for_answers() -> None:
    detect = Counted(0.5)
    timed = run(detect, PICTURES, Load(rate=100.0, answers=10), seed=1)
    assert len(timed) == 10
    # All ten were due within a second at the slowest; a closed loop would have taken five.
    assert detect.most > 1
    assert timed[-1].sent_s < 1
    assert timed[0].sent_s > 0


def test_the_moments_of_arrival_are_the_seeds() -> None:
    first, again, other = (run(Counted(), PICTURES, Load(rate=500.0, answers=5), seed) for seed in (1, 1, 2))
    assert [each.sent_s for each in first] == pytest.approx([each.sent_s for each in again], abs=1e-6)
    assert [each.sent_s for each in first] != pytest.approx([each.sent_s for each in other], abs=1e-6)


def test_a_late_answer_counts_from_when_it_was_due() -> None:
    blocked = threading.Event()
    threading.Timer(0.3, blocked.set).start()

    def detect(photograph: bytes) -> bytes:
        blocked.wait(10)
        return photograph

    timed = run(detect, PICTURES, Load(rate=100.0, answers=3))
    assert all(each.latency_ms > (0.3 - each.sent_s) * 1000 - 20 for each in timed)


@pytest.mark.parametrize("load", [Load(clients=2, answers=2), Load(rate=100.0, answers=2)])
def test_a_failure_ends_the_measurement(load: Load) -> None:
    def fail(photograph: bytes) -> bytes:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        run(fail, PICTURES, load)


def test_after_a_failure_nothing_more_is_sent() -> None:
    sent: list[bytes] = []

    def fail(photograph: bytes) -> bytes:
        sent.append(photograph)
        time.sleep(0.2)
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        run(fail, PICTURES, Load(clients=2, answers=100))
    assert len(sent) <= 4


@pytest.mark.parametrize("wrong", [{}, {"clients": 1, "rate": 2.0}, {"clients": 1, "answers": 0}])
def test_a_load_is_one_of_both(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected clients or a rate"):
        Load(**wrong)  # type: ignore[arg-type]


def test_names() -> None:
    assert [Load(1).name, Load(8).name, Load(rate=2.5).name] == ["1 client", "8 clients", "2.5 a second"]
