"""The graphs as PyTorch programs (``.pt2``), each proven against what it was made of before it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from archive.checkpoint import Checkpoint
from archive.files import whole
from archive.network import LEVELS, BoxHead, Network, ScoreHead, Trunk
from handler.engines.base import TensorSpec
from handler.engines.torch_engine import TENSORS, TorchEngine, describe
from handler.errors import ArtifactError, ConfigError, MogFaceError

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}

Size = tuple[int, int, int]
#: What a program is compared with: float32 or uint8 inputs by name to outputs in their order.
Reference = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class Program:
    """One program's tensors.

    Attributes:
        name: of its file, without the suffix.
        inputs: in the order of the module's arguments.
        outputs: in the order of the module's results.
        traced: the free axes n, h and w at which it is exported.
        examples: those at which it is compared.
        tolerance: the largest difference that is accepted, as a share of the output's largest value, or of 1 if less.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    traced: Size
    examples: tuple[Size, ...]
    tolerance: float


def table(dtype: torch.dtype) -> tuple[Program, Program, Program, Program]:
    """Trunk, score head, box head and CenterFace; levels and context are of ``dtype``, scores and boxes float32."""
    fp32 = torch.float32
    image = TensorSpec("image", torch.uint8, ("n", "h", "w", 3))
    fraction = TensorSpec("fraction", fp32, ("n", "h", "w", 3), optional=True)
    levels = tuple(TensorSpec(name, dtype, ("n", 256, f"{name}_h", f"{name}_w")) for name in LEVELS)
    level, context = (TensorSpec(name, dtype, ("n", c, "h", "w")) for name, c in (("level", 256), ("context", 512)))
    scores = TensorSpec("scores", fp32, ("n", "cells"))
    offsets = TensorSpec("offsets", fp32, ("n", "cells", 4))
    maps = {"heatmap": 1, "size": 2, "offset": 2, "points": 10}
    points = tuple(TensorSpec(name, fp32, ("n", channels, "h4", "w4")) for name, channels in maps.items())
    # PyTorch's half precision on a CPU takes some thirty times as long.
    small = dtype != fp32
    tolerance = 2e-2 if small else 1e-4
    images: tuple[Size, ...] = ((1, 33, 40), (1, 1, 1)) if small else ((2, 33, 75), (1, 64, 96), (1, 1, 1), (3, 2, 161))
    cells: tuple[Size, ...] = ((2, 2, 3), (1, 1, 1)) if small else ((2, 9, 19), (1, 16, 24), (1, 1, 1), (3, 1, 2))
    frames: tuple[Size, ...] = ((1, 32, 64),) if small else ((2, 96, 64), (1, 32, 32), (3, 160, 160))
    return (
        # At this size no level has an axis of one, and each crop of the pyramid takes something away.
        Program("trunk", (image, fraction), levels, (2, 131, 195), images, tolerance),
        Program("score_head", (level,), (scores, context), (2, 9, 19), cells, tolerance),
        Program("box_head", (context,), (offsets,), (2, 9, 19), cells, tolerance),
        Program("centerface", (image,), points, (2, 96, 160), frames, tolerance),
    )


def export_programs(
    checkpoint: Checkpoint, centerface_onnx: Path, folder: Path, precision: str = "fp32"
) -> dict[str, Path]:
    """MogFace's four programs, by their names in the archive. Equal weights give equal bytes.

    Args:
        checkpoint: MogFace's weights.
        centerface_onnx: as :func:`archive.centerface.export` writes it.
        folder: where the files go; it is made.
        precision: ``fp32``, or ``fp16``, for GPUs: half the size, and normalisation, scores and offsets in float32.

    Raises:
        ConfigError: another precision.
        ArtifactError: a program that differs from what it was made of; it is not written.
    """
    return export_mogface(checkpoint, folder, precision) | export_centerface(centerface_onnx, folder, precision)


def export_mogface(checkpoint: Checkpoint, folder: Path, precision: str = "fp32") -> dict[str, Path]:
    """``trunk.pt2``, ``score_head.pt2`` and ``box_head.pt2``; as :func:`export_programs`. Needs torch alone."""
    dtype = _dtype(precision)
    # One is changed, the other is what it is compared with.
    network, reference = checkpoint.network(), checkpoint.network()
    written = {}
    for index, program in enumerate(table(dtype)[:3]):
        path = written[f"{program.name}.pt2"] = folder / f"{program.name}.pt2"
        write(program, part(network, index, dtype), eager(reference[index]), path)
    return written


def export_centerface(source: Path, folder: Path, precision: str = "fp32") -> dict[str, Path]:
    """``centerface.pt2``; as :func:`export_programs`. It is compared with ONNX Runtime."""
    from archive.onnx_module import OnnxModule
    from handler.engines.ort import OrtEngine

    dtype = _dtype(precision)
    program, path = table(dtype)[3], folder / "centerface.pt2"
    engine = OrtEngine(source, torch.device("cpu"), 1)
    write(program, OnnxModule(source, dtype), lambda feeds: list(engine.run(feeds).values()), path)
    return {path.name: path}


def part(network: Network, index: int, dtype: torch.dtype) -> nn.Module:
    """One of the network's three parts as it is exported; it changes the network, not the tensors that came into it."""
    makers: tuple[Callable[..., nn.Module], ...] = (_Trunk, _ScoreHead, _BoxHead)
    return makers[index](network[index], dtype)


def eager(module: nn.Module) -> Reference:
    """A part of the network as it is, to compare with."""

    def run(feeds: Mapping[str, Tensor]) -> Sequence[Tensor]:
        with torch.inference_mode():
            answer = module(*feeds.values())
        return (answer,) if isinstance(answer, Tensor) else answer

    return run


