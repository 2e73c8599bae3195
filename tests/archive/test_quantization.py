from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from archive import precision, quantization
from archive.calibration import Calibration, pictures
from archive.gate import TOLERANCES, compare
from archive.precision import convert
from archive.subject import Subject
from handler.config import Settings
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError, ConfigError, EnvironmentFault
from handler.geometry import Uint8
from tests.archive.conftest import GRAPHS
from tests.archive.graph_types import types
from tests.photographs import compose

CPU = torch.device("cpu")


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


@pytest.mark.parametrize("name", GRAPHS)
def test_int8_is_explicit_and_symmetric(int8: dict[str, Path], graphs: dict[str, Path], name: str) -> None:
    path = int8[f"{name}.onnx"]
    assert 0.25 < path.stat().st_size / graphs[f"{name}.onnx"].stat().st_size < (0.32 if name == "centerface" else 0.28)
    graph = onnx.load(str(path)).graph
    values = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    takers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for each in node.input:
            takers.setdefault(each, []).append(node)
    quantised = plain = 0
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert values[node.input[2]].dtype == np.int8
            assert not values[node.input[2]].any()
        if node.op_type != "Conv":
            continue
        weight = makers.get(node.input[1])
        # Nothing comes between a convolution and its ReLU.
        after = {taker.op_type for taker in takers.get(node.output[0], [])}
        assert not {"Relu", "QuantizeLinear"} <= after
        if weight is None:
            plain += 1
            continue
        quantised += 1
        assert weight.op_type == "DequantizeLinear"
        assert next(each.i for each in weight.attribute if each.name == "axis") == 0
        stored = values[weight.input[0]]
        assert stored.dtype == np.int8
        assert values[weight.input[1]].shape == stored.shape[:1]
        assert values[node.input[2]].dtype == np.float32
        assert makers[node.input[0]].op_type == "DequantizeLinear"
    assert (quantised, plain) == {"trunk": (116, 1), "score_head": (9, 1), "box_head": (4, 1), "centerface": (38, 22)}[
        name
    ]


def test_int8_finds_the_faces(plain: Subject, subject: Callable[[Path], Subject], small_int8: Path) -> None:
    images: list[Uint8 | Path] = [compose(seed)[0] for seed in range(100, 130)]
    report = compare(plain, subject(small_int8), images, TOLERANCES["int8"])
    assert report.faces > 80
    assert report.measured.missed <= 0.05
    assert report.measured.box_mean > 0
    report.refuse()


def test_the_rest_of_int8_may_be_fp16(
    plain: Subject,
    subject: Callable[[Path], Subject],
    centerface_graphs: dict[str, Path],
    calibration: Path,
    small: Settings,
    small_int8: Path,
    tmp_path: Path,
) -> None:
    made = convert(centerface_graphs, tmp_path, "int8", rest="fp16", calibration=calibration, settings=small)
    path = made["centerface.onnx"]
    model = onnx.load(str(path))
    assert set(types(model).values()).isdisjoint({TensorProto.DOUBLE, TensorProto.BFLOAT16})
    assert all(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in model.graph.output)
    kinds = types(model)
    assert {kinds[node.input[0]] for node in model.graph.node if node.op_type == "Conv"} == {TensorProto.FLOAT16}
    pairs = Counter(node.op_type for node in model.graph.node)
    before = Counter(node.op_type for node in onnx.load(str(small_int8)).graph.node)
    for kind in ("QuantizeLinear", "DequantizeLinear", "Conv"):
        assert pairs[kind] == before[kind] > 20
    assert path.stat().st_size < small_int8.stat().st_size
    images: list[Uint8 | Path] = [compose(seed)[0] for seed in range(100, 130)]
    report = compare(plain, subject(path), images, TOLERANCES["int8"])
    report.refuse()
    assert report.faces > 80


def test_the_heads_of_int8_take_fp16_levels(
    mogface_folder: Path, settings: Settings, tmp_path: Path, calibration: Path
) -> None:
    graphs = {f"{name}.onnx": mogface_folder / "graphs" / f"{name}.onnx" for name in ("trunk", "score_head")}
    shown = tmp_path / "pictures"
    shown.mkdir()
    (shown / "0.png").write_bytes((calibration / "0.png").read_bytes())
    source = Calibration({Path(name).stem: path for name, path in graphs.items()}, pictures(shown), settings)
    path = precision._int8(graphs["score_head.onnx"], tmp_path / "score_head.onnx", source, "fp32")
    engine = OrtEngine(path, CPU, 2)
    assert engine.inputs["level"].dtype == engine.outputs["context"].dtype == torch.float16
    assert engine.outputs["scores"].dtype == torch.float32
    path.unlink()


def test_a_file_that_multiplies_is_refused(
    centerface_graphs: dict[str, Path],
    calibration: Path,
    small: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantization, "LARGEST", 0.2)
    with pytest.raises(ArtifactError, match=r"INT8 takes 0\.\d\d of FP32's size, expected at most 0\.2"):
        convert(centerface_graphs, tmp_path, "int8", calibration=calibration, settings=small)
    assert list(tmp_path.iterdir()) == []
