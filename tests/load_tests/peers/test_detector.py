"""The peers' detectors find what this project's do."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from archive.build import Workspace, export_centerface
from handler.geometry import Uint8
from load_tests.peers import compare, detector
from tests.oracle import Oracle
from tests.photographs import ASTRONAUT, iou

Picture = Callable[[int, int, int], Uint8]


def _folder(kind: str, weights: Path, folder: Path) -> Path:
    (folder / "peer.json").write_text(json.dumps({"detector": kind, "weights": weights.name}))
    (folder / weights.name).symlink_to(weights)
    return folder


def _png(array: Uint8) -> bytes:
    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG")
    return data.getvalue()


def test_modelscopes_is_the_oracle(weights_file: Path, oracle: Oracle, picture: Picture, tmp_path: Path) -> None:
    image = picture(96, 128, 3)
    found = detector.load(_folder("mogface", weights_file, tmp_path)).detect(_png(image))
    expected = oracle.detect(image)
    assert len(expected) > 5
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


def test_centerface_finds_the_face(tmp_path: Path) -> None:
    graph = export_centerface(Workspace(Path("build"), tmp_path))["centerface.onnx"].resolve()
    with Image.open(ASTRONAUT.path) as file:
        found = detector.load(_folder("centerface", graph, tmp_path)).detect(_png(np.asarray(file.convert("RGB"))))
    assert len(found) == 1
    assert iou(found[0, :4], ASTRONAUT.box) > 0.8
    assert found[0, 4] == pytest.approx(0.9288, abs=0.001)
    body = detector.answer(found).decode()
    assert compare.disagreement(compare.faces(body, 512, 512), found) == 0
