from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from archive import quantization
from handler.errors import ArtifactError, ConfigError, EnvironmentFault


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three convolutions, the second with a ReLU behind it; large enough that scales do not tell in its size."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(64, 64, 3, 3)).astype(np.float32), name) for name in "abc"]
    nodes = [
        helper.make_node("Conv", ["level", "a"], ["x"], pads=[1] * 4),
        helper.make_node("Conv", ["x", "b"], ["y"], pads=[1] * 4),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Conv", ["z", "c"], ["context"], pads=[1] * 4),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64, "h", "w"]) for name in ("level", "context")
    ]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:], weights)
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def feeds() -> list[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    return [{"level": np.random.default_rng(seed).normal(size=(1, 64, 8, 8)).astype(np.float32)} for seed in range(3)]


def test_ranges_are_those_of_all_inputs(source: Path, tmp_path: Path) -> None:
    quantization.convert(source, tmp_path / "out.onnx", feeds())
    graph = onnx.load(str(tmp_path / "out.onnx")).graph
    values = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
    largest = max(float(np.abs(each["level"]).max()) for each in feeds())
    (first,) = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "level"]
    assert float(values[first.input[1]]) == pytest.approx(largest / 127, rel=0.01)
    # Three inputs; between graphs no convolution is left out.
    assert sum(node.op_type == "QuantizeLinear" for node in graph.node) == 3


def test_no_inputs_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"tiny\.onnx: no inputs to calibrate with"):
        quantization.convert(source, tmp_path / "out.onnx", [])


def test_without_onnxruntime_it_says_so(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EnvironmentFault, match="INT8 needs the package onnxruntime"):
        quantization.convert(source, tmp_path / "out.onnx", feeds())


def test_errors_of_the_inputs_come_through(source: Path, tmp_path: Path) -> None:
    def broken() -> object:
        yield feeds()[0]
        raise ConfigError("a picture is damaged")

    with pytest.raises(ConfigError, match="a picture is damaged"):
        quantization.convert(source, tmp_path / "out.onnx", broken())  # type: ignore[arg-type]


def test_inputs_that_do_not_fit_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"tiny\.onnx: ONNX Runtime cannot quantise it"):
        quantization.convert(source, tmp_path / "out.onnx", [{"picture": np.zeros((1, 64, 8, 8), np.float32)}])


def test_a_graph_without_convolutions_is_refused(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("level", "context")]
    graph = helper.make_graph([helper.make_node("Relu", ["level"], ["context"])], "tiny", values[:1], values[1:])
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    with pytest.raises(ArtifactError, match=r"tiny\.onnx"):
        quantization.convert(path, tmp_path / "out.onnx", [{"level": np.ones(4, np.float32)}])


def test_the_quantiser_gives_no_advice(source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        quantization.convert(source, tmp_path / "out.onnx", feeds())
    assert not logging.getLogger().filters
    assert [record.getMessage() for record in caplog.records if "quantization" in record.getMessage()] == []
