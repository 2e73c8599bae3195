"""The FP32 graphs in FP16 or INT8, each compared with its FP32 form before it is kept.

The comparison finds a graph that is wired wrongly. Whether a precision is good enough for the faces, the gate
says (:mod:`archive.gate`), on pictures.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from archive import half, quantization
from archive.calibration import Calibration, pictures
from archive.files import progress, sha256, whole
from archive.half import BETWEEN, LAYERS, TYPES
from archive.quantization import Feeds
from handler.config import PRECISIONS, Settings, engine_threads
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError, ConfigError, MogFaceError

#: Modules that a converted graph depends on, for whoever keeps graphs under the name of what made them.
SOURCES = tuple(Path(__file__).with_name(f"{name}.py") for name in ("precision", "half", "quantization", "calibration"))
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Tolerance:
    """What a converted graph's outputs may differ from FP32's, as a share of the output's largest value, or of 1.

    Attributes:
        worst: of any value.
        rms: of the root of the mean square.
    """

    worst: float
    rms: float


#: FP16 rounds by 2^-11 = 0.0005; through the trunk's hundred layers that came to 0.003 on seeded weights where all of
#: them are FP16. INT8 rounds by 1/254 of a tensor's range a layer: its outliers say nothing, its mean finds a scale
#: that is wrong.
TOLERANCES = {"fp16": Tolerance(worst=0.02, rms=0.005), "int8": Tolerance(worst=1.0, rms=0.1)}


def convert(
    graphs: Mapping[str, Path],
    folder: Path,
    precision: str,
    *,
    group_norm: str = "fp32",
    fp32_layers: str = "stem",
    rest: str = "fp32",
    calibration: Path | None = None,
    settings: Settings | None = None,
) -> dict[str, Path]:
    """Graphs of another precision, under the same names. Equal graphs, pictures and settings give equal bytes.

    ``fp16``: the image stays uint8, its normalisation, Sigmoid and MogFace's ``fraction`` FP32; ``p2`` .. ``p7``,
    ``level`` and ``context`` become FP16; ``scores``, ``offsets`` and CenterFace's outputs leave in FP32.
    ``int8``: convolutions between Q/DQ pairs; the ``rest`` FP32, every input and output as before, or as in ``fp16``.

    Args:
        graphs: FP32 graphs by file name, such as ``trunk.onnx``.
        folder: where the new ones go; it is made.
        precision: ``fp32`` (the graphs as they are), ``fp16`` or ``int8``.
        group_norm: type of GroupNorm's arithmetic where the rest is FP16.
        fp32_layers: of ``fp16``: layers of the trunk that stay FP32: ``none``, ``stem`` or ``backbone``, see
            :data:`archive.half.LAYERS`.
        rest: of ``int8``: type of all but the convolutions in INT8. A GPU moves half the bytes with ``fp16``.
        calibration: folder of pictures, for ``int8``: some dozens of the kind that will be served.
        settings: the archive's, for ``int8``: its canvases are those the pictures are put on.

    Raises:
        ConfigError: no such precision, or INT8 without pictures or settings.
        ArtifactError: a graph that cannot be converted or differs; neither it nor a later one is written.
    """
    _require(precision, group_norm, fp32_layers, rest)
    if precision == "fp32":
        return dict(graphs)
    if precision == "fp16":
        with progress("fp16", len(graphs), "graph") as bar:
            made = {}
            for name, source in graphs.items():
                layers = fp32_layers if Path(name).stem == "trunk" else "none"
                made[name] = _half(source, folder / name, group_norm, layers)
                bar.update()
            return made
    if calibration is None or settings is None:
        raise ConfigError("int8 needs a folder of pictures to calibrate with: --calibration FOLDER")
    stems = {Path(name).stem: source for name, source in graphs.items()}
    shown = Calibration(stems, pictures(calibration), settings)
    kind = group_norm if rest == "fp16" else None
    return {name: _int8(path, folder / name, shown, kind) for name, path in graphs.items()}


def fingerprint(
    precision: str,
    *,
    group_norm: str = "fp32",
    fp32_layers: str = "stem",
    rest: str = "fp32",
    calibration: Path | None = None,
    settings: Settings | None = None,
) -> str:
    """A hash of everything that :func:`convert` makes of the same graphs; arguments and errors as there."""
    _require(precision, group_norm, fp32_layers, rest)
    digest = hashlib.sha256(precision.encode())
    if precision != "fp32":
        digest.update(f"{group_norm} {fp32_layers} {rest}".encode())
    if precision == "int8" and calibration is not None and settings is not None:
        digest.update(f"{settings.canvases} {settings.long_side}".encode())
        for path in pictures(calibration):
            digest.update(sha256(path).encode())
    return digest.hexdigest()


def _require(precision: str, group_norm: str, fp32_layers: str, rest: str) -> None:
    choices = (
        ("precision", precision, PRECISIONS),
        ("group_norm", group_norm, TYPES),
        ("fp32_layers", fp32_layers, tuple(LAYERS)),
        ("rest", rest, TYPES),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(allowed)}")


def _half(source: Path, target: Path, group_norm: str, fp32_layers: str) -> Path:
    with whole(target) as draft:
        model = half.convert(onnx.load(str(source)), group_norm, fp32_layers)
        draft.write_bytes(model.SerializeToString(deterministic=True))
        reference = OrtEngine(source, _CPU, engine_threads(0))
        for size in ((1, 64, 96), (2, 32, 32)):
            feeds = _seeded(reference, size)
            _prove(source.name, reference, draft, feeds, "fp16", shortened=True)
            if "fraction" in feeds:
                _prove(source.name, reference, draft, {"image": feeds["image"]}, "fp16", shortened=True)
    return target


def _int8(source: Path, target: Path, calibration: Calibration, group_norm: str | None) -> Path:
    """``group_norm`` is None where the rest stays FP32."""
    with whole(target) as draft:
        quantization.convert(source, draft, calibration.feeds(source.stem))
        if group_norm is not None:
            model = onnx.load(str(draft))
            # The first opset whose QuantizeLinear takes FP16, and the first format that knows it.
            model.opset_import[0].version, model.ir_version = 19, 9
            draft.write_bytes(half.convert(model, group_norm).SerializeToString(deterministic=True))
        # On what it was calibrated with: noise has other ranges than pictures have.
        reference = OrtEngine(source, _CPU, engine_threads(0))
        for feeds in itertools.islice(calibration.feeds(source.stem), 1):
            _prove(source.name, reference, draft, feeds, "int8", shortened=group_norm is not None)
    return target


def _seeded(engine: OrtEngine, size: tuple[int, int, int]) -> Feeds:
    """Inputs from a fixed seed: pictures of noise, or features a quarter as large, of deviation 1."""
    rng = np.random.default_rng(0)
    count, height, width = size
    image = rng.integers(0, 256, (count, height, width, 3), np.uint8)
    if "image" not in engine.inputs:
        ((name, spec),) = engine.inputs.items()
        features = rng.normal(size=(count, int(spec.shape[1]), height // 4, width // 4))
        # Rounded for both, so that what differs is the graph.
        return {name: features.astype(np.float16).astype(np.float32)}
    fraction = {"fraction": rng.random(image.shape, np.float32)} if "fraction" in engine.inputs else {}
    return {"image": image, **fraction}


def _prove(name: str, reference: OrtEngine, path: Path, feeds: Feeds, precision: str, shortened: bool) -> None:
    """Raises ArtifactError unless the file is a sound graph of the right types that answers as FP32 does, nearly.

    ``shortened`` says that what goes between graphs is FP16.
    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
        engine = OrtEngine(path, _CPU, engine_threads(0))
        for spec in (*engine.inputs.values(), *engine.outputs.values()):
            crossing = shortened and spec.name in BETWEEN
            expected = {**reference.inputs, **reference.outputs}[spec.name]
            wanted = torch.float16 if crossing else expected.dtype
            if spec.dtype != wanted or spec.shape != expected.shape:
                raise ArtifactError(f"{spec.name!r} is {spec.dtype} {spec.shape}: expected {wanted} {expected.shape}")
        tensors = {key: torch.from_numpy(np.array(array)) for key, array in feeds.items()}
        found = engine.run({key: tensor.to(engine.inputs[key].dtype) for key, tensor in tensors.items()})
        for key, expected_output in reference.run(tensors).items():
            _compare(key, found[key].float(), expected_output, TOLERANCES[precision])
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ArtifactError(f"{name}: the {precision} graph is malformed: {error}") from error
    except MogFaceError as error:
        raise ArtifactError(f"{name}: the {precision} graph is not the FP32 one: {error}") from error


def _compare(name: str, found: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> None:
    scale = max(1.0, float(expected.abs().max()))
    difference = (found - expected).abs() / scale
    worst, rms = float(difference.max()), float(difference.square().mean().sqrt())
    # Written so that NaN fails too.
    if not (worst <= tolerance.worst and rms <= tolerance.rms):
        raise ArtifactError(
            f"output {name!r} differs by {worst:.2g} at worst and {rms:.2g} in the mean square, as shares of its "
            f"largest value; at most {tolerance.worst:g} and {tolerance.rms:g} are expected"
        )
