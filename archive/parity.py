"""Whether two engines answer alike: asked of every plan that can be run where it was built."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from handler.engines import Engine
from handler.errors import ArtifactError

#: Largest difference that is accepted, as a share of the reference's largest value, or of 1 if that is less. The
#: reference runs the same graph in the same precision, so only the order of sums and the kernels' rounding differ.
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "int8": 1e-1}


def compare(reference: Engine, candidate: Engine, feeds: Mapping[str, torch.Tensor], tolerance: float) -> float:
    """Run a batch on ``candidate`` and each of its rows alone on ``reference``.

    Args:
        reference: any engine on the same graph.
        candidate: the one in question.
        feeds: inputs, each with the batch in front; the rows should differ, or their order cannot be checked.
        tolerance: see TOLERANCES.

    Returns:
        The largest difference found, as a share.

    Raises:
        ArtifactError: a name, a shape, a number that is not finite, a value too far off, or rows that answer for
            each other.
    """
    rows = len(next(iter(feeds.values())))
    got = {name: tensor.cpu().float() for name, tensor in candidate.run(feeds).items()}
    singles = [reference.run({name: tensor[row : row + 1] for name, tensor in feeds.items()}) for row in range(rows)]
    if set(got) != set(singles[0]):
        raise ArtifactError(f"outputs {sorted(got)}, expected {sorted(singles[0])}")
    worst = 0.0
    for name, values in got.items():
        expected = torch.cat([single[name].cpu().float() for single in singles])
        if values.shape != expected.shape:
            raise ArtifactError(f"output {name!r} is {list(values.shape)}, expected {list(expected.shape)}")
        if not torch.isfinite(values).all():
            raise ArtifactError(f"output {name!r} has numbers that are not finite")
        scale = max(1.0, float(expected.abs().max()))
        away = (values[:, None] - expected[None]).abs().flatten(2).amax(2) / scale
        for row in range(rows):
            if away[row, row] > tolerance:
                other = int(away[row].argmin())
                like = f": it answers as row {other} should" if away[row, other] <= tolerance else ""
                raise ArtifactError(
                    f"output {name!r} of row {row} of {rows} differs by {away[row, row]:.1e}, over {tolerance:g}{like}"
                )
        worst = max(worst, float(away.diagonal().max()))
    return worst
