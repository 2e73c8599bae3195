from __future__ import annotations

import pytest

from archive.profiles import profiles
from handler import shapes
from handler.errors import ConfigError
from handler.geometry import Canvas
from handler.plans import Range

CANVASES = [Canvas.parse(text) for text in ("640x640", "480x640", "640x384", "960x1280", "1280x960")]


def test_the_trunk_s() -> None:
    """One profile for the canvases within the long side, one with few images for the large ones."""
    assert profiles("mogface", "trunk", CANVASES, 640, 8, 4) == (
        {"image": Range((1, 480, 384, 3), (8, 640, 640, 3), (8, 640, 640, 3))},
        {"image": Range((1, 960, 960, 3), (2, 960, 1280, 3), (2, 1280, 1280, 3))},
    )
    assert len(profiles("mogface", "trunk", CANVASES[:3], 640, 8, 4)) == 1


def test_the_heads() -> None:
    """One a level, the finest with a batch of its own."""
    found = profiles("mogface", "box_head", CANVASES[:3], 640, 8, 4)
    assert len(found) == 6
    assert found[0] == {"context": Range((1, 512, 120, 96), (4, 512, 160, 160), (4, 512, 160, 160))}
    assert found[5] == {"context": Range((1, 512, 4, 3), (8, 512, 5, 5), (8, 512, 5, 5))}
    assert profiles("mogface", "score_head", CANVASES[:3], 640, 2, 4)[0]["level"].max[0] == 2


def test_crops() -> None:
    crops = (16, 160, 160, 3)
    assert profiles("mogface", "centerface", CANVASES, 640, 8, 4) == ({"image": Range((1, 160, 160, 3), crops, crops)},)
    assert profiles("centerface", "centerface", CANVASES[:1], 640, 3, 1)[0]["image"].max == (3, 640, 640, 3)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("graph", ["trunk", "score_head", "box_head", "centerface"])
def test_every_canvas_has_its_place(graph: str, batch: int) -> None:
    found = profiles("mogface", graph, CANVASES, 640, batch, 4)
    for canvas in CANVASES:
        name, wanted = shapes.inputs("mogface", graph, canvas)
        for shape in wanted:
            assert any(each[name].covers((1, *shape)) for each in found)


def test_no_batch() -> None:
    with pytest.raises(ConfigError, match="finest_batch is 0"):
        profiles("mogface", "trunk", CANVASES, 640, 1, 0)
