"""Plans in an archive, and a real TorchServe that runs them: on the CPU, by a TensorRT that is openly a fake."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import httpx
import pytest

from archive.build import VERSION, Workspace, export_centerface
from archive.engine import Order
from archive.pack import Recipe, pack, read_settings
from archive.server import Server
from tests.fake_plans import as_tensorrt, fake_plans
from tests.photographs import ASTRONAUT, HOPPER, Portrait, iou
from tests.serving.conftest import Start

NAME = "centerface"


@pytest.fixture(scope="module")
def trt_server(
    start: Start, workspace: Workspace, centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """One worker on an archive with plans in the place of graphs."""
    folder = as_tensorrt(tmp_path_factory.mktemp("fake"))
    settings = dataclasses.replace(read_settings(centerface_mar), engine="trt", engine_batch=4)
    graphs = {Path(name).stem: path for name, path in export_centerface(workspace).items()}
    order = Order(NAME, settings.canvases, settings.long_side, batch=2)
    plans = fake_plans(graphs, order, folder / "plans")
    store = tmp_path_factory.mktemp("trt-store")
    pack(Recipe(NAME, VERSION, settings, {}, [plans]), store / f"{NAME}.mar")
    return start(NAME, changes={"model_store": str(store)}, env={"PYTHONPATH": str(folder)})


@pytest.mark.parametrize("portrait", [ASTRONAUT, HOPPER], ids=["astronaut", "hopper"])
def test_a_portrait_s_face(trt_server: Server, portrait: Portrait) -> None:
    answer = httpx.post(
        f"{trt_server.inference}/predictions/{NAME}",
        headers=trt_server.headers(),
        content=portrait.path.read_bytes(),
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    [face] = answer.json()["faces"]
    assert iou(face["box"], portrait.box) > 0.8
    assert answer.json()["model"]["engine"] == "trt"
