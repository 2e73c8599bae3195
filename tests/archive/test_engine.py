"""Plans by the fake TensorRT, for what surrounds the library, and by TensorRT-RTX itself, ahead of time."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from archive import engine, precision
from archive.engine import AHEAD, Builder, Order, build
from archive.files import sha256
from archive.parity import TOLERANCES
from handler import plans
from handler.config import PRECISIONS, Settings
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError, ConfigError, EnvironmentFault
from handler.geometry import Canvas
from handler.plans import Flags, Range, Sidecar
from tests import fake_tensorrt as fake
from tests.fake_plans import PROFILES, AnyBuilder, doubled_plan, fake_plans
from tests.handler.engine_contract import doubled
from tests.photographs import compose
from tests.requirements import lacking

CANVASES = [Canvas(128, 128), Canvas(96, 128)]
ORDER = Order("mogface", CANVASES, 128, batch=2, finest_batch=1)
ANY = Order("centerface", [Canvas(32, 32)], 32)
#: Most bytes that a plan holds beside its weights: up to 13 MB were seen. The least of the heads' weights, INT8, once
#: for each of the six profiles would be over it.
OWN = 16 << 20


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    fake.FAULTS.clear()


def test_a_plan_and_its_sidecar(tmp_path: Path) -> None:
    graph = doubled(tmp_path / "doubled.onnx")
    order = dataclasses.replace(ANY, flags=Flags(2, 1 << 28, sparse=True))
    place = fake_plans({"doubled": graph}, order, tmp_path, PROFILES[:1], fake.Host())
    assert place.name == "sm00-tensorrt0.0.fake-fp32"
    assert sorted(path.name for path in place.iterdir()) == ["doubled.json", "doubled.plan"]
    sidecar = plans.read(place)["doubled"]
    assert (sidecar.profiles, sidecar.flags, sidecar.outputs) == (PROFILES[:1], order.flags, {"y": "float32"})
    assert sidecar.device_memory == 4096
    assert sidecar.graph_sha256 == sha256(graph)
    assert [path.name for path in (tmp_path / "timing").iterdir()] == ["sm00-tensorrt0.0.fake.cache"]


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    """Unless the graph, the order or the plan changed, or it was never compared."""
    graphs = {"doubled": doubled(tmp_path / "doubled.onnx")}
    cache = tmp_path / "timing" / "sm00-tensorrt0.0.fake.cache"

    def builds(order: Order = ANY, **options: Any) -> bool:
        before = cache.read_bytes() if cache.exists() else b""
        fake_plans(graphs, order, tmp_path, PROFILES[:1], **options)
        return cache.read_bytes() != before

    assert builds()
    assert not builds()
    assert builds(device=fake.Host())
    assert not builds(device=fake.Host())
    assert not builds()
    assert builds(dataclasses.replace(ANY, flags=Flags(1)))
    model = onnx.load(graphs["doubled"])
    model.doc_string = "another"
    onnx.save(model, str(graphs["doubled"]))
    assert builds(dataclasses.replace(ANY, flags=Flags(1)))
    plan = tmp_path / "sm00-tensorrt0.0.fake-fp32" / "doubled.plan"
    plan.write_bytes(plan.read_bytes()[:-1])
    assert builds(dataclasses.replace(ANY, flags=Flags(1)))


@pytest.mark.parametrize("fault", ["rows", "nan", "refuse"])
def test_a_plan_that_answers_otherwise_is_refused(fault: str, tmp_path: Path) -> None:
    fake.FAULTS.add(fault)
    graph = doubled(tmp_path / "doubled.onnx")
    with pytest.raises(ArtifactError, match="the plan of doubled does not answer as ONNX Runtime does, profile 0: "):
        fake_plans({"doubled": graph}, ANY, tmp_path, PROFILES[:1], fake.Host())
    assert not list(tmp_path.rglob("doubled.json"))
    assert not list(tmp_path.rglob("doubled.plan"))


def test_parity_of_a_network(tmp_path: Path, workspace: Any) -> None:
    """CenterFace, at two sizes, in batches."""
    from archive.build import export_centerface

    graphs = {Path(name).stem: path for name, path in export_centerface(workspace).items()}
    order = Order("centerface", [Canvas(64, 96), Canvas(96, 128)], 96, batch=2)
    place = fake_plans(graphs, order, tmp_path, device=fake.Host())
    sidecar = plans.read(place)["centerface"]
    assert len(sidecar.profiles) == 2
    assert sidecar.device_memory == 8192


def test_all_errors_of_the_parser_are_told(tmp_path: Path) -> None:
    bad = tmp_path / "doubled.onnx"
    bad.write_bytes(b"no graph")
    with pytest.raises(ArtifactError, match="fake: the graph cannot be read; "):
        fake_plans({"doubled": bad}, ANY, tmp_path, PROFILES[:1])


def test_a_profile_that_does_not_fit(tmp_path: Path) -> None:
    graph = doubled(tmp_path / "doubled.onnx")
    with pytest.raises(ArtifactError, match=r"cannot build the plan: fake: profile \(1, 9\)"):
        fake_plans({"doubled": graph}, ANY, tmp_path, PROFILES[1:])


def test_a_gpu_is_needed_unless_a_target_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "libraries", lambda names: dict.fromkeys(names, fake))
    with pytest.raises(EnvironmentFault, match="needs a GPU"):
        build({}, ANY, tmp_path)
    with pytest.raises(ConfigError, match="tensorrt builds on the GPU"):
        build({}, ANY, tmp_path, library_name="tensorrt", targets=["sm86"])
    with pytest.raises(ConfigError, match="library is 'onnx'"):
        build({}, ANY, tmp_path, library_name="onnx")


def test_no_sm90_ahead_of_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no target for SM90.*H100 and H200 need TensorRT itself"):
        build({}, ANY, tmp_path, targets=["sm90"])
    with pytest.raises(ConfigError, match=r"target is 'sm70': expected one of sm75, sm80, sm86, sm89$"):
        build({}, ANY, tmp_path, targets=["sm86", "sm70"])


# What follows runs NVIDIA's own parser and builder. Without a GPU a plan cannot be loaded: these tests prove types,
# shapes and profiles, and neither numbers nor speed.


@pytest.fixture(scope="session")
def rtx() -> Any:
    if importlib.util.find_spec("tensorrt_rtx") is None:
        lacking("tensorrt_rtx", "pip install -e '.[tensorrt-rtx]'")
    return engine.library("tensorrt_rtx")[1]


@pytest.fixture(scope="session")
def network(mogface_folder: Path) -> dict[str, Path]:
    graphs = {path.stem: path for path in sorted((mogface_folder / "graphs").glob("*.onnx"))}
    assert len(graphs) == 4
    return graphs


@pytest.fixture(scope="session")
def converted(
    network: Mapping[str, Path], settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Path]]:
    """The four graphs in a precision, made once."""

    @functools.cache
    def convert(kind: str) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp(kind)
        (folder / "pictures").mkdir()
        for seed in range(2):
            Image.fromarray(compose(seed, 96, 128)[0]).save(folder / "pictures" / f"{seed}.png")
        graphs = {f"{name}.onnx": path for name, path in network.items()}
        made = precision.convert(graphs, folder, kind, calibration=folder / "pictures", settings=settings)
        return {Path(name).stem: path for name, path in made.items()}

    return convert


@pytest.mark.parametrize("kind", PRECISIONS)
@pytest.mark.parametrize("target", AHEAD)
def test_all_graphs_ahead_of_time(
    rtx: Any, converted: Callable[[str], dict[str, Path]], target: str, kind: str, tmp_path: Path
) -> None:
    graphs = converted(kind)
    [place] = build(graphs, dataclasses.replace(ORDER, precision=kind), tmp_path, targets=[target])
    sidecars = plans.read(place)
    assert set(sidecars) == set(graphs)
    assert place.name == f"{target}-tensorrt_rtx{rtx.__version__}-{kind}"
    for name, sidecar in sidecars.items():
        assert sidecar.device_memory is None
        # Weights lie in it once, whatever the number of profiles.
        assert len(sidecar.read(place)) < 1.3 * graphs[name].stat().st_size + OWN
        (place / f"{name}.plan").unlink()
    assert [len(sidecars[name].profiles) for name in ("trunk", "score_head", "box_head", "centerface")] == [1, 6, 6, 1]


@pytest.mark.usefixtures("rtx")
def test_a_backbone_in_fp32_builds(network: Mapping[str, Path], tmp_path: Path) -> None:
    """FP32 and FP16 in one strongly typed network."""
    source = {"trunk.onnx": network["trunk"]}
    [graph] = precision.convert(source, tmp_path, "fp16", fp32_layers="backbone").values()
    order = dataclasses.replace(ORDER, precision="fp16")
    [place] = build({"trunk": graph}, order, tmp_path / "plans", targets=["sm86"])
    sidecar = plans.read(place)["trunk"]
    assert set(sidecar.outputs.values()) == {"float16"}
    # As typed: were all of it FP16 or FP32, it would be a third smaller or a ninth larger.
    assert 0.98 < len(sidecar.read(place)) / graph.stat().st_size < 1.08
    for path in (graph, place / "trunk.plan"):
        path.unlink()


def test_rtx_refuses_a_profile_that_does_not_fit(rtx: Any, network: Mapping[str, Path], tmp_path: Path) -> None:
    """Four channels for a picture's three."""
    builder = AnyBuilder("tensorrt_rtx", rtx, ORDER, tmp_path, "sm86")
    shape = (1, 160, 160, 4)
    builder.given = [{"image": Range(shape, shape, shape)}]
    with pytest.raises(ArtifactError, match=r"(?i)tensorrt_rtx cannot build the plan: .*dimension mismatch.*image"):
        builder.build({"centerface": network["centerface"]})
    assert not list(tmp_path.rglob("*.plan"))


