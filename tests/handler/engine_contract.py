"""What every engine must do, asked of a graph whose answers are known by heart."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from handler.engines import Engine
from handler.errors import EngineError

#: Axes of the graph's input; its only other one is the free batch.
WIDTH = 3


def doubled(path: Path) -> Path:
    """Write ``y = 2 x + 1``: x and y are float32 [n, 3]."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "y")]
    constants = [
        numpy_helper.from_array(torch.tensor(number).numpy(), name) for name, number in (("two", 2.0), ("one", 1.0))
    ]
    nodes = [helper.make_node("Mul", ["x", "two"], ["product"]), helper.make_node("Add", ["product", "one"], ["y"])]
    graph = helper.make_graph(nodes, "doubled", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def check(engine: Engine, batches: tuple[int, ...] = (1, 2, 7)) -> None:
    """Ask an engine on :func:`doubled` for its values, and for its errors.

    Args:
        engine: any.
        batches: to try; let one be over the limit, where there is one.
    """
    assert list(engine.inputs) == ["x"]
    assert list(engine.outputs) == ["y"]
    assert (engine.inputs["x"].dtype, engine.inputs["x"].shape[1:]) == (torch.float32, (WIDTH,))
    handed_out = []
    for call, batch in enumerate(batches):
        x = torch.arange(batch * WIDTH, dtype=torch.float32).reshape(batch, WIDTH) - 10 * call
        outputs = engine.run({"x": x})
        assert list(outputs) == ["y"]
        assert outputs["y"].device.type == engine.device.type
        handed_out.append((outputs["y"], 2 * x + 1))
    # An engine's later runs leave what it gave before alone.
    for got, expected in handed_out:
        assert torch.equal(got.cpu(), expected)
    # A view that is not contiguous counts by its elements, not by its memory.
    x = torch.arange(2.0 * WIDTH).reshape(WIDTH, 2).T
    assert torch.equal(engine.run({"x": x})["y"].cpu(), 2 * x + 1)
    good = torch.zeros(1, WIDTH)
    for feeds, reason in (
        ({"z": good}, "inputs"),
        ({}, "inputs"),
        ({"x": good, "z": good}, "inputs"),
        ({"x": good.double()}, "float64"),
        ({"x": good[0]}, r"\[3\]"),
        ({"x": torch.zeros(1, WIDTH + 1)}, r"\[1, 4\]"),
    ):
        with pytest.raises(EngineError, match=reason):
            engine.run(feeds)
    # A refusal leaves nothing behind.
    assert torch.equal(engine.run({"x": good})["y"].cpu(), torch.ones(1, WIDTH))
