"""A real TorchServe with three models, scraped by a real Prometheus: counts by PromQL, dashboard, alerts.

The cards are pretended: the front end counts two by CUDA_VISIBLE_DEVICES, and the workers' ``pynvml`` is openly a fake.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from archive import properties
from archive.build import VERSION, Workspace, export_centerface
from archive.pack import Recipe, pack, read_settings
from archive.server import Server
from handler.config import Settings
from handler.detectors.mogface import GRAPHS
from handler.metrics import declared
from tests import fake_pynvml
from tests.deploy.conftest import Prometheus, Watch
from tests.photographs import ASTRONAUT, HOPPER
from tests.serving.conftest import ROOT, Start

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "mogface.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}


@pytest.fixture(scope="module")
def store(
    workspace: Workspace,
    centerface_mar: Path,
    mogface_folder: Path,
    settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """CenterFace, MogFace, and ``late``: CenterFace that gives each batch a nanosecond."""
    folder = tmp_path_factory.mktemp("three")
    shutil.copy(centerface_mar, folder)
    hurried = dataclasses.replace(read_settings(centerface_mar), deadline_s=1e-9)
    pack(Recipe("late", VERSION, hurried, export_centerface(workspace)), folder / "late.mar")
    graphs = {f"{graph}.onnx": mogface_folder / "graphs" / f"{graph}.onnx" for graph in GRAPHS}
    pack(Recipe("mogface", VERSION, dataclasses.replace(settings, device="auto"), graphs), folder / "mogface.mar")
    yield folder
    # pytest keeps the folders of its last runs, and this file is large.
    (folder / "mogface.mar").unlink()


@pytest.fixture(scope="module")
def server(start: Start, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    fakes = tmp_path_factory.mktemp("fakes")
    shutil.copy(fake_pynvml.__file__, fakes / "pynvml.py")
    models = properties.models(properties.read(ROOT / "config.properties"))
    models["late"] = models["centerface"]
    return start(
        "centerface",
        "mogface",
        "late",
        changes={"model_store": str(store), "models": json.dumps(models)},
        env={"PYTHONPATH": str(fakes), "CUDA_VISIBLE_DEVICES": "0,1"},
    )


def _send(server: Server, model: str, headers: dict[str, str] | None = None, **body: Any) -> int:
    address = f"{server.inference}/predictions/{model}"
    return httpx.post(address, headers=server.headers() | (headers or {}), timeout=120, **body).status_code


def _plain() -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.full((120, 160, 3), 128, np.uint8)).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def asked(server: Server, watch: Watch) -> Prometheus:
    """Asked after the first scrape, so that rates see it; the front end's own series begin with a first request."""
    assert _send(server, "centerface", content=b"no picture") == 400
    prometheus = watch(server)
    prometheus.reaches("sum by (job) (up)", {"mogface": 1})
    photograph = HOPPER.path.read_bytes()
    parts = {"image1": photograph, "image2": b"no picture"}
    sent = [
        _send(server, "centerface", content=photograph),
        _send(server, "centerface", content=photograph),
        _send(server, "centerface", content=_plain()),
        _send(server, "centerface", content=b"no picture"),
        _send(server, "centerface", {"X-Face-Max-Faces": "0"}, content=photograph),
        _send(server, "centerface", files=parts),
        _send(server, "late", content=photograph),
        _send(server, "mogface", {"X-Face-Landmarks": "true"}, content=ASTRONAUT.path.read_bytes()),
    ]
    assert sent == [200, 200, 200, 400, 400, 200, 503, 200]
    prometheus.reaches("count(sum by (model) (mogface_requests_total) > 0)", {"": 3})
    # A worker hands its counts over once a second, and is scraped once a second: what is counted twice shows now.
    time.sleep(4)
    return prometheus


def test_requests_by_outcome(asked: Prometheus) -> None:
    assert asked.query("sum by (model, outcome) (mogface_requests_total) > 0") == {
        "centerface ok": 4,
        "centerface invalid_image": 2,
        "centerface invalid_option": 1,
        "late deadline": 1,
        "mogface ok": 1,
    }


def test_images_by_outcome(asked: Prometheus) -> None:
    assert asked.query("sum by (model, outcome) (mogface_images_total) > 0") == {
        "centerface ok": 4,
        "centerface invalid_image": 3,
        "late deadline": 1,
        "mogface ok": 1,
    }


