"""Types of a graph's tensors."""

from __future__ import annotations

import onnx


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of every tensor, as inferred, each rule of ONNX enforced."""
    graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {value.name: value.data_type for value in graph.initializer}
