"""A graph in FP16, its types written out for networks that are typed by their graph alone.

TensorRT 11 takes every type from the graph and mixes none by itself, so each change of type is a Cast of
ours. What stays in FP32: what comes before the first convolution (MogFace's normalised pixels are about
0.01), Sigmoid, the layers and GroupNorm where asked, and the tensors that leave the last graph of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from archive.network import LEVELS
from handler.errors import ArtifactError

#: Tensors that go from one graph to another: FP16 on both sides.
BETWEEN = frozenset((*LEVELS, "level", "context"))
#: Of GroupNorm, and of what is not INT8 in an INT8 graph.
TYPES = ("fp32", "fp16")
#: Layers of MogFace's trunk that may stay in FP32, by the beginnings of their nodes' names in the export.
#:
#: A rounding early in the trunk grows through its hundred layers. On seeded weights (three seeds, four sizes of 64 to
#: 160 px) scores and offsets were off FP32's by at most 0.0085 and 0.015 with ``none``, 0.0056 and 0.0072 with
#: ``stem``, 0.0017 and 0.0027 with ``backbone`` (0.0015 and 0.0021 with the whole trunk: the rest is the heads').
#: Errors of rounding that sum to nothing over a kernel, and biases that make up for their mean, gained nothing.
#: In FP32 are then 0.12 % and 8.2 % of the FLOPs, and a GPU's FP32 has 1/4 to 1/16 of the rate of its FP16.
LAYERS = {
    "none": (),
    "stem": ("/backbone/conv1/", "/backbone/Relu", "/backbone/MaxPool"),
    "backbone": ("/backbone/",),
}

_FLOAT, _HALF = TensorProto.FLOAT, TensorProto.FLOAT16
#: Inputs that ONNX types as FP32 whatever the data's type: Resize's region and scales.
_FIXED = {"Resize": (1, 2)}
#: What PyTorch's older exporter makes of one GroupNorm.
_GROUP_NORM = ("Reshape", "InstanceNormalization", "Reshape", "Mul", "Add")


def convert(model: onnx.ModelProto, group_norm: str, fp32_layers: str = "none") -> onnx.ModelProto:
    """The graph with FP16 weights and arithmetic; no name of an input, an output or a fixed weight changes.

    Args:
        model: FP32, of this package's exports; it is left as it is.
        group_norm: type of GroupNorm's arithmetic, affine part included: ``fp32`` or ``fp16``.
        fp32_layers: of ``LAYERS``: those that stay FP32; for the trunk alone.

    Raises:
        ArtifactError: a weight over FP16's range, or a graph that is not of the expected form.
    """
    half = _Half(onnx.shape_inference.infer_shapes(model), group_norm, LAYERS[fp32_layers])
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(half.nodes)
    graph.initializer.extend(half.weights.values())
    for value in (*graph.input, *graph.output):
        if value.name in BETWEEN:
            value.type.tensor_type.elem_type = _HALF
    return result


class _Half:
    """One conversion: nodes in their order, casts where a type changes, each weight once a type."""

    def __init__(self, model: onnx.ModelProto, group_norm: str, layers: tuple[str, ...]) -> None:
        graph = model.graph
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, TensorProto] = {}
        declared = (*graph.input, *graph.output, *graph.value_info)
        self._floats = {value.name for value in declared if value.type.tensor_type.elem_type == _FLOAT}
        self._values = {value.name: value for value in graph.initializer}
        self._inputs = {value.name for value in graph.input}
        self._outputs = {value.name for value in graph.output}
        self._types = {name: _HALF if name in BETWEEN else _FLOAT for name in self._inputs & self._floats}
        self._copies: dict[tuple[str, int], str] = {}
        for node in graph.node:
            if node.op_type == "Constant":
                self._constant(node)
        self._floats |= {name for name, value in self._values.items() if value.data_type == _FLOAT}
        for name in self._inputs & self._values.keys():
            # An input with a value of its own: kept as it is, as callers know it.
            self.weights[name] = self._values[name]
        kept = {node.output[0] for node in _in_full(graph, group_norm, layers)}
        for node in graph.node:
            if node.op_type != "Constant":
                self._add(node, _FLOAT if node.output[0] in kept else _HALF)

    def _constant(self, node: onnx.NodeProto) -> None:
        """Constants become weights, so that those that are FP16 need no Cast."""
        values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        if len(values) != 1:
            raise ArtifactError(f"the constant {node.output[0]!r} is not a tensor: this graph is no export of ours")
        value = TensorProto()
        value.CopyFrom(values[0])
        value.name = node.output[0]
        self._values[value.name] = value

    def _add(self, node: onnx.NodeProto, kind: int) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type == "Cast":
            # Only ever of the uint8 image; to FP32, since what comes before the first convolution stays there.
            self._finish(copy, _FLOAT)
            return
        for index, name in enumerate(node.input):
            if not name:
                continue
            wanted = _FLOAT if index in _FIXED.get(node.op_type, ()) else kind
            copy.input[index] = self._as(name, wanted) if name in self._floats else self._plain(name)
        self._finish(copy, kind)

    def _finish(self, node: onnx.NodeProto, kind: int) -> None:
        """Append a node whose float outputs are of this type; an output of the graph gets the type it leaves in."""
        leaving = []
        for index, name in enumerate(node.output):
            if name not in self._floats:
                continue
            wanted = (_HALF if name in BETWEEN else _FLOAT) if name in self._outputs else kind
            self._types[name] = wanted
            if wanted != kind:
                node.output[index] = f"{name}.{_suffix(kind)}"
                self._copies[name, kind] = node.output[index]
                leaving.append(_cast(node.output[index], name, wanted))
        self.nodes += [node, *leaving]

    def _as(self, name: str, wanted: int) -> str:
        """The tensor or weight in the wanted type, by the name it has there."""
        if name in self._values and name not in self._inputs:
            if wanted == _FLOAT:
                return self._plain(name)
            self.weights.setdefault(f"{name}.{_suffix(_HALF)}", self._halved(self._values[name]))
            return f"{name}.{_suffix(_HALF)}"
        if self._types[name] == wanted:
            return name
        if (name, wanted) not in self._copies:
            self._copies[name, wanted] = f"{name}.{_suffix(wanted)}"
            self.nodes.append(_cast(name, self._copies[name, wanted], wanted))
        return self._copies[name, wanted]

    def _plain(self, name: str) -> str:
        if name in self._values:
            self.weights.setdefault(name, self._values[name])
        return name

    @staticmethod
    def _halved(value: TensorProto) -> TensorProto:
        array = numpy_helper.to_array(value)
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            largest = float(np.abs(array).max())
            raise ArtifactError(f"the weight {value.name!r} reaches {largest:g}, over FP16's 65504: keep this one FP32")
        return numpy_helper.from_array(half, f"{value.name}.{_suffix(_HALF)}")


def _in_full(graph: onnx.GraphProto, group_norm: str, layers: tuple[str, ...]) -> Iterator[onnx.NodeProto]:
    """The nodes that compute in FP32."""
    named = [node for node in graph.node if node.name.startswith(layers)]
    if layers and not any(node.op_type == "Conv" for node in named):
        raise ArtifactError(f"no convolution is named {' or '.join(layers)}...: this graph is no trunk of ours")
    yield from named
    for node in graph.node:
        if node.op_type == "Conv":
            break
        # A Transpose only moves values: after the Cast it moves half as much. Where the pixels stay FP32 it must too.
        if node.op_type != "Transpose" or named:
            yield node
    makers = {name: node for node in graph.node for name in node.output}
    takers = {name: node for node in graph.node for name in node.input if node.op_type != "Shape"}
    for node in graph.node:
        if node.op_type == "Sigmoid":
            yield node
        if node.op_type == "InstanceNormalization" and group_norm == "fp32":
            chain = [makers.get(node.input[0]), node]
            while len(chain) < len(_GROUP_NORM) and chain[-1] is not None:
                chain.append(takers.get(chain[-1].output[0]))
            if tuple(each and each.op_type for each in chain) != _GROUP_NORM:
                raise ArtifactError(f"{node.name!r} is not the middle of a GroupNorm as this package exports it")
            yield from chain


def _suffix(kind: int) -> str:
    return "fp16" if kind == _HALF else "fp32"


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}/Cast", to=kind)
