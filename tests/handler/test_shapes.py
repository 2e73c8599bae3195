from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from handler import shapes
from handler.anchors import grid
from handler.detectors.mogface import MogFace
from handler.errors import ConfigError
from handler.geometry import Canvas, Uint8
from tests.handler.fake import CPU


def test_levels_are_the_anchors_and_the_trunk_s(mogface: MogFace, picture: Callable[..., Uint8]) -> None:
    canvas = Canvas(96, 128)
    found = shapes.levels(canvas)
    assert [h * w for h, w in found] == [each.stop - each.start for each in grid(canvas, CPU).levels]
    features = mogface._trunk.run({"image": torch.from_numpy(picture(*canvas)[None])})
    name, expected = shapes.inputs("mogface", "score_head", canvas)
    assert [tuple(feature.shape[1:]) for feature in features.values()] == list(expected)
    context = mogface._score_head.run({name: features["p4"]})["context"]
    assert tuple(context.shape[1:]) == shapes.inputs("mogface", "box_head", canvas)[1][2]


def test_images_and_crops() -> None:
    canvas = Canvas(480, 640)
    assert shapes.inputs("mogface", "trunk", canvas) == ("image", ((480, 640, 3),))
    assert shapes.inputs("centerface", "centerface", canvas) == ("image", ((480, 640, 3),))
    assert shapes.inputs("mogface", "centerface", canvas) == ("image", ((160, 160, 3),))
    assert np.prod(shapes.levels(canvas)[-1]) == 4 * 5


def test_no_such_graph() -> None:
    with pytest.raises(ConfigError, match="graph is 'tail'"):
        shapes.inputs("mogface", "tail", Canvas(32, 32))
