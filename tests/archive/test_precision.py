from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from PIL import Image

from archive import half, precision, quantization
from archive.calibration import Calibration, pictures
from archive.files import sha256
from archive.gate import TOLERANCES, compare
from archive.network import LEVELS
from archive.precision import convert, fingerprint
from archive.subject import Subject
from handler import detectors
from handler.config import Settings
from handler.detectors.mogface import MogFace
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError, ConfigError
from handler.geometry import Uint8
from tests.photographs import compose

CPU = torch.device("cpu")
MOGFACE = ("trunk", "score_head", "box_head")
GRAPHS = (*MOGFACE, "centerface")
IMAGES: list[Uint8 | Path] = [compose(seed, 128, 128)[0] for seed in (20, 21)]


@pytest.fixture(scope="module")
def graphs(mogface_folder: Path) -> dict[str, Path]:
    return {f"{name}.onnx": mogface_folder / "graphs" / f"{name}.onnx" for name in GRAPHS}


@pytest.fixture(scope="module")
def fp16(graphs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    made = convert(graphs, tmp_path_factory.mktemp("fp16") / "graphs", "fp16")
    yield made
    for path in made.values():
        path.unlink()


@pytest.fixture(scope="module")
def int8(
    graphs: dict[str, Path], settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Path]]:
    """MogFace's, by one picture: enough for their form."""
    pictures = tmp_path_factory.mktemp("pictures")
    Image.fromarray(compose(0, 96, 128)[0]).save(pictures / "0.png")
    folder = tmp_path_factory.mktemp("int8")
    made = convert(graphs, folder, "int8", calibration=pictures, settings=settings)
    yield made
    for path in made.values():
        path.unlink()


