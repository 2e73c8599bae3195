from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image

from archive import half, precision, quantization
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
from tests.archive.conftest import MOGFACE
from tests.photographs import compose

CPU = torch.device("cpu")
IMAGES: list[Uint8 | Path] = [compose(seed, 128, 128)[0] for seed in (20, 21)]


def test_fp32_stays_as_it_is(graphs: dict[str, Path], tmp_path: Path) -> None:
    assert convert(graphs, tmp_path, "fp32") == graphs
    assert list(tmp_path.iterdir()) == []


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

    def run(image: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        levels = engines["trunk"].run({"image": image})
        scored = [engines["score_head"].run({"level": levels[level]}) for level in LEVELS]
        return [(each["scores"], engines["box_head"].run({"context": each["context"]})["offsets"]) for each in scored]

    together, alone = run(images), [run(image[None]) for image in images]
    for level, found in enumerate(together):
        for index, tolerance in enumerate((scores, boxes)):
            difference = (found[index] - torch.cat([each[level][index] for each in alone])).abs().max()
            assert difference <= tolerance, LEVELS[level]


@pytest.mark.parametrize("name", ["score_head", "box_head"])
def test_a_shared_weight_is_stored_once(int8: dict[str, Path], fp16: dict[str, Path], name: str) -> None:
    for paths in (int8, fp16):
        graph = onnx.load(str(paths[f"{name}.onnx"])).graph
        weights = Counter(node.input[1] for node in graph.node if node.op_type == "Conv")
        assert sorted(weights.values())[-1] == 4
        large = [tuple(value.dims) for value in graph.initializer if np.prod(value.dims) > 512 * 512]
        assert large.count((512, 512, 3, 3)) == 1


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
    monkeypatch.setattr(half, "convert", lambda *given: spoil(right(*given)))
    monkeypatch.setattr(quantization, "_named", lambda source: spoil(named(source)))
    with pytest.raises(
        ArtifactError, match=rf"centerface\.onnx: the {precision} graph is not the FP32 one: output 'points'"
    ):
        convert(centerface_graphs, tmp_path / "out", precision, calibration=calibration, settings=small)
    assert list((tmp_path / "out").iterdir()) == []


def test_wrong_settings_are_refused(graphs: dict[str, Path], tmp_path: Path, small: Settings) -> None:
    with pytest.raises(ConfigError, match="precision is 'fp8': expected one of fp32, fp16, int8"):
        convert(graphs, tmp_path, "fp8")
    with pytest.raises(ConfigError, match="group_norm is 'bf16': expected one of fp32, fp16"):
        convert(graphs, tmp_path, "fp16", group_norm="bf16")
    with pytest.raises(ConfigError, match="fp32_layers is 'head': expected one of none, stem, backbone"):
        convert(graphs, tmp_path, "fp16", fp32_layers="head")
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
        fingerprint("fp16", fp32_layers="backbone"),
        fingerprint("int8", rest="fp16", calibration=calibration, settings=small),
        fingerprint("int8", calibration=calibration, settings=small),
        fingerprint("int8", calibration=tmp_path, settings=small),
        fingerprint("int8", calibration=calibration, settings=longer),
    ]
    assert len(set(kinds)) == 8
    assert fingerprint("int8", calibration=calibration, settings=small) == kinds[5]
    assert all(path.exists() for path in precision.SOURCES)