def test_faces_canvases_and_sizes(asked: Prometheus) -> None:
    assert asked.query('sum by (model) (mogface_faces_total{model!="mogface"})') == {"centerface": 3, "late": 0}
    canvases = asked.query('sum by (canvas) (mogface_canvases_total{model="centerface"}) > 0')
    assert canvases == {"640x640": 3, "384x640": 1}
    buckets = asked.query('sum by (le) (mogface_batch_requests_bucket{model="centerface"})')
    assert buckets == dict.fromkeys(("1", "2", "4", "8", "16", "32", "64", "+Inf"), 7)
    assert asked.query("sum by (model) (mogface_run_images_sum)") == {"centerface": 4, "late": 0, "mogface": 1}


def test_stages_and_levels(asked: Prometheus) -> None:
    assert asked.query('sum by (stage) (mogface_stage_seconds_count{model="mogface"})') == dict.fromkeys(
        (
            "decode",
            "preprocess",
            "network",
            "trunk",
            "score_head",
            "box_head",
            "postprocess",
            "landmarks",
            "encode",
        ),
        1.0,
    )
    assert asked.query("sum by (level) (mogface_levels_total)") == dict.fromkeys(
        ("4", "8", "16", "32", "64", "128"), 1.0
    )
    quantile = 'histogram_quantile(0.5, sum by (le) (mogface_stage_seconds_bucket{model="mogface",stage="network"}))'
    mean = 'sum(mogface_stage_seconds_sum{model="mogface",stage="network"})'
    [median], [exact] = asked.query(quantile).values(), asked.query(mean).values()
    # One observation: the quantile lies in its bucket, whose bounds are at most five times apart.
    assert median / 5 < exact < median * 5


def test_cards_and_workers(asked: Prometheus) -> None:
    # Read every five seconds.
    asked.reaches("sum(mogface_gpu_workers)", {"": 3})
    assert sorted(asked.query("sum by (gpu) (mogface_gpu_workers)").values()) == [1, 2]
    assert asked.query("max by (gpu) (mogface_gpu_utilization_ratio)") == {"0": 0.42, "1": 0.07}
    assert asked.query("max by (gpu) (mogface_gpu_memory_used_bytes)") == {"0": 20e9, "1": 79e9}
    assert asked.query("max by (gpu) (mogface_gpu_temperature_celsius)") == {"0": 51, "1": 88}
    starts = asked.query("sum by (model) (mogface_worker_starts_total)")
    assert starts == {"centerface": 1, "mogface": 1, "late": 1}


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_every_expression_of_the_dashboard_shows_something(place: str, asked: Prometheus) -> None:
    expression = EXPRESSIONS[place].replace("$model", ".*").replace("$__rate_interval", "30m")
    assert "$" not in expression
    deadline = time.monotonic() + 30
    while not (found := asked.query(expression)):
        assert time.monotonic() < deadline, expression
        time.sleep(0.5)
    # A quantile or a mean of a model that was not asked is none.
    assert any(value == value for value in found.values()), found


def test_the_dashboard_shows_every_metric_there_is(asked: Prometheus) -> None:
    scraped = {name for name in asked.get("label/__name__/values") if name.startswith("mogface_")}
    assert scraped == set(declared())
    shown = {name for expression in EXPRESSIONS.values() for name in re.findall(r"\bmogface_\w+", expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in scraped}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == families


def test_every_metric_that_an_alert_asks_is_scraped(asked: Prometheus) -> None:
    scraped = set(asked.get("label/__name__/values"))
    [group] = asked.get("rules")["groups"]
    assert all(rule["health"] == "ok" for rule in group["rules"])
    names = {
        name
        for rule in group["rules"]
        for name in re.findall(r"\b(?:mogface_|ts_|Requests)\w+|\bup\b", re.sub(r'"[^"]*"', "", rule["query"]))
        # Names of labels, within by (...).
        if name not in ("model_name",)
    }
    assert len(names) > 10
    assert names <= scraped


def test_the_missed_deadline_fires_its_alert_and_no_worker_s_or_server_s(asked: Prometheus) -> None:
    deadline = time.monotonic() + 60
    firing: Callable[[], set[str]] = lambda: {  # noqa: E731
        alert["labels"]["alertname"] for alert in asked.get("alerts")["alerts"] if alert["state"] == "firing"
    }
    while not firing():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert "MogFaceDeadlineMisses" in firing()
    # Others may come with time: one answer in ten is an error here, and a card that is a fake is hot.
    assert not firing() & {"MogFaceDown", "MogFaceNotWatched", "MogFaceNotAnswering", "MogFaceWorkerRestarts"}