def test_rtx_tells_what_its_parser_cannot_read(rtx: Any, tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"], domain="nowhere")]
    graph = helper.make_graph(nodes, "unknown", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    path = tmp_path / "unknown.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    with pytest.raises(ArtifactError, match=r"does not take the graph: .*NoSuchOperator"):
        Builder("tensorrt_rtx", rtx, ORDER, tmp_path, "sm86").build({"centerface": path})


def test_rtx_refuses_a_crop_under_an_if(rtx: Any, network: Mapping[str, Path], tmp_path: Path) -> None:
    """As the released network has it: why the export's crops are unconditional."""
    path = _conditional(network["trunk"], tmp_path / "conditional.onnx")
    with pytest.raises(ArtifactError, match="tensorrt_rtx cannot build the plan: "):
        Builder("tensorrt_rtx", rtx, ORDER, tmp_path, "sm86").build({"trunk": path})
    assert not list(tmp_path.rglob("*.plan"))


def _conditional(trunk: Path, path: Path) -> Path:
    """The trunk, its crops to a lateral's height only where the height is another."""
    model = onnx.load(str(trunk))
    nodes = []
    for node in model.graph.node:
        if node.op_type != "Slice" or node.input[0].endswith("Slice_output_0"):
            nodes.append(node)
            continue
        source, height, name = node.input[0], node.input[2], node.output[0]
        crop = onnx.NodeProto()
        crop.CopyFrom(node)
        crop.output[0] = f"{name}.cropped"
        keep = helper.make_node("Identity", [source], [f"{name}.kept"])
        branches = [
            helper.make_graph(
                [each], each.output[0], [], [helper.make_tensor_value_info(each.output[0], TensorProto.FLOAT, None)]
            )
            for each in (keep, crop)
        ]
        nodes += [
            helper.make_node("Shape", [source], [f"{name}.given"], start=2, end=3),
            helper.make_node("Equal", [f"{name}.given", height], [f"{name}.equal"]),
            helper.make_node("Squeeze", [f"{name}.equal"], [f"{name}.same"]),
            helper.make_node("If", [f"{name}.same"], [name], then_branch=branches[0], else_branch=branches[1]),
        ]
    assert sum(node.op_type == "If" for node in nodes) == 3
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, str(path))
    # A sound graph: ONNX Runtime loads it.
    OrtEngine(path, torch.device("cpu"), 1)
    return path


def test_precisions_have_tolerances() -> None:
    from handler.config import PRECISIONS as ALL

    assert set(TOLERANCES) == set(ALL)


def test_sidecar_of_another_format_is_built_again(tmp_path: Path) -> None:
    _, sidecar = doubled_plan(tmp_path)
    note = tmp_path / str(sidecar.target) / "doubled.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"format": 0}))
    doubled_plan(tmp_path)
    assert Sidecar.load(note) == sidecar
