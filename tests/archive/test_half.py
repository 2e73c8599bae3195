from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from archive import half
from archive.network import LEVELS
from archive.precision import convert
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError
from tests.archive.conftest import GRAPHS, MOGFACE
from tests.archive.graph_types import types
from tests.photographs import compose

CPU = torch.device("cpu")


def weight(name: str, *shape: int) -> TensorProto:
    rng = np.random.default_rng(len(name))
    return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, int], outputs: dict[str, int], *weights: TensorProto
) -> onnx.ModelProto:
    kinds = {"image": TensorProto.UINT8}
    values = [
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), ["n", size, "h", "w"])
            for name, size in each.items()
        ]
        for each in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "tiny", *values, list(weights))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def test_an_output_that_goes_on_is_cast_once_and_goes_on_in_fp16() -> None:
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["pixels", "first"], ["heatmap"]),
        helper.make_node("Conv", ["heatmap", "second"], ["size"]),
    ]
    source = model(
        nodes, {"image": 3}, {"heatmap": 4, "size": 2}, weight("first", 4, 3, 1, 1), weight("second", 2, 4, 1, 1)
    )
    made = half.convert(source, "fp32")
    onnx.checker.check_model(made, full_check=True)
    convolutions = [node for node in made.graph.node if node.op_type == "Conv"]
    assert convolutions[1].input[0] == convolutions[0].output[0] == "heatmap.fp16"
    # The image to FP32 and on to FP16, and both outputs back.
    assert Counter(node.op_type for node in made.graph.node) == {"Cast": 4, "Conv": 2}
    feeds = {"image": np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4)}
    full, short = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        for each in (source, made)
    )
    for expected, found in zip(full, short, strict=True):
        assert found.dtype == np.float32
        assert np.abs(expected - found).max() < 2e-3 * np.abs(expected).max()


def test_the_source_is_left_as_it_is() -> None:
    nodes = [helper.make_node("Conv", ["level", "shared"], ["context"])]
    source = model(nodes, {"level": 3}, {"context": 3}, weight("shared", 3, 3, 1, 1))
    before = source.SerializeToString(deterministic=True)
    made = half.convert(source, "fp32")
    assert source.SerializeToString(deterministic=True) == before
    # From half to half: nothing to cast.
    assert [node.op_type for node in made.graph.node] == ["Conv"]
    assert [value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)] == [
        TensorProto.FLOAT16
    ] * 2


def test_a_weight_of_both_types_is_stored_in_both() -> None:
    nodes = [
        helper.make_node("Conv", ["level", "kernel"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("Sigmoid", ["bias"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["scores"]),
    ]
    source = model(nodes, {"level": 3}, {"scores": 3}, weight("kernel", 3, 3, 1, 1), weight("bias", 1, 3, 1, 1))
    made = half.convert(source, "fp32")
    onnx.checker.check_model(made, full_check=True)
    assert {value.name: value.data_type for value in made.graph.initializer} == {
        "kernel.fp16": TensorProto.FLOAT16,
        "bias.fp16": TensorProto.FLOAT16,
        "bias": TensorProto.FLOAT,
    }


def test_a_normalisation_of_another_form_is_refused() -> None:
    norm = helper.make_node("InstanceNormalization", ["level", "one", "zero"], ["context"], name="lonely")
    source = model([norm], {"level": 3}, {"context": 3}, weight("one", 3), weight("zero", 3))
    with pytest.raises(ArtifactError, match="'lonely' is not the middle of a GroupNorm"):
        half.convert(source, "fp32")
    half.convert(source, "fp16")


def test_a_constant_that_is_no_tensor_is_refused() -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Mul", ["level", "two"], ["context"]),
    ]
    with pytest.raises(ArtifactError, match="the constant 'two' is not a tensor"):
        half.convert(model(nodes, {"level": 3}, {"context": 3}), "fp32")


def test_a_weight_over_the_range_of_fp16_is_refused(centerface_graphs: dict[str, Path], tmp_path: Path) -> None:
    model = onnx.load(str(centerface_graphs["centerface.onnx"]))
    value = model.graph.initializer[0]
    value.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(value) * np.float32(1e9), value.name))
    with pytest.raises(ArtifactError, match=r"reaches .*, over FP16's 65504"):
        half.convert(model, "fp32")


@pytest.mark.parametrize("name", GRAPHS)
def test_fp16_is_typed_by_its_graph(fp16: dict[str, Path], name: str) -> None:
    model = onnx.load(str(fp16[f"{name}.onnx"]))
    kinds = types(model)
    for value in (*model.graph.input, *model.graph.output):
        crossing = value.name in (*LEVELS, "level", "context")
        expected = {"image": TensorProto.UINT8}.get(value.name, TensorProto.FLOAT16 if crossing else TensorProto.FLOAT)
        assert value.type.tensor_type.elem_type == expected, value.name
    computed: dict[str, set[int]] = {}
    for node in model.graph.node:
        data = node.input[:1] if node.op_type == "Resize" else node.input
        floats = {kinds[each] for each in data if each} & {TensorProto.FLOAT, TensorProto.FLOAT16}
        assert len(floats) <= 1, f"{node.op_type} {node.name} mixes types"
        computed.setdefault(node.op_type, set()).update(floats)
    # The stem of the trunk stays FP32, see half.LAYERS.
    assert computed["Conv"] == ({TensorProto.FLOAT16, TensorProto.FLOAT} if name == "trunk" else {TensorProto.FLOAT16})
    full = {"Sigmoid", "Sub", "Div", "MaxPool", "InstanceNormalization"} & computed.keys()
    assert (
        full
        == {
            "trunk": {"Sub", "Div", "MaxPool"},
            "score_head": {"Sigmoid", "InstanceNormalization"},
            "box_head": {"InstanceNormalization"},
            "centerface": {"Sigmoid"},
        }[name]
    )
    assert all(computed[kind] == {TensorProto.FLOAT} for kind in full)


