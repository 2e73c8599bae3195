"""The network as three ONNX graphs, each proven against PyTorch before it is kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from archive.checkpoint import Checkpoint
from archive.files import progress, whole
from archive.network import LEVELS
from handler.config import engine_threads
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError, MogFaceError

# PyTorch's older exporter: on ONNX Runtime's CPU provider the heads are 6 to 8 % faster with its Reshape and
# InstanceNormalization than with the GroupNormalization of opset 21; the crops' sizes are read off the laterals
# (the newer exporter computes them from the image's by formula); and it takes 3 s where the newer takes 16 s.
# TensorRT makes the same normalisation layers of either form.
OPSET = 17
#: Largest difference from PyTorch that is accepted, as a share of the tensor's largest value, or of 1 if less.
TOLERANCE = 1e-4

_LEVEL_AXES = ("n", 256, "h", "w")
_CONTEXT_AXES = ("n", 512, "h", "w")
Axes = Sequence[str | int]


@dataclass(frozen=True)
class Graph:
    """One graph's names and shapes.

    Attributes:
        name: of its file, without the suffix.
        inputs: axes of each input: a number a fixed one, a name a free one.
        outputs: axes of each output.
        examples: values of the free axes n, h and w at which it is compared with PyTorch; the first is traced.
    """

    name: str
    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    examples: Sequence[tuple[int, int, int]]


GRAPHS = (
    Graph(
        "trunk",
        {"image": ("n", "h", "w", 3), "fraction": ("fraction_n", "fraction_h", "fraction_w", "fraction_c")},
        {name: ("n", 256, f"{name}_h", f"{name}_w") for name in LEVELS},
        ((2, 33, 75), (1, 64, 96), (1, 1, 1), (2, 97, 130), (3, 2, 161)),
    ),
    Graph(
        "score_head",
        {"level": _LEVEL_AXES},
        {"scores": ("n", "cells"), "context": _CONTEXT_AXES},
        ((2, 9, 19), (1, 16, 24), (1, 1, 1), (3, 1, 2)),
    ),
    Graph(
        "box_head",
        {"context": _CONTEXT_AXES},
        {"offsets": ("n", "cells", 4)},
        ((2, 9, 19), (1, 16, 24), (1, 1, 1), (3, 1, 2)),
    ),
)


def export(checkpoint: Checkpoint, folder: Path) -> list[Path]:
    """Write ``trunk.onnx``, ``score_head.onnx`` and ``box_head.onnx``. Equal weights give equal bytes.

    ``trunk`` takes ``image`` [N, H, W, 3] uint8 RGB and gives ``p2`` .. ``p7`` [N, 256, h, w]; its second
    input ``fraction``, float32 that broadcasts to the image and is added to it, is also an
    initializer of zeros: ONNX Runtime's callers may leave it out, and TensorRT sees a constant.
    ``score_head`` takes a ``level`` and gives ``scores`` [N, h * w] and ``context`` [N, 512, h, w], of which
    ``box_head`` makes ``offsets`` [N, h * w, 4]. N, H and W are free.

    Args:
        checkpoint: the weights.
        folder: where the files go; it is made.

    Returns:
        The files, in the order above.

    Raises:
        ArtifactError: a graph that is malformed or differs from PyTorch; it is not written.
    """
    paths = []
    with progress("export", total=2 * len(GRAPHS)) as bar:
        for graph, module in zip(GRAPHS, checkpoint.network(), strict=True):
            bar.set_postfix_str(graph.name)
            path = folder / f"{graph.name}.onnx"
            with whole(path) as draft:
                _trace(graph, module, draft)
                bar.update()
                _prove(graph, module, draft)
            paths.append(path)
            bar.update()
    return paths


def _trace(graph: Graph, module: nn.Module, path: Path) -> None:
    free = {
        name: {i: f"{name}_{i}" for i, axis in enumerate(axes) if isinstance(axis, str)}
        for name, axes in {**graph.inputs, **graph.outputs}.items()
    }
    with warnings.catch_warnings():
        # Of the exporter's age, and of GroupNorm's check that it was given more than one value a group, which is
        # traced as it comes out; what either could do, the proof would find.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(_examples(graph, graph.examples[0]).values()),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_axes=free,
        )
    model = onnx.load(str(path))
    _declare(model.graph, graph)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _declare(proto: onnx.GraphProto, graph: Graph) -> None:
    """State the free axes by our names, and make ``fraction`` an input with a value."""
    for values, declared in ((proto.input, graph.inputs), (proto.output, graph.outputs)):
        for value in values:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, list(declared[value.name])))
    # Shapes that were inferred from the traced sizes.
    del proto.value_info[:]
    for node in proto.node:
        node.doc_string = ""
    if "fraction" in graph.inputs:
        zeros = torch.zeros(1, 1, 1, 1).numpy()
        proto.initializer.append(numpy_helper.from_array(zeros, "fraction"))


def _examples(graph: Graph, size: tuple[int, int, int]) -> dict[str, Tensor]:
    """Seeded inputs; ``fraction`` as large as the image."""
    generator = torch.Generator().manual_seed(0)
    values = dict(zip("nhw", size, strict=True))
    feeds: dict[str, Tensor] = {}
    for name, axes in graph.inputs.items():
        if name == "fraction":
            feeds[name] = torch.rand(feeds["image"].shape, generator=generator)
            continue
        shape = [values[axis] if isinstance(axis, str) else axis for axis in axes]
        if name == "image":
            feeds[name] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        else:
            feeds[name] = torch.randn(shape, generator=generator)
    return feeds


def _prove(graph: Graph, module: nn.Module, path: Path) -> None:
    """Raises ArtifactError unless the file is a sound graph that answers as the module does."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
        engine = OrtEngine(path, torch.device("cpu"), engine_threads(0))
        for size in graph.examples:
            feeds = _examples(graph, size)
            _compare(graph, module, engine, feeds)
            if "fraction" in feeds:
                # Left out, it must count as zeros.
                _compare(graph, module, engine, {"image": feeds["image"]})
    except onnx.checker.ValidationError as error:
        raise ArtifactError(f"{graph.name}: the exported graph is malformed: {error}") from error
    except MogFaceError as error:
        raise ArtifactError(f"{graph.name}: the exported graph is not the network: {error}") from error


def _compare(graph: Graph, module: nn.Module, engine: OrtEngine, feeds: Mapping[str, Tensor]) -> None:
    with torch.inference_mode():
        answer = module(*feeds.values())
    expected = (answer,) if isinstance(answer, Tensor) else answer
    got = engine.run(feeds)
    sizes = [list(tensor.shape) for tensor in feeds.values()]
    for name, reference in zip(graph.outputs, expected, strict=True):
        if got[name].shape != reference.shape:
            raise ArtifactError(
                f"output {name!r} is {list(got[name].shape)}, expected {list(reference.shape)}, of inputs {sizes}"
            )
        difference = float((got[name] - reference).abs().max()) / max(1.0, float(reference.abs().max()))
        # Written so that NaN fails too.
        if not difference <= TOLERANCE:
            raise ArtifactError(f"output {name!r} differs by {difference:.1e}, over {TOLERANCE:g}, of inputs {sizes}")
