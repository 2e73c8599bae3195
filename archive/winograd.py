"""The graphs as ncnn's, each proven against what it was made of before it is kept.

pnnx, ncnn's converter, turns a traced module into ncnn's two files; the third, which says what the tensors are, is
written here. See :mod:`handler.engines.winograd` for what a graph is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from archive import network, onnx_module, programs
from archive.checkpoint import Checkpoint
from archive.files import progress, whole
from archive.network import BoxHead, Context, DeepHead, Network, ScoreHead, Trunk
from archive.programs import Program, Reference, eager, examples, fold, table
from handler.config import engine_threads
from handler.engines import winograd as engine
from handler.engines.winograd import Description, Port, WinogradEngine, pack, unpack
from handler.errors import ArtifactError, EnvironmentFault, MogFaceError

SUFFIXES = (".param", ".bin", ".json")
#: The code that makes the graphs.
SOURCES = tuple(map(Path, (network.__file__, onnx_module.__file__, programs.__file__, engine.__file__, __file__)))
#: Scratch memory is kept from run to run for images of up to so many pixels; a head's finest level has a sixteenth.
KEPT = 640 * 640
#: Seconds that pnnx may take for one graph; the trunk takes about five.
_PATIENCE = 600
# Odd sizes, so that nothing comes out even by chance; pnnx finds by the second which axes are free.
_IMAGE = ((1, 131, 195, 3), (1, 97, 163, 3))
_FRAME = ((1, 96, 160, 3), (1, 64, 32, 3))
_CELLS = ((19, 33), (25, 17))


@dataclass(frozen=True)
class Source:
    """What a graph is made of.

    Attributes:
        program: its tensors, and the sizes at which it is compared.
        module: traced; its arguments are ncnn's blobs in0, in1 ..., its results out0, out1 ...
        shapes: of the arguments, at two sizes.
        inputs: the program's, in its order, and where ncnn takes them.
        outputs: likewise.
        kept: see :class:`handler.engines.winograd.Description`.
        reference: what the graph must agree with.
    """

    program: Program
    module: nn.Module
    shapes: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kept: int
    reference: Reference


def export_graphs(checkpoint: Checkpoint, centerface_onnx: Path, folder: Path) -> dict[str, Path]:
    """MogFace's four graphs, by their names in the archive.

    Args:
        checkpoint: MogFace's weights.
        centerface_onnx: as :func:`archive.centerface.export` writes it.
        folder: where the files go; it is made.

    Raises:
        EnvironmentFault: ncnn or pnnx is not installed.
        ArtifactError: a graph that does not come out, or differs from what it was made of; it is not written.
    """
    return export_mogface(checkpoint, folder) | export_centerface(centerface_onnx, folder)


def export_mogface(checkpoint: Checkpoint, folder: Path) -> dict[str, Path]:
    """Trunk, score head and box head; as :func:`export_graphs`."""
    # One is changed, the other is what it is compared with.
    return _write([*_parts(checkpoint.network(), checkpoint.network())], folder)


def export_centerface(source: Path, folder: Path) -> dict[str, Path]:
    """CenterFace's graph; as :func:`export_graphs`. It is compared with ONNX Runtime."""
    from handler.engines.ort import OrtEngine

    program = table(torch.float32)[3]
    released = OrtEngine(source, torch.device("cpu"), engine_threads(0))
    graph = Source(
        program,
        onnx_module.OnnxModule(source),
        ([_FRAME[0]], [_FRAME[1]]),
        (Port(program.inputs[0], "in0"),),
        tuple(Port(spec, f"out{number}") for number, spec in enumerate(program.outputs)),
        3 * KEPT,
        lambda feeds: list(released.run(feeds).values()),
    )
    return _write([graph], folder)


def names(graph: str) -> list[str]:
    """Its files in the archive."""
    return [graph + suffix for suffix in SUFFIXES]


def _parts(changed: Network, reference: Network) -> tuple[Source, Source, Source]:
    trunk, score_head, box_head, _ = table(torch.float32)
    cells = [list(size) for size in _CELLS]
    level, context = ([(1, channels, *size) for size in cells] for channels in (256, 512))
    image, fraction = trunk.inputs
    return (
        Source(
            trunk,
            _Trunk(changed.trunk),
            ([_IMAGE[0]] * 2, [_IMAGE[1]] * 2),
            (Port(image, "in0"), Port(fraction, "in1")),
            tuple(Port(spec, f"out{number}", packed=True) for number, spec in enumerate(trunk.outputs)),
            3 * KEPT,
            eager(reference.trunk),
        ),
        Source(
            score_head,
            _ScoreHead(changed.score_head),
            ([level[0], *[context[0]] * 5], [level[1], *[context[1]] * 5]),
            (Port(score_head.inputs[0], "in0", packed=True),),
            (
                Port(score_head.outputs[0], "out0", hops=_hops(1)),
                Port(score_head.outputs[1], "out0", packed=True),
            ),
            256 * KEPT // 16,
            eager(reference.score_head),
        ),
        Source(
            box_head,
            _BoxHead(changed.box_head),
            ([context[0]] * 5, [context[1]] * 5),
            (Port(box_head.inputs[0], "in0", packed=True),),
            (Port(box_head.outputs[0], "in0", hops=_hops(0)),),
            512 * KEPT // 16,
            eager(reference.box_head),
        ),
    )


