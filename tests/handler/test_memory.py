from __future__ import annotations

import pytest

from handler import memory
from handler.errors import EnvironmentFault
from handler.geometry import Canvas
from handler.plans import Range
from tests.handler.test_plans import sidecar

RANGE = {"image": Range((1, 32, 32, 3), (1, 32, 32, 3), (1, 32, 32, 3))}
TRUNK = sidecar(
    graph="trunk", profiles=(RANGE,), outputs=dict.fromkeys(("p2", "p3", "p4", "p5", "p6", "p7"), "float16")
)
SCORE = sidecar(device_memory=5000)
BOX = sidecar(graph="box_head", outputs={"offsets": "float32"}, device_memory=3000)
POINTS = sidecar(
    graph="centerface", outputs=dict.fromkeys(("heatmap", "size", "offset", "points"), "float32"), device_memory=None
)


def test_by_hand() -> None:
    """One canvas of 64x96: 16x24, 8x12, 4x6, 2x3, 1x2 and 1x1 cells."""
    cells = 384 + 96 + 24 + 6 + 2 + 1
    image = 64 * 96 * 3
    found = memory.need("mogface", [TRUNK, SCORE, BOX], [Canvas(32, 32), Canvas(64, 96)], 3, base=7)
    assert found.tensors == 3 * (image + cells * 256 * 2 + cells * (4 + 512 * 2) + cells * 4 * 4)
    assert (found.base, found.plans, found.scratch, found.unknown) == (7, 3 * 600, 5000, ())
    assert found.total == 7 + 1800 + 5000 + found.tensors


def test_what_is_recorded_is_there_twice() -> None:
    cells = 384 + 96 + 24 + 6 + 2 + 1
    plain = memory.need("mogface", [TRUNK, SCORE, BOX], [Canvas(64, 96)], 3)
    found = memory.need("mogface", [TRUNK, SCORE, BOX], [Canvas(64, 96)], 3, recorded=("trunk", "score_head"))
    trunk = 64 * 96 * 3 + cells * 256 * 2
    score_head = cells * 256 * 2 + cells * (4 + 512 * 2)
    assert found.tensors - plain.tensors == 3 * (trunk + score_head)


def test_landmarks_are_on_crops_and_centerface_on_canvases() -> None:
    """16 crops of 160x160 whatever the batch; the canvas, in quarters, where CenterFace is the detector."""
    crops = memory.need("mogface", [POINTS], [Canvas(640, 640)], 3)
    assert crops.tensors == 16 * (160 * 160 * 3 + 40 * 40 * 15 * 4)
    whole = memory.need("centerface", [POINTS], [Canvas(64, 96)], 3)
    assert whole.tensors == 3 * (64 * 96 * 3 + 16 * 24 * 15 * 4)
    assert whole.unknown == ("centerface",)
    assert "; without the scratch of centerface, not recorded)" in str(whole)


def test_require() -> None:
    needed = memory.Need(100 << 20, 200 << 20, 300 << 20, 424 << 20)
    memory.require(needed, 1024 << 20)
    parts = r"base 100 MiB, plans 200 MiB, scratch 300 MiB, tensors 424 MiB"
    text = rf"need 1,024 MiB of GPU memory \({parts}\), 1,023 MiB are free"
    with pytest.raises(EnvironmentFault, match=text):
        memory.require(needed, 1023 << 20)
