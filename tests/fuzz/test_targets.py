"""Each target on its seeds and on seeded damage to them: what `make fuzz` searches on from, on every test run."""

from __future__ import annotations

import numpy as np
import pytest

from handler.errors import InvalidImage
from tests.fuzz import targets
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_damage_pass(name: str) -> None:
    target, seeds = TARGETS[name]
    rng = np.random.default_rng(0)
    run = 0
    for seed in seeds():
        target(seed)
        for _ in range(6):
            damaged = bytearray(seed)
            for place in rng.integers(0, len(damaged), int(rng.integers(1, 5))):
                damaged[place] = int(rng.integers(256))
            target(bytes(damaged[: int(rng.integers(1, len(damaged) + 1))]))
            run += 1
    assert run > 100


def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no error of the tree, and an error that carries the bytes back, both end the target."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(targets, "decode", fail)
    with pytest.raises(ZeroDivisionError):
        targets.image(next(TARGETS["image"][1]()))

    def long(*_: object) -> None:
        raise InvalidImage("x" * 5_000)

    monkeypatch.setattr(targets, "read_header", long)
    with pytest.raises(AssertionError):
        targets.image(b"x")