def _hops(convolution: int) -> tuple[tuple[str, str], ...]:
    """Through a deep head, whose blobs are numbered from its convolution's on."""
    steps = ((convolution, convolution + number) for number in range(1, 5))
    return tuple((f"in{each}", f"out{each}") for step in steps for each in step)


class _Trunk(nn.Module):
    """Normalisation and all, on [1, H, W, 3] float32."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        fold(trunk)
        self.trunk = trunk
        # ncnn subtracts and divides by channel.
        for name in ("mean", "deviation"):
            self.register_buffer(name, trunk.get_buffer(name).view(1, 3, 1, 1))

    def forward(self, image: Tensor, fraction: Tensor) -> tuple[Tensor, ...]:
        pixels = (image + fraction).permute(0, 3, 1, 2)
        pixels = (pixels - self.get_buffer("mean")) / self.get_buffer("deviation") / 255.0
        levels: tuple[Tensor, ...] = self.trunk.fpn(*self.trunk.backbone(pixels))
        return levels


class _ScoreHead(nn.Module):
    """Context, then the steps of the deep head, each on an argument of its own."""

    def __init__(self, head: ScoreHead) -> None:
        super().__init__()
        self.context = _Context(head.conv_SSH)
        self.deep, self.last = _Deep(head.deep_cls_head), head.pred_cls

    def forward(self, level: Tensor, x: Tensor, y1: Tensor, y2: Tensor, y3: Tensor, y4: Tensor) -> tuple[Tensor, ...]:
        *steps, last = self.deep(x, y1, y2, y3, y4)
        return self.context(level), *steps, torch.sigmoid(self.last(last)).flatten(1)


class _BoxHead(nn.Module):
    """The same without the context."""

    def __init__(self, head: BoxHead) -> None:
        super().__init__()
        self.deep, self.last = _Deep(head.deep_loc_head), head.pred_loc

    def forward(self, x: Tensor, y1: Tensor, y2: Tensor, y3: Tensor, y4: Tensor) -> tuple[Tensor, ...]:
        *steps, last = self.deep(x, y1, y2, y3, y4)
        return *steps, self.last(last).flatten(2).transpose(1, 2)


class _Deep(nn.Module):
    """A deep head's convolution, and its four normalisations, side by side.

    In a row the convolution would be there four times, and Winograd's form of it takes 38 MB.
    """

    def __init__(self, head: DeepHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, y1: Tensor, y2: Tensor, y3: Tensor, y4: Tensor) -> tuple[Tensor, ...]:
        norms = (self.head.gn1, self.head.gn2, self.head.gn3, self.head.gn4)
        return self.head.conv1(x), *(torch.relu(norm(y)) for norm, y in zip(norms, (y1, y2, y3, y4), strict=True))


class _Context(nn.Module):
    """SSH context whose dilated convolutions run as plain ones: Winograd's method is for those alone.

    A dilation of two takes every other pixel, so it sees four pictures of half the size that never meet: the plain
    convolution of each, side by side as four groups of channels, is the same.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.near, self.middle, self.far = context.conv1, context.conv2_1, context.conv2_2_1
        self.shared, self.wide = _grouped(context.conv2), _grouped(context.conv2_2)

    def forward(self, x: Tensor) -> Tensor:
        shared = _joined(torch.relu(self.shared(_phases(x))), x)
        # Taken apart anew: of an odd size the convolution has filled the pad, which the next must see as zeros.
        wide = _joined(torch.relu(self.wide(_phases(shared))), x)
        return torch.cat([torch.relu(each) for each in (self.near(x), self.middle(shared), self.far(wide))], dim=1)


def _grouped(dilated: nn.Conv2d) -> nn.Conv2d:
    """A convolution of dilation two, for four phases side by side."""
    plain = nn.Conv2d(4 * dilated.in_channels, 4 * dilated.out_channels, 3, padding=1, groups=4)
    plain.weight = nn.Parameter(dilated.weight.repeat(4, 1, 1, 1), requires_grad=False)
    assert dilated.bias is not None
    plain.bias = nn.Parameter(dilated.bias.repeat(4), requires_grad=False)
    return plain


def _phases(x: Tensor) -> Tensor:
    """[1, c, h, w] -> [1, 4 c, ceil(h / 2), ceil(w / 2)]; what is padded is as good as the convolution's own pad."""
    return F.pixel_unshuffle(F.pad(x, (0, 1, 0, 1)), 2)


