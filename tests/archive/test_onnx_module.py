"""An ONNX graph as a module: each operator against ONNX Runtime, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from archive.onnx_module import OnnxModule
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError

CONV: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [1, 1], "group": 1}
PLAIN = {"pads": [1, 1, 1, 1], "dilations": [1, 1]}


def graph(path: Path, nodes: Sequence[onnx.NodeProto], weights: dict[str, Any], channels: int = 4) -> Path:
    """``image`` [N, H, W, 4] uint8, cast and transposed, through the nodes from ``x`` to ``y``."""
    head = [
        helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["float"], ["x"], perm=[0, 3, 1, 2]),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", "H", "W", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", channels, "h", "w"])]
    tensors = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()]
    proto = helper.make_graph([*head, *nodes], "graph", inputs, outputs, tensors)
    onnx.save(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 9)], ir_version=8), str(path))
    return path


def random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(0, 0.3, shape)


NODES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "Conv": (
        [helper.make_node("Conv", ["x", "a.w", "b"], ["y"], **CONV, **PLAIN)],
        {"a.w": random(4, 4, 3, 3), "b": random(4)},
    ),
    "Conv, odd": (
        [
            helper.make_node(
                "Conv",
                ["x", "w"],
                ["y"],
                **{**CONV, "strides": [2, 1], "group": 4},
                pads=[2, 1, 2, 1],
                dilations=[2, 1],
            )
        ],
        {"w": random(4, 1, 3, 3)},
    ),
    "ConvTranspose": (
        [
            helper.make_node(
                "ConvTranspose",
                ["x", "w"],
                ["y"],
                kernel_shape=[2, 2],
                strides=[2, 2],
                group=1,
                pads=[0] * 4,
                dilations=[1, 1],
            )
        ],
        {"w": random(4, 4, 2, 2)},
    ),
    "BatchNormalization": (
        [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=0.1, momentum=0.9)],
        {"s": random(4), "b": random(4) * 2, "m": random(4) * 3, "v": np.abs(random(4)) + 0.2},
    ),
    "Sigmoid, Relu, Add": (
        [
            helper.make_node("Add", ["x", "shift"], ["moved"]),
            helper.make_node("Relu", ["moved"], ["cut"]),
            helper.make_node("Sigmoid", ["moved"], ["squashed"]),
            helper.make_node("Add", ["cut", "squashed"], ["y"]),
        ],
        {"shift": np.full((4, 1, 1), -100.0)},
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_operators_are_onnx_runtimes(name: str, tmp_path: Path) -> None:
    path = graph(tmp_path / "x.onnx", *NODES[name])
    image = torch.randint(0, 256, (2, 7, 9, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = OrtEngine(path, torch.device("cpu"), 1).run({"image": image})["y"]
    with torch.inference_mode():
        [got] = OnnxModule(path)(image)
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (helper.make_node("Tanh", ["x"], ["y"]), "operator Tanh: expected one of Conv, "),
        (
            helper.make_node("Conv", ["x", "w"], ["y"], **CONV, pads=[0, 1, 2, 1], dilations=[1, 1]),
            "Conv with .*'pads'",
        ),
        (helper.make_node("Conv", ["x", "w"], ["y"], **CONV, auto_pad="SAME_UPPER"), "Conv with .*'auto_pad'"),
        (helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64), "Cast with"),
    ],
)
def test_what_is_not_known_is_refused(node: onnx.NodeProto, words: str, tmp_path: Path) -> None:
    path = graph(tmp_path / "x.onnx", [node], {"w": random(4, 4, 3, 3)})
    with pytest.raises(ArtifactError, match=rf"x\.onnx: {words}"):
        OnnxModule(path)


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    for content in (None, b"hello"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"x\.onnx: no ONNX graph"):
            OnnxModule(path)
