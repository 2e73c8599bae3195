"""A small ONNX graph as a PyTorch module: CenterFace's, whose makers give no other form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from handler.errors import ArtifactError

Operator = Callable[..., Tensor]


class OnnxModule(nn.Module):
    """Runs the eight kinds of operator that CenterFace's graph has, in the graph's order.

    Args:
        path: the graph, as :func:`archive.centerface.export` writes it.
        dtype: of the weights and of what runs between inputs and outputs. The outputs are float32, and so is what
            a sigmoid sees: half precision's steps near 1 are coarser than the scores that answers print.

    Raises:
        ArtifactError: no graph, or one with an operator or an attribute that is not known here.
    """

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        try:
            graph = onnx.load(str(path)).graph
        except Exception as error:  # protobuf's own classes
            raise ArtifactError(f"{path}: no ONNX graph: {error}") from error
        [self.input] = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        # The names of buffers may hold no dots.
        self._buffer = {each.name: f"weight_{i}" for i, each in enumerate(graph.initializer)}
        for each in graph.initializer:
            # A copy: what onnx gives cannot be written to, of which torch warns.
            values = torch.from_numpy(np.array(numpy_helper.to_array(each)))
            self.register_buffer(self._buffer[each.name], values.to(dtype))
        self._steps: list[tuple[Operator, list[str], str]] = []
        for node in graph.node:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            make = _OPERATORS.get(node.op_type)
            if make is None:
                raise ArtifactError(f"{path}: operator {node.op_type}: expected one of {', '.join(_OPERATORS)}")
            try:
                self._steps.append((make(dtype, **attributes), list(node.input), node.output[0]))
            except (TypeError, ValueError) as error:
                raise ArtifactError(f"{path}: {node.op_type} with {attributes} is not known here") from error
        self.eval()

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """The graph's one input to its outputs, in their order."""
        values = {name: self.get_buffer(key) for name, key in self._buffer.items()}
        values[self.input] = image
        for operator, names, result in self._steps:
            values[result] = operator(*(values[name] for name in names))
        return tuple(values[name].float() for name in self.outputs)


def _pair(values: list[int]) -> tuple[int, int]:
    """ONNX's begins and ends, which must be equal, as torch's one number an axis."""
    height, width = values[:2]
    if values != [height, width] * (len(values) // 2):
        raise ValueError
    return height, width


def _convolution(
    dtype: torch.dtype, kernel_shape: list[int], pads: list[int], strides: list[int], dilations: list[int], group: int
) -> Operator:
    padding = _pair(pads)
    return lambda x, weight, bias=None: F.conv2d(x, weight, bias, strides, padding, dilations, group)


def _transposed(
    dtype: torch.dtype, kernel_shape: list[int], pads: list[int], strides: list[int], dilations: list[int], group: int
) -> Operator:
    padding = _pair(pads)
    return lambda x, weight, bias=None: F.conv_transpose2d(x, weight, bias, strides, padding, 0, group, dilations)


def _batch_norm(dtype: torch.dtype, epsilon: float, momentum: float) -> Operator:
    return lambda x, scale, shift, mean, variance: F.batch_norm(x, mean, variance, scale, shift, eps=epsilon)


def _cast(dtype: torch.dtype, to: int) -> Operator:
    if to != onnx.TensorProto.FLOAT:
        raise ValueError
    return lambda x: x.to(dtype)


def _transpose(dtype: torch.dtype, perm: list[int]) -> Operator:
    return lambda x: x.permute(perm)


def _plain(function: Operator) -> Callable[..., Operator]:
    """An operator without attributes."""
    return lambda dtype: function


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Transpose": _transpose,
    "Add": _plain(torch.add),
    "Relu": _plain(torch.relu),
    "Sigmoid": _plain(lambda x: torch.sigmoid(x.float())),
}