def test_fraction_stays_optional_and_fp32(fp16: dict[str, Path]) -> None:
    engine = OrtEngine(fp16["trunk.onnx"], CPU, 2)
    assert engine.inputs["fraction"].optional
    assert engine.inputs["fraction"].dtype == torch.float32
    image = torch.full((1, 64, 64, 3), 100, dtype=torch.uint8)
    plain, brighter = engine.run({"image": image}), engine.run({"image": image + 1})
    more = engine.run({"image": image, "fraction": torch.ones(1, 64, 64, 3)})
    assert torch.equal(more["p2"], brighter["p2"])
    assert not torch.equal(more["p2"], plain["p2"])


@pytest.mark.parametrize("name", ["score_head", "box_head"])
def test_group_norm_is_a_switch(graphs: dict[str, Path], tmp_path: Path, name: str) -> None:
    source = {f"{name}.onnx": graphs[f"{name}.onnx"]}
    casts = {}
    for group_norm, kind in (("fp32", TensorProto.FLOAT), ("fp16", TensorProto.FLOAT16)):
        path = convert(source, tmp_path / group_norm, "fp16", group_norm=group_norm)[f"{name}.onnx"]
        model = onnx.load(str(path))
        kinds = types(model)
        norms = [node for node in model.graph.node if node.op_type == "InstanceNormalization"]
        assert [kinds[node.input[0]] for node in norms] == [kind] * 4
        casts[group_norm] = Counter(node.op_type for node in model.graph.node)["Cast"]
    # Into and out of each of the four.
    assert casts["fp32"] - casts["fp16"] == 8


def test_fp16_takes_half_the_room(fp16: dict[str, Path], graphs: dict[str, Path]) -> None:
    for name, path in fp16.items():
        assert 0.5 < path.stat().st_size / graphs[name].stat().st_size < 0.502


@pytest.fixture
def chain(graphs: dict[str, Path], fp16: dict[str, Path], tmp_path: Path) -> Callable[[str], dict[str, Path]]:
    """MogFace in FP16 with some of its layers in FP32."""

    def make(fp32_layers: str) -> dict[str, Path]:
        path = tmp_path / "trunk.onnx"
        model = half.convert(onnx.load(str(graphs["trunk.onnx"])), "fp32", fp32_layers)
        path.write_bytes(model.SerializeToString())
        return {**fp16, "trunk.onnx": path}

    return make


@pytest.mark.parametrize(
    ("fp32_layers", "scores", "boxes"), [("none", 1e-2, 2e-2), ("stem", 7e-3, 1e-2), ("backbone", 2e-3, 5e-3)]
)
def test_fp16_is_near_fp32(
    graphs: dict[str, Path], chain: Callable[[str], dict[str, Path]], fp32_layers: str, scores: float, boxes: float
) -> None:
    worst: dict[str, list[float]] = {}
    full, short = (
        {name: OrtEngine(paths[f"{name}.onnx"], CPU, 2) for name in MOGFACE} for paths in (graphs, chain(fp32_layers))
    )
    for height, width in ((96, 128), (64, 160)):
        image = torch.from_numpy(np.stack([compose(seed, height, width)[0] for seed in (30, 31)]))
        expected, found = full["trunk"].run({"image": image}), short["trunk"].run({"image": image})
        for level in LEVELS:
            scored = full["score_head"].run({"level": expected[level]})
            offsets = full["box_head"].run({"context": scored["context"]})["offsets"]
            # The heads by themselves, then all three graphs.
            for kind, feature in (("heads", expected[level].half()), ("chain", found[level])):
                scored16 = short["score_head"].run({"level": feature})
                offsets16 = short["box_head"].run({"context": scored16["context"]})["offsets"]
                assert scored16["scores"].dtype == offsets16.dtype == torch.float32
                pairs = ((scored["scores"], scored16["scores"]), (offsets, offsets16))
                differences = [float((one - other).abs().max()) for one, other in pairs]
                assert min(differences) > 0
                worst[kind] = [max(each) for each in zip(worst.get(kind, [0.0, 0.0]), differences, strict=True)]
    assert worst["heads"][0] < 2e-3
    assert worst["heads"][1] < 5e-3
    assert worst["chain"][0] < scores
    assert worst["chain"][1] < boxes


@pytest.mark.parametrize(("fp32_layers", "convolutions"), [("none", 0), ("stem", 1), ("backbone", 104)])
def test_layers_that_stay_in_fp32(chain: Callable[[str], dict[str, Path]], fp32_layers: str, convolutions: int) -> None:
    model = onnx.load(str(chain(fp32_layers)["trunk.onnx"]))
    onnx.checker.check_model(model, full_check=True)
    kinds = types(model)
    backbone = [node for node in model.graph.node if node.name.startswith("/backbone/")]
    every = [node for node in model.graph.node if node.op_type == "Conv"]
    full = [node.name for node in every if kinds[node.input[0]] == TensorProto.FLOAT]
    assert len(full) == convolutions
    assert {node.name for node in backbone} >= set(full)
    # So are the sums of a backbone in FP32.
    sums = {kinds[node.output[0]] for node in backbone if node.op_type == "Add"}
    assert sums == {TensorProto.FLOAT if fp32_layers == "backbone" else TensorProto.FLOAT16}


def test_layers_that_are_not_there_are_refused(graphs: dict[str, Path]) -> None:
    with pytest.raises(ArtifactError, match="no convolution is named /backbone/"):
        half.convert(onnx.load(str(graphs["score_head.onnx"])), "fp32", "backbone")
