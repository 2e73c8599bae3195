"""A graph in INT8: convolutions between explicit QuantizeLinear and DequantizeLinear, all else as it was.

Symmetric, so that every zero point is 0 and TensorRT takes the pairs as they stand; weights a scale per
output channel; biases stay FP32. In FP32 stay, too, the convolutions that see the picture itself or give the
graph's outputs, whose errors no later layer evens out, and those of one channel a group, which have few
weights and a poor range.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import version_converter

from archive.half import BETWEEN
from handler.errors import ArtifactError, EnvironmentFault, MogFaceError

Feeds = Mapping[str, npt.NDArray[np.generic]]

#: The first opset whose QuantizeLinear has a scale a channel is 13; MogFace's graphs are exported with 17.
OPSET = 17
#: INT8 weights are a quarter of FP32's; what stays FP32 comes on top. Over this share of the source's size
#: something was stored twice, as a convolution that four steps share would be.
LARGEST = 0.45
#: ONNX Runtime's own levels; it starts with warnings, and cannot be asked.
_WARNINGS, _ERRORS = 2, 3
_EXTRA = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,
    # A pair behind a convolution would part it from its ReLU, and spend half of its values below zero.
    "OpTypesToExcludeOutputQuantization": ["Conv"],
}


def convert(source: Path, target: Path, feeds: Iterable[Feeds]) -> None:
    """Quantise one graph with the ranges that it shows on some inputs. Equal inputs give equal bytes.

    Args:
        source: FP32 graph.
        target: written in place, so a draft: what is refused stays there.
        feeds: inputs by name, one batch each, at least one.

    Raises:
        ArtifactError: no inputs, a failure of the quantiser, or a file larger than INT8 explains.
        EnvironmentFault: a package is missing.
    """
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise EnvironmentFault("INT8 needs the package onnxruntime or onnxruntime-gpu") from error
    model = _named(source)
    seen = 0

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        """Hands the inputs over, one after another."""

        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> dict[str, npt.NDArray[np.generic]] | None:
            nonlocal seen
            batch = next(self._feeds, None)
            seen += batch is not None
            return None if batch is None else dict(batch)

    try:
        with _silent():
            quantization.quantize_static(
                model,
                str(target),
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=["Conv"],
                nodes_to_exclude=sorted(_sensitive(model.graph)),
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
                extra_options=_EXTRA,
            )
    except MogFaceError:
        # From the making of the inputs, which is lazy.
        raise
    except Exception as error:  # ONNX Runtime's classes have no common root
        if not seen:
            raise ArtifactError(f"{source.name}: no inputs to calibrate with") from error
        raise ArtifactError(f"{source.name}: ONNX Runtime cannot quantise it: {error}") from error
    _check(source, target)


def _named(source: Path) -> onnx.ModelProto:
    """The model at an opset with INT8 a channel, each node called as its first output: exclusion goes by name."""
    model = onnx.load(str(source))
    if model.opset_import[0].version < OPSET:
        model = version_converter.convert_version(model, OPSET)
        model.ir_version = 8
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def _sensitive(graph: onnx.GraphProto) -> set[str]:
    """The convolutions that stay FP32, by name."""
    convolutions = {node.name for node in graph.node if node.op_type == "Conv"}
    kept = {
        node.name
        for node in graph.node
        if node.name in convolutions and any(each.name == "group" and each.i > 1 for each in node.attribute)
    }
    # Between graphs nothing begins and nothing ends: there a convolution is one like the others.
    if not BETWEEN & {value.name for value in graph.input}:
        kept |= _outermost([(node.name, node.input, node.output) for node in graph.node], convolutions)
    if not {value.name for value in graph.output} <= BETWEEN:
        kept |= _outermost([(node.name, node.output, node.input) for node in reversed(graph.node)], convolutions)
    return kept


def _outermost(nodes: Iterable[tuple[str, Iterable[str], Iterable[str]]], wanted: Collection[str]) -> set[str]:
    """Those wanted that no other one comes before; nodes as name, tensors on this side, tensors on the far side."""
    covered: set[str] = set()
    found = set()
    for name, near, far in nodes:
        if name in wanted and not covered & set(near):
            found.add(name)
        if name in wanted or covered & set(near):
            covered |= set(far)
    return found


def _check(source: Path, draft: Path) -> None:
    share = draft.stat().st_size / source.stat().st_size
    if share > LARGEST:
        raise ArtifactError(
            f"{source.name}: INT8 takes {share:.2f} of FP32's size, expected at most {LARGEST}: weights lie in it twice"
        )
    graph = onnx.load(str(draft)).graph
    zeros = {node.input[2] for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    if not zeros:
        raise ArtifactError(f"{source.name}: nothing was quantised")
    for value in graph.initializer:
        if value.name in zeros and np.any(onnx.numpy_helper.to_array(value)):
            raise ArtifactError(f"{source.name}: the zero point {value.name!r} is not 0")


@contextmanager
def _silent() -> Iterator[None]:
    """Without the advice to fold first what the exporter has folded, and to make ``fraction`` a constant."""
    import onnxruntime

    root = logging.getLogger()
    root.addFilter(_not_advice)
    onnxruntime.set_default_logger_severity(_ERRORS)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)
        root.removeFilter(_not_advice)


def _not_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()
