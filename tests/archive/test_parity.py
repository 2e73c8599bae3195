from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from archive.parity import compare
from handler.engines import Engine, TensorSpec
from handler.errors import ArtifactError

Run = Callable[[torch.Tensor], torch.Tensor]


class Function(Engine):
    """An engine out of a function of its one input."""

    def __init__(self, run: Run, name: str = "y") -> None:
        spec = {each: TensorSpec(each, torch.float32, ("n", 3)) for each in ("x", name)}
        super().__init__({"x": spec["x"]}, {name: spec[name]}, torch.device("cpu"))
        self._function = run
        self._name = name

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {self._name: self._function(feeds["x"])}


REFERENCE = Function(lambda x: x * 2)
FEEDS = {"x": torch.arange(12.0).reshape(4, 3)}


def test_alike() -> None:
    assert compare(REFERENCE, REFERENCE, FEEDS, 1e-6) == 0
    # As a share of the largest value, 22.
    assert compare(REFERENCE, Function(lambda x: x * 2 + 0.022), FEEDS, 2e-3) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda x: x * 2.02, r"row 2 of 4 differs by 7\.3e-03, over 0\.005$"),
        (lambda x: (x * 2).flip(0), r"row 0 of 4 differs.*it answers as row 3 should"),
        (lambda x: (x * 2)[[0, 1, 3, 2]], r"row 2 of 4 differs.*it answers as row 3 should"),
        (lambda x: x * 2 + torch.tensor([[0], [0], [torch.nan], [0]]), "not finite"),
        (lambda x: x / 0, "not finite"),
        (lambda x: x[:3] * 2, r"\[3, 3\], expected \[4, 3\]"),
        (lambda x: x * 2 - x.mean(0), "row 0 of 4 differs"),
    ],
    ids=["values", "reversed", "swapped", "nan", "infinite", "rows missing", "rows mixed"],
)
def test_not_alike(run: Run, reason: str) -> None:
    with pytest.raises(ArtifactError, match=reason):
        compare(REFERENCE, Function(run), FEEDS, 5e-3)


def test_another_name() -> None:
    with pytest.raises(ArtifactError, match=r"outputs \['z'\], expected \['y'\]"):
        compare(REFERENCE, Function(lambda x: x * 2, "z"), FEEDS, 1e-3)