@pytest.fixture(scope="module")
def small_int8(
    centerface_graphs: dict[str, Path], calibration: Path, small: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """CenterFace, as it would be served."""
    folder = tmp_path_factory.mktemp("int8")
    return convert(centerface_graphs, folder, "int8", calibration=calibration, settings=small)["centerface.onnx"]


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of every tensor, as inferred, each rule of ONNX enforced."""
    graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {value.name: value.data_type for value in graph.initializer}


def test_fp32_stays_as_it_is(graphs: dict[str, Path], tmp_path: Path) -> None:
    assert convert(graphs, tmp_path, "fp32") == graphs
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", GRAPHS)
def test_fp16_is_typed_by_its_graph(fp16: dict[str, Path], name: str) -> None:
    model = onnx.load(str(fp16[f"{name}.onnx"]))
    kinds = types(model)
    for value in (*model.graph.input, *model.graph.output):
        crossing = value.name in (*LEVELS, "level", "context")
        expected = {"image": TensorProto.UINT8}.get(value.name, TensorProto.FLOAT16 if crossing else TensorProto.FLOAT)
        assert value.type.tensor_type.elem_type == expected, value.name
    computed: dict[str, set[int]] = {}
    for node in model.graph.node:
        data = node.input[:1] if node.op_type == "Resize" else node.input
        floats = {kinds[each] for each in data if each} & {TensorProto.FLOAT, TensorProto.FLOAT16}
        assert len(floats) <= 1, f"{node.op_type} {node.name} mixes types"
        computed.setdefault(node.op_type, set()).update(floats)
    assert computed["Conv"] == {TensorProto.FLOAT16}
    full = {"Sigmoid", "Sub", "Div", "InstanceNormalization"} & computed.keys()
    assert (
        full
        == {
            "trunk": {"Sub", "Div"},
            "score_head": {"Sigmoid", "InstanceNormalization"},
            "box_head": {"InstanceNormalization"},
            "centerface": {"Sigmoid"},
        }[name]
    )
    assert all(computed[kind] == {TensorProto.FLOAT} for kind in full)


def test_fraction_stays_optional_and_fp32(fp16: dict[str, Path]) -> None:
    engine = OrtEngine(fp16["trunk.onnx"], CPU, 2)
    assert engine.inputs["fraction"].optional
    assert engine.inputs["fraction"].dtype == torch.float32
    image = torch.full((1, 64, 64, 3), 100, dtype=torch.uint8)
    plain, brighter = engine.run({"image": image}), engine.run({"image": image + 1})
    more = engine.run({"image": image, "fraction": torch.ones(1, 64, 64, 3)})
    assert torch.equal(more["p2"], brighter["p2"])
    assert not torch.equal(more["p2"], plain["p2"])


@pytest.mark.parametrize("name", ["score_head", "box_head"])
def test_group_norm_is_a_switch(graphs: dict[str, Path], tmp_path: Path, name: str) -> None:
    source = {f"{name}.onnx": graphs[f"{name}.onnx"]}
    casts = {}
    for group_norm, kind in (("fp32", TensorProto.FLOAT), ("fp16", TensorProto.FLOAT16)):
        path = convert(source, tmp_path / group_norm, "fp16", group_norm=group_norm)[f"{name}.onnx"]
        model = onnx.load(str(path))
        kinds = types(model)
        norms = [node for node in model.graph.node if node.op_type == "InstanceNormalization"]
        assert [kinds[node.input[0]] for node in norms] == [kind] * 4
        casts[group_norm] = Counter(node.op_type for node in model.graph.node)["Cast"]
    # Into and out of each of the four.
    assert casts["fp32"] - casts["fp16"] == 8


def test_fp16_takes_half_the_room(fp16: dict[str, Path], graphs: dict[str, Path]) -> None:
    for name, path in fp16.items():
        assert 0.5 < path.stat().st_size / graphs[name].stat().st_size < 0.502


def test_fp16_is_near_fp32(fp16: dict[str, Path], graphs: dict[str, Path]) -> None:
    image = torch.from_numpy(np.stack([compose(seed, 96, 128)[0] for seed in (30, 31)]))
    full, short = ({name: OrtEngine(paths[f"{name}.onnx"], CPU, 2) for name in MOGFACE} for paths in (graphs, fp16))
    expected, found = full["trunk"].run({"image": image}), short["trunk"].run({"image": image})
    for level in LEVELS:
        scored = full["score_head"].run({"level": expected[level]})
        offsets = full["box_head"].run({"context": scored["context"]})["offsets"]
        # The heads by themselves, then all three graphs: a hundred layers of the trunk add to it, nearly all
        # by the rounding of their weights.
        for feature, worst in ((expected[level].half(), 2e-3), (found[level], 8e-3)):
            scored16 = short["score_head"].run({"level": feature})
            offsets16 = short["box_head"].run({"context": scored16["context"]})["offsets"]
            assert scored16["scores"].dtype == offsets16.dtype == torch.float32
            difference = (scored["scores"] - scored16["scores"]).abs()
            assert 0 < difference.max() < worst
            assert difference.mean() < 2e-3
            assert 0 < (offsets - offsets16).abs().max() < 1e-2


def of(paths: dict[str, Path], settings: Settings, precision: str) -> Subject:
    """MogFace on converted graphs, as an archive would hold them."""
    folder = next(iter(paths.values())).parent
    link = folder.parent / f"{precision}-archive"
    link.mkdir(exist_ok=True)
    if not (link / "graphs").exists():
        (link / "graphs").symlink_to(folder)
    return Subject(precision, detectors.load(link, dataclasses.replace(settings, precision=precision), CPU))


def test_the_detector_runs_in_fp16(fp16: dict[str, Path], settings: Settings, mogface: MogFace) -> None:
    # Points of what is no face move with a pixel of its crop.
    tolerance = dataclasses.replace(TOLERANCES["fp16"], points=1.0)
    report = compare(Subject("fp32", mogface), of(fp16, settings, "fp16"), IMAGES, tolerance)
    report.refuse()
    assert report.faces > 50


@pytest.mark.parametrize(("precision", "scores", "boxes"), [("fp16", 1e-3, 5e-3), ("int8", 1e-3, 5e-3)])
def test_a_batch_changes_nothing(request: pytest.FixtureRequest, precision: str, scores: float, boxes: float) -> None:
    paths: dict[str, Path] = request.getfixturevalue(precision)
    engines = {name: OrtEngine(paths[f"{name}.onnx"], CPU, 2) for name in MOGFACE}
    images = torch.from_numpy(np.stack([compose(seed, 128, 128)[0][:64, :96] for seed in (30, 31)]))

    def run(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scored = engines["score_head"].run({"level": engines["trunk"].run({"image": image})["p3"]})
        return scored["scores"], engines["box_head"].run({"context": scored["context"]})["offsets"]

    together, alone = run(images), [run(image[None]) for image in images]
    for index, tolerance in enumerate((scores, boxes)):
        difference = (together[index] - torch.cat([each[index] for each in alone])).abs().max()
        assert difference <= tolerance


@pytest.mark.parametrize("name", GRAPHS)
def test_int8_is_explicit_and_symmetric(int8: dict[str, Path], graphs: dict[str, Path], name: str) -> None:
    path = int8[f"{name}.onnx"]
    assert 0.25 < path.stat().st_size / graphs[f"{name}.onnx"].stat().st_size < (0.32 if name == "centerface" else 0.28)
    graph = onnx.load(str(path)).graph
    values = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    takers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for each in node.input:
            takers.setdefault(each, []).append(node)
    quantised = plain = 0
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert values[node.input[2]].dtype == np.int8
            assert not values[node.input[2]].any()
        if node.op_type != "Conv":
            continue
        weight = makers.get(node.input[1])
        # Nothing comes between a convolution and its ReLU.
        after = {taker.op_type for taker in takers.get(node.output[0], [])}
        assert not {"Relu", "QuantizeLinear"} <= after
        if weight is None:
            plain += 1
            continue
        quantised += 1
        assert weight.op_type == "DequantizeLinear"
        assert next(each.i for each in weight.attribute if each.name == "axis") == 0
        stored = values[weight.input[0]]
        assert stored.dtype == np.int8
        assert values[weight.input[1]].shape == stored.shape[:1]
        assert values[node.input[2]].dtype == np.float32
        assert makers[node.input[0]].op_type == "DequantizeLinear"
    assert (quantised, plain) == {"trunk": (116, 1), "score_head": (9, 1), "box_head": (4, 1), "centerface": (38, 22)}[
        name
    ]


@pytest.mark.parametrize("name", ["score_head", "box_head"])
def test_a_shared_weight_is_stored_once(int8: dict[str, Path], fp16: dict[str, Path], name: str) -> None:
    for paths in (int8, fp16):
        graph = onnx.load(str(paths[f"{name}.onnx"])).graph
        weights = Counter(node.input[1] for node in graph.node if node.op_type == "Conv")
        assert sorted(weights.values())[-1] == 4
        large = [tuple(value.dims) for value in graph.initializer if np.prod(value.dims) > 512 * 512]
        assert large.count((512, 512, 3, 3)) == 1


def test_int8_finds_the_faces(plain: Subject, subject: Callable[[Path], Subject], small_int8: Path) -> None:
    images: list[Uint8 | Path] = [compose(seed)[0] for seed in range(100, 130)]
    report = compare(plain, subject(small_int8), images, TOLERANCES["int8"])
    assert report.faces > 80
    assert report.measured.missed <= 0.05
    assert report.measured.box_mean > 0
    report.refuse()


def test_the_rest_of_int8_may_be_fp16(
    plain: Subject,
    subject: Callable[[Path], Subject],
    centerface_graphs: dict[str, Path],
    calibration: Path,
    small: Settings,
    small_int8: Path,
    tmp_path: Path,
) -> None:
    made = convert(centerface_graphs, tmp_path, "int8", rest="fp16", calibration=calibration, settings=small)
    path = made["centerface.onnx"]
    model = onnx.load(str(path))
    assert set(types(model).values()).isdisjoint({TensorProto.DOUBLE, TensorProto.BFLOAT16})
    assert all(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in model.graph.output)
    kinds = types(model)
    assert {kinds[node.input[0]] for node in model.graph.node if node.op_type == "Conv"} == {TensorProto.FLOAT16}
    pairs = Counter(node.op_type for node in model.graph.node)
    before = Counter(node.op_type for node in onnx.load(str(small_int8)).graph.node)
    for kind in ("QuantizeLinear", "DequantizeLinear", "Conv"):
        assert pairs[kind] == before[kind] > 20
    assert path.stat().st_size < small_int8.stat().st_size
    images: list[Uint8 | Path] = [compose(seed)[0] for seed in range(100, 130)]
    report = compare(plain, subject(path), images, TOLERANCES["int8"])
    report.refuse()
    assert report.faces > 80


def test_the_heads_of_int8_take_fp16_levels(
    mogface_folder: Path, settings: Settings, tmp_path: Path, calibration: Path
) -> None:
    graphs = {f"{name}.onnx": mogface_folder / "graphs" / f"{name}.onnx" for name in ("trunk", "score_head")}
    shown = tmp_path / "pictures"
    shown.mkdir()
    (shown / "0.png").write_bytes((calibration / "0.png").read_bytes())
    source = Calibration({Path(name).stem: path for name, path in graphs.items()}, pictures(shown), settings)
    path = precision._int8(graphs["score_head.onnx"], tmp_path / "score_head.onnx", source, "fp32")
    engine = OrtEngine(path, CPU, 2)
    assert engine.inputs["level"].dtype == engine.outputs["context"].dtype == torch.float16
    assert engine.outputs["scores"].dtype == torch.float32
    path.unlink()


def test_equal_inputs_give_equal_bytes(
    centerface_graphs: dict[str, Path], calibration: Path, small: Settings, small_int8: Path, tmp_path: Path
) -> None:
    source = centerface_graphs["centerface.onnx"]
    script = (
        "import sys\nfrom pathlib import Path\nfrom archive.precision import convert\n"
        "from handler.config import Settings\n"
        "source, folder, pictures, settings = map(Path, sys.argv[1:])\n"
        "for precision in ('fp16', 'int8'):\n"
        "    convert({'centerface.onnx': source}, folder / precision, precision, calibration=pictures,"
        " settings=Settings.load(settings))\n"
    )
    (tmp_path / "detector.yaml").write_text(small.dump())
    # Another process, with another order of its sets.
    command = [
        sys.executable,
        "-c",
        script,
        str(source),
        str(tmp_path),
        str(calibration),
        str(tmp_path / "detector.yaml"),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "5"}, capture_output=True)
    assert sha256(tmp_path / "int8" / "centerface.onnx") == sha256(small_int8)
    again = convert(centerface_graphs, tmp_path / "again", "fp16")["centerface.onnx"]
    assert sha256(tmp_path / "fp16" / "centerface.onnx") == sha256(again)


def test_a_weight_over_the_range_of_fp16_is_refused(centerface_graphs: dict[str, Path], tmp_path: Path) -> None:
    model = onnx.load(str(centerface_graphs["centerface.onnx"]))
    value = model.graph.initializer[0]
    value.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(value) * np.float32(1e9), value.name))
    with pytest.raises(ArtifactError, match=r"reaches .*, over FP16's 65504"):
        half.convert(model, "fp32")


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_what_differs_is_not_kept(
    centerface_graphs: dict[str, Path],
    calibration: Path,
    small: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    def spoil(model: onnx.ModelProto) -> onnx.ModelProto:
        (value,) = [each for each in model.graph.initializer if each.name in spoiled]
        value.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(value) * 2, value.name))
        return model

    last = onnx.load(str(centerface_graphs["centerface.onnx"])).graph.node[-1].input[1]
    spoiled = (last, f"{last}.fp16")
    right, named = half.convert, quantization._named
    monkeypatch.setattr(half, "convert", lambda model, group_norm: spoil(right(model, group_norm)))
    monkeypatch.setattr(quantization, "_named", lambda source: spoil(named(source)))
    with pytest.raises(
        ArtifactError, match=rf"centerface\.onnx: the {precision} graph is not the FP32 one: output 'points'"
    ):
        convert(centerface_graphs, tmp_path / "out", precision, calibration=calibration, settings=small)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_multiplies_is_refused(
    centerface_graphs: dict[str, Path],
    calibration: Path,
    small: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantization, "LARGEST", 0.2)
    with pytest.raises(ArtifactError, match=r"INT8 takes 0\.\d\d of FP32's size, expected at most 0\.2"):
        convert(centerface_graphs, tmp_path, "int8", calibration=calibration, settings=small)
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_refused(graphs: dict[str, Path], tmp_path: Path, small: Settings) -> None:
    with pytest.raises(ConfigError, match="precision is 'fp8': expected one of fp32, fp16, int8"):
        convert(graphs, tmp_path, "fp8")
    with pytest.raises(ConfigError, match="group_norm is 'bf16': expected one of fp32, fp16"):
        convert(graphs, tmp_path, "fp16", group_norm="bf16")
    with pytest.raises(ConfigError, match="rest is 'int4': expected one of fp32, fp16"):
        convert(graphs, tmp_path, "int8", rest="int4")
    with pytest.raises(ConfigError, match="int8 needs a folder of pictures"):
        convert(graphs, tmp_path, "int8")
    with pytest.raises(ConfigError, match="holds no pictures to calibrate with"):
        convert(graphs, tmp_path, "int8", calibration=tmp_path, settings=small)
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_tells_what_would_be_made(calibration: Path, small: Settings, tmp_path: Path) -> None:
    Image.fromarray(compose(0)[0]).save(tmp_path / "0.png")
    longer = dataclasses.replace(small, canvases=(*small.canvases, *Settings("mogface", "", small.options).canvases))
    kinds = [
        fingerprint("fp32"),
        fingerprint("fp16"),
        fingerprint("fp16", group_norm="fp16"),
        fingerprint("int8", rest="fp16", calibration=calibration, settings=small),
        fingerprint("int8", calibration=calibration, settings=small),
        fingerprint("int8", calibration=tmp_path, settings=small),
        fingerprint("int8", calibration=calibration, settings=longer),
    ]
    assert len(set(kinds)) == 7
    assert fingerprint("int8", calibration=calibration, settings=small) == kinds[4]
    assert all(path.exists() for path in precision.SOURCES)
