"""How many workers a cluster has room for."""

from __future__ import annotations

import pytest

from bulk.cluster import Layout, Wish, layout
from bulk.errors import UsageError

HEAD: dict[str, float] = {"memory": 1e9}
NODE: dict[str, float] = {"CPU": 16.0}
CARDS: dict[str, float] = {"CPU": 32.0, "GPU": 4.0}


def test_as_many_as_the_cores_give() -> None:
    assert layout([HEAD, NODE, NODE], Wish(), True) == Layout(8, 4)
    assert layout([{"CPU": 2.0}], Wish(), True) == Layout(1, 2)
    assert layout([NODE, {"CPU": 2.0}], Wish(), True) == Layout(9, 2)
    assert layout([NODE], Wish(workers=3, threads=5), True) == Layout(3, 5)


def test_one_a_gpu() -> None:
    assert layout([NODE, CARDS, CARDS], Wish(), True) == Layout(8, 4, 1.0)
    assert layout([CARDS], Wish(workers_per_gpu=2), True) == Layout(8, 4, 0.5)
    # An archive for the CPU leaves them alone.
    assert layout([CARDS], Wish(), False) == Layout(8, 4)


def test_gpus_without_the_cores_for_their_workers() -> None:
    # Ray names no CPU where a node has none.
    assert layout([CARDS, {"GPU": 4.0}], Wish(), True) == Layout(4, 4, 1.0)
    assert layout([{"CPU": 4.0, "GPU": 1.0}], Wish(workers_per_gpu=8), True) == Layout(4, 1, 1 / 8)
    assert layout([CARDS], Wish(threads=16), True) == Layout(2, 16, 1.0)
    with pytest.raises(UsageError, match="room for 0"):
        layout([{"GPU": 4.0}], Wish(), True)
    # Ray would wait for them without end.
    with pytest.raises(UsageError, match="room for 0"):
        layout([CARDS], Wish(threads=33), True)


def test_no_room() -> None:
    with pytest.raises(UsageError, match="no node of the cluster has a core"):
        layout([HEAD], Wish(), True)
    with pytest.raises(UsageError, match="room for 3"):
        layout([NODE], Wish(workers=4, threads=5), True)
    with pytest.raises(UsageError, match="room for 4"):
        layout([CARDS], Wish(workers=5), True)