def _dtype(precision: str) -> torch.dtype:
    if precision not in DTYPES:
        raise ConfigError(f"precision is {precision!r}: PyTorch's programs have {' or '.join(DTYPES)}")
    return DTYPES[precision]


class _Trunk(nn.Module):
    """Normalisation in float32, the rest in ``dtype``."""

    def __init__(self, trunk: Trunk, dtype: torch.dtype) -> None:
        super().__init__()
        fold(trunk)
        trunk.backbone.to(dtype)
        trunk.fpn.to(dtype)
        self.trunk, self.dtype = trunk, dtype

    def forward(self, image: Tensor, fraction: Tensor) -> tuple[Tensor, ...]:
        pixels = self.trunk.normalise(image, fraction)
        levels: tuple[Tensor, ...] = self.trunk.fpn(*self.trunk.backbone(pixels.to(self.dtype)))
        return levels


class _ScoreHead(nn.Module):
    """Scores in float32, from the last logit on: half precision's steps near 1 are coarser than answers print."""

    def __init__(self, head: ScoreHead, dtype: torch.dtype) -> None:
        super().__init__()
        self.head = head.to(dtype)

    def forward(self, level: Tensor) -> tuple[Tensor, Tensor]:
        context: Tensor = self.head.conv_SSH(level)
        logits: Tensor = self.head.pred_cls(self.head.deep_cls_head(context))
        return torch.sigmoid(logits.float()).flatten(1), context


class _BoxHead(nn.Module):
    """Offsets in float32."""

    def __init__(self, head: BoxHead, dtype: torch.dtype) -> None:
        super().__init__()
        self.head = head.to(dtype)

    def forward(self, context: Tensor) -> tuple[Tensor]:
        return (self.head(context).float(),)


def fold(module: nn.Module) -> None:
    """Each BatchNorm into the convolution before it: a third of the trunk's operators are gone."""
    previous: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and previous is not None and isinstance(previous[1], nn.Conv2d):
            setattr(module, previous[0], fuse_conv_bn_eval(previous[1], child))
            setattr(module, name, nn.Identity())
        else:
            fold(child)
        previous = name, child


def write(program: Program, module: nn.Module, reference: Reference, path: Path) -> None:
    """Export a module to a file that TorchEngine reads.

    Args:
        program: its tensors.
        module: it gives a tuple.
        reference: what it must agree with.
        path: the file.

    Raises:
        ArtifactError: it does not agree; nothing is written.
    """
    with whole(path) as draft:
        exported = _export(program, module)
        with draft.open("wb") as file:
            torch.export.save(exported, file, extra_files={TENSORS: describe(program.inputs, program.outputs)})
        _prove(program, reference, draft)


def _export(program: Program, module: nn.Module) -> ExportedProgram:
    feeds = examples(program, program.traced)
    free = tuple({i: Dim.AUTO for i, axis in enumerate(spec.shape) if isinstance(axis, str)} for spec in program.inputs)
    with torch.no_grad():
        exported = torch.export.export(module, tuple(feeds.values()), dynamic_shapes=free)
    # It takes it that an axis which was not one while tracing, at any depth, never is, and would refuse small
    # images. The operators are the same for all sizes; the proof runs the least ones.
    for symbol in exported.range_constraints:
        exported.range_constraints[symbol] = ValueRanges(1, int_oo)
    for node in exported.graph.nodes:
        # Which line of which file here made it.
        for note in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
            node.meta.pop(note, None)
    return exported


def examples(program: Program, size: Size) -> dict[str, Tensor]:
    """Seeded inputs of a program, by name; ``size`` is n, h and w."""
    generator = torch.Generator().manual_seed(0)
    axes = dict(zip("nhw", size, strict=True))
    feeds = {}
    for spec in program.inputs:
        shape = [axes[axis] if isinstance(axis, str) else axis for axis in spec.shape]
        if spec.dtype == torch.uint8:
            feeds[spec.name] = torch.randint(0, 256, shape, generator=generator, dtype=spec.dtype)
        else:
            feeds[spec.name] = torch.randn(shape, generator=generator).to(spec.dtype)
    return feeds


def _prove(program: Program, reference: Reference, path: Path) -> None:
    """Raises ArtifactError unless the file answers as the reference does."""
    try:
        engine = TorchEngine(path, torch.device("cpu"), torch.get_num_threads())
        for size in program.examples:
            feeds = examples(program, size)
            given = {spec.name for spec in program.inputs if not spec.optional}
            # Once with all inputs, once with what is optional left out.
            for names in {tuple(feeds), tuple(name for name in feeds if name in given)}:
                _compare(program, reference, engine, {name: feeds[name] for name in names})
    except MogFaceError as error:
        raise ArtifactError(f"{program.name}: the exported program is not the network: {error}") from error


def _compare(program: Program, reference: Reference, engine: TorchEngine, feeds: Mapping[str, Tensor]) -> None:
    got = engine.run(feeds)
    expected = reference({name: each if each.dtype == torch.uint8 else each.float() for name, each in feeds.items()})
    sizes = [list(tensor.shape) for tensor in feeds.values()]
    for spec, wanted in zip(program.outputs, expected, strict=True):
        value = got[spec.name]
        if value.shape != wanted.shape or value.dtype != spec.dtype:
            what = f"{list(value.shape)} {value.dtype}, expected {list(wanted.shape)} {spec.dtype}"
            raise ArtifactError(f"output {spec.name!r} is {what}, of inputs {sizes}")
        difference = float((value.float() - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
        # Written so that NaN fails too.
        if not difference <= program.tolerance:
            limit = f"over {program.tolerance:g}, of inputs {sizes}"
            raise ArtifactError(f"output {spec.name!r} differs by {difference:.1e}, {limit}")
