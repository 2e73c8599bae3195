"""The engine on ncnn, and both detectors on it against ONNX Runtime and ModelScope's own."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from handler import detectors, engines
from handler.config import Settings
from handler.detectors import Result
from handler.detectors.base import Prepared
from handler.detectors.landmarks import LandmarkStage
from handler.detectors.mogface import MogFace
from handler.engines.base import TensorSpec
from handler.engines.winograd import Description, Port, WinogradEngine, lanes, pack, unpack
from handler.errors import ArtifactError, ConfigError, EngineError, EnvironmentFault
from handler.geometry import Float32, Uint8, place_native
from tests.conftest import RELEASED
from tests.handler import engine_contract
from tests.handler.fake import CPU
from tests.oracle import Oracle, Picture, to_source

#: Winograd's transforms add what direct sums do not: scores came within 3e-5 of ModelScope's, boxes within 0.003 px.
SCORE, PIXELS = 1e-4, 0.01
WIDTH = engine_contract.WIDTH
# y = 2 x + 1, in place: of what the caller gave, were it not copied.
DOUBLED = (
    "7767517\n3 3\nInput x 0 1 x\nBinaryOp twice 1 1 x double 0=2 1=1 2=2.0\nBinaryOp more 1 1 double y 0=0 1=1 2=1.0\n"
)


def write(folder: Path, param: str, inputs: Sequence[Port], outputs: Sequence[Port], kept: int = 1000) -> Path:
    """A graph without weights."""
    (folder / "x.param").write_text(param)
    (folder / "x.bin").write_bytes(bytes(4))
    described = Description(tuple(inputs), tuple(outputs), kept, {".param": len(param), ".bin": 4})
    (folder / "x.json").write_text(described.dump())
    return folder / "x.json"


def port(name: str, shape: tuple[int | str, ...], blob: str = "", **more: object) -> Port:
    return Port(TensorSpec(name, torch.float32, shape), blob or name, **more)  # type: ignore[arg-type]


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    return write(tmp_path, DOUBLED, [port("x", ("n", WIDTH))], [port("y", ("n", WIDTH))])


def test_contract(doubled: Path) -> None:
    engine_contract.check(WinogradEngine(doubled, 1))


def test_layers_that_work_in_place_leave_the_caller_alone(doubled: Path) -> None:
    x = torch.arange(2.0 * WIDTH).reshape(2, WIDTH)
    before = x.clone()
    assert torch.equal(WinogradEngine(doubled, 1).run({"x": x})["y"], 2 * before + 1)
    assert torch.equal(x, before)


@pytest.mark.parametrize("kept", [0, 1000])
def test_outputs_outlive_all_else(tmp_path: Path, kept: int) -> None:
    engine = WinogradEngine(write(tmp_path, DOUBLED, [port("x", ("n", WIDTH))], [port("y", ("n", WIDTH))], kept), 1)
    outputs = engine.run({"x": torch.ones(1, WIDTH)})
    value = outputs["y"]
    engine.run({"x": torch.zeros(1, WIDTH)})["y"]
    del engine, outputs
    gc.collect()
    assert torch.equal(value, torch.full((1, WIDTH), 3.0))


def test_packed_tensors_are_ncnns_own_layout(tmp_path: Path) -> None:
    shape = ("n", 32, "h", "w")
    graph = write(
        tmp_path, DOUBLED, [port("x", shape)], [port("packed", shape, "y", packed=True), port("plain", shape, "y")]
    )
    x = torch.randn(2, 32, 3, 5)
    got = WinogradEngine(graph, 1).run({"x": x})
    assert got["packed"].shape == (2, 32 // lanes(), 3, 5, lanes())
    assert torch.equal(unpack(got["packed"]), 2 * x + 1)
    assert torch.equal(got["plain"], 2 * x + 1)
    assert torch.equal(unpack(pack(x)), x)


def test_hops_run_a_layer_again(tmp_path: Path) -> None:
    hops = (("x", "y"), ("x", "y"))
    graph = write(tmp_path, DOUBLED, [port("x", ("n", WIDTH))], [port("z", ("n", WIDTH), "y", hops=hops)])
    assert torch.equal(WinogradEngine(graph, 1).run({"x": torch.zeros(2, WIDTH)})["z"], torch.full((2, WIDTH), 7.0))


def test_an_output_is_computed_when_it_is_taken(tmp_path: Path) -> None:
    """The one that nobody takes here could not be."""
    half = "7767517\n4 4\nInput x 0 1 x\nInput z 0 1 z\nReLU r 1 1 x y\nInterp i 1 1 z b 0=2 1=2.0 2=2.0\n"
    graph = write(tmp_path, half, [port("x", ("n", WIDTH))], [port("y", ("n", WIDTH)), port("b", ("n", 7))])
    outputs = WinogradEngine(graph, 1).run({"x": torch.ones(1, WIDTH)})
    assert torch.equal(outputs.pop("y"), torch.ones(1, WIDTH))
    assert list(outputs) == ["b"]
    with pytest.raises(KeyError):
        outputs["y"]
    with pytest.raises(EngineError, match="ncnn failed at blob 'b'"):
        outputs["b"]
    del outputs["b"]
    assert not outputs


def test_what_is_no_graph_is_refused(doubled: Path) -> None:
    param, binary = doubled.with_suffix(".param"), doubled.with_suffix(".bin")
    kept = {path: path.read_bytes() for path in (doubled, param, binary)}
    for path, content, reason in (
        (doubled, b"", "x.json: not the description"),
        (doubled, b"[]", "x.json: not the description"),
        (doubled, kept[doubled].replace(b'"x"', b'"z"', 3), "'z'.* not in the graph"),
        (doubled, kept[doubled].replace(b"float32", b"float99"), "float99"),
        (param, kept[param][:-9], r"x\.param has .* bytes: expected"),
        (param, kept[param].replace(b"7767517", b"7767518"), r"x\.param: ncnn cannot load it"),
        (param, kept[param].replace(b"BinaryOp", b"BinaryUp"), r"x\.param: ncnn cannot load it"),
        (binary, b"", r"x\.bin has 0 bytes: expected 4"),
    ):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=reason):
            WinogradEngine(doubled, 1)
        path.write_bytes(kept[path])
    binary.unlink()
    with pytest.raises(ArtifactError, match=r"x\.bin.*cannot be read"):
        WinogradEngine(doubled, 1)
    doubled.unlink()
    with pytest.raises(ArtifactError, match=r"x\.json.*FileNotFound"):
        WinogradEngine(doubled, 1)
    with pytest.raises(ArtifactError, match=r"'x' is .*: expected 4 axes to be packed"):
        port("x", ("n", 20, "h", "w"), packed=True)


def test_it_runs_fp32_on_cpus_or_not_at_all(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="engine winograd runs fp32 on CPUs"):
        dataclasses.replace(settings, engine="winograd", precision="fp16")
    with pytest.raises(ConfigError, match="engine winograd runs fp32 on CPUs"):
        dataclasses.replace(settings, engine="winograd", device="cuda")
    mine = dataclasses.replace(settings, engine="winograd")
    with pytest.raises(EnvironmentFault, match="the device is cuda"):
        engines.load(mine, tmp_path, "trunk", torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "ncnn", None)
    with pytest.raises(EnvironmentFault, match="needs the package ncnn"):
        engines.load(mine, tmp_path, "trunk", CPU)


def test_its_threads_do_not_wait_awake_for_long() -> None:
    """What ncnn's OpenMP was told, and that nothing of it is left for others."""
    code = (
        "import os, torch; from handler.engines.winograd import lanes; lanes(); import ncnn; torch.set_num_threads(3); "
        "ncnn.set_omp_num_threads(7); print(os.environ.get('GOMP_SPINCOUNT'), torch.get_num_threads())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    # torch's OpenMP is another, and is left as it was: were ncnn on that one, 7 threads would be torch's too.
    assert done.stdout.split() == ["None", "3"]
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr


@pytest.fixture(scope="module")
def fast(winograd_folder: Path, settings: Settings) -> MogFace:
    detector = detectors.load(winograd_folder, dataclasses.replace(settings, engine="winograd"), CPU)
    assert isinstance(detector, MogFace)
    return detector


def results(detector: MogFace, prepared: Sequence[Prepared]) -> list[Result]:
    found = detector.detect(prepared, time.monotonic() + 120)
    assert all(isinstance(result, Result) for result in found), found
    return [result for result in found if isinstance(result, Result)]


def assert_same(result: Result, boxes: Float32, scores: Float32) -> None:
    assert len(result.detections) == len(boxes)
    np.testing.assert_allclose(result.detections.boxes, boxes, atol=PIXELS, rtol=0)
    np.testing.assert_allclose(result.detections.scores, scores, atol=SCORE, rtol=0)


@pytest.mark.parametrize("size", [(96, 128), (75, 98), (33, 200), (1504, 40), (1, 1)])
def test_native_gives_the_released_boxes(
    fast: MogFace, oracle: Oracle, picture: Picture, size: tuple[int, int]
) -> None:
    """Odd sizes, and one that is shrunk with its fractions."""
    image = picture(*size, size[0])
    options = dataclasses.replace(RELEASED, canvas="native")
    placement = dataclasses.replace(place_native(*size), scale_x=1.0, scale_y=1.0)
    expected = to_source(oracle.detect(image), placement)
    assert len(expected) >= (2 if min(size) > 1 else 0)
    assert_same(results(fast, [fast.prepare(image, options)])[0], expected[:, :4], expected[:, 4])


def test_the_comparison_sees_one_grey_level(fast: MogFace, oracle: Oracle, picture: Picture) -> None:
    image = picture(96, 128, 3)
    expected = to_source(oracle.detect(image + (image < 255).astype(np.uint8)), place_native(96, 128))
    with pytest.raises(AssertionError):
        assert_same(results(fast, [fast.prepare(image, RELEASED)])[0], expected[:, :4], expected[:, 4])


def test_a_batch_of_all_sorts_answers_as_ort_does_and_each_as_alone(
    fast: MogFace, mogface: MogFace, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [
        RELEASED,
        dataclasses.replace(RELEASED, score_threshold=0.6),
        dataclasses.replace(RELEASED, score_threshold=0.5, min_face_size=40),
        dataclasses.replace(RELEASED, score_threshold=1.0),
    ]
    prepared = [fast.prepare(picture(96, 128, number), each) for number, each in enumerate(options)]
    monkeypatch.setattr(fast, "settings", dataclasses.replace(fast.settings, engine_batch=4))
    together = results(fast, prepared)
    monkeypatch.setattr(fast, "settings", dataclasses.replace(fast.settings, engine_batch=1))
    assert len({result.levels for result in together}) >= 3
    assert sum(len(result.detections) for result in together) >= 40
    for image, result, expected in zip(prepared, together, results(mogface, prepared), strict=True):
        assert_same(result, expected.detections.boxes, expected.detections.scores)
        assert result.levels == expected.levels
        [alone] = results(fast, [image])
        assert np.array_equal(alone.detections.boxes, result.detections.boxes)
        assert np.array_equal(alone.detections.scores, result.detections.scores)


def test_skipping_levels_changes_nothing(fast: MogFace, picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    image = fast.prepare(picture(96, 128, 1), dataclasses.replace(RELEASED, score_threshold=0.9))
    [skipped] = results(fast, [image])
    monkeypatch.setattr(fast, "settings", dataclasses.replace(fast.settings, level_skipping=False))
    [whole] = results(fast, [image])
    assert set(skipped.levels) < set(whole.levels)
    assert len(whole.detections) >= 2
    assert np.array_equal(skipped.detections.boxes, whole.detections.boxes)


def test_levels_of_too_small_faces_are_not_even_made(
    fast: MogFace, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from handler.engines import winograd

    taken: list[str] = []
    take: Callable[..., torch.Tensor] = winograd._Image.take

    def noted(self: object, each: Port) -> torch.Tensor:
        taken.append(each.spec.name)
        return take(self, each)

    monkeypatch.setattr(winograd._Image, "take", noted)
    options = dataclasses.replace(RELEASED, score_threshold=1.0, min_face_size=50)
    results(fast, [fast.prepare(picture(96, 128, 1), options)])
    assert [name for name in taken if name != "scores"] == ["p4", "p5", "p6", "p7"]


def test_landmarks_are_those_of_ort(
    winograd_folder: Path, mogface_folder: Path, settings: Settings, astronaut: Uint8
) -> None:
    boxes = np.array([[181, 58, 270, 178], [300, 300, 340, 350]], np.float32)
    found = []
    for engine, folder in (("winograd", winograd_folder), ("ort", mogface_folder)):
        stage = LandmarkStage(engines.load(dataclasses.replace(settings, engine=engine), folder, "centerface", CPU))
        [points] = stage.find([(astronaut, boxes)])
        assert isinstance(points, np.ndarray)
        found.append(points)
    assert np.isfinite(found[1][0]).all()
    np.testing.assert_allclose(found[0], found[1], atol=0.01, rtol=0)