def _joined(phases: Tensor, like: Tensor) -> Tensor:
    return F.pixel_shuffle(phases, 2)[:, :, : like.shape[2], : like.shape[3]]


def _write(sources: Sequence[Source], folder: Path) -> dict[str, Path]:
    written = {}
    with (
        progress("convert", total=2 * len(sources)) as bar,
        tempfile.TemporaryDirectory(prefix="mogface-ncnn-") as scratch,
    ):
        for source in sources:
            name = source.program.name
            bar.set_postfix_str(name)
            _convert(source, Path(scratch))
            bar.update()
            _prove(source, Path(scratch) / f"{name}.json")
            # The description last: a graph without one was not finished.
            for each in names(name):
                with whole(folder / each) as draft:
                    shutil.copyfile(Path(scratch) / each, draft)
                written[each] = folder / each
            bar.update()
    return written


def _convert(source: Source, folder: Path) -> None:
    name = source.program.name
    param, binary, description = (folder / each for each in names(name))
    _pnnx(source, param, binary)
    param.write_text(_by_phases(param.read_text(encoding="utf-8")), encoding="utf-8")
    sizes = {path.suffix: path.stat().st_size for path in (param, binary)}
    described = Description(source.inputs, source.outputs, source.kept, sizes)
    description.write_text(described.dump(), encoding="utf-8")


def _pnnx(source: Source, param: Path, binary: Path) -> None:
    try:
        import pnnx
    except ImportError as error:
        raise EnvironmentFault(
            "graphs for the engine winograd need the package pnnx: pip install '.[winograd]'"
        ) from error
    traced = param.with_suffix(".pt")
    with warnings.catch_warnings(), torch.inference_mode():
        # Of sizes that are traced as they come out; what that could do, the proof would find.
        warnings.simplefilter("ignore")
        feeds = [torch.zeros(*shape) for shape in source.shapes[0]]
        torch.jit.trace(source.module.eval(), feeds, check_trace=False).save(str(traced))  # type: ignore[no-untyped-call]
    first, second = (",".join(f"{list(shape)}f32".replace(" ", "") for shape in shapes) for shapes in source.shapes)
    command = [pnnx.EXEC_PATH, str(traced), f"inputshape={first}", f"inputshape2={second}", "device=cpu", "fp16=0"]
    command += [f"ncnnparam={param}", f"ncnnbin={binary}"]
    try:
        done = subprocess.run(
            command, cwd=param.parent, capture_output=True, text=True, check=False, timeout=_PATIENCE, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(f"{source.program.name}: pnnx did not end within {_PATIENCE} s") from error
    if done.returncode or not (param.is_file() and binary.is_file()):
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = lines[-1] if lines else "nothing"
        raise ArtifactError(f"{source.program.name}: pnnx ended with {done.returncode} and said: {said}")


def _by_phases(param: str) -> str:
    """Channels of the four phases one phase after another, as groups are. torch only knows them interleaved."""
    return re.sub(r"^((?:Reorg|PixelShuffle) .*\b0=2)(?: 1=0)?$", r"\1 1=1", param, flags=re.MULTILINE)


def _prove(source: Source, path: Path) -> None:
    """Raises ArtifactError unless the files answer as the reference does."""
    program = source.program
    try:
        converted = WinogradEngine(path, engine_threads(0))
        for size in program.examples:
            feeds = examples(program, size)
            given = {spec.name for spec in program.inputs if not spec.optional}
            # Once with all inputs, once with what is optional left out.
            for chosen in {tuple(feeds), tuple(name for name in feeds if name in given)}:
                _compare(source, converted, {name: feeds[name] for name in chosen})
    except MogFaceError as error:
        raise ArtifactError(f"{program.name}: the converted graph is not the network: {error}") from error


def _compare(source: Source, converted: WinogradEngine, feeds: Mapping[str, Tensor]) -> None:
    packed = {port.spec.name for port in (*source.inputs, *source.outputs) if port.packed}
    got = converted.run({name: pack(each) if name in packed else each for name, each in feeds.items()})
    sizes = [list(tensor.shape) for tensor in feeds.values()]
    for spec, wanted in zip(source.program.outputs, source.reference(feeds), strict=True):
        value = unpack(got[spec.name]) if spec.name in packed else got[spec.name]
        if value.shape != wanted.shape:
            raise ArtifactError(f"output {spec.name!r} is {list(value.shape)}, expected {list(wanted.shape)}: {sizes}")
        difference = float((value - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
        # Written so that NaN fails too.
        if not difference <= source.program.tolerance:
            limit = f"over {source.program.tolerance:g}, of inputs {sizes}"
            raise ArtifactError(f"output {spec.name!r} differs by {difference:.1e}, {limit}")
