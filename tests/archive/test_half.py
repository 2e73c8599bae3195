from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from archive import half
from handler.errors import ArtifactError


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
