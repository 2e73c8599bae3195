from __future__ import annotations

import numpy as np
import pytest
import torch

from handler.anchors import STRIDES, decode, grid
from handler.geometry import Canvas

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [(1, 1), (33, 75), (97, 130), (129, 5), (96, 128), (480, 640)])
def test_anchors_are_the_released_ones_bit_for_bit(size: tuple[int, int]) -> None:
    from modelscope.models.cv.face_detection.mogface.models.utils import MogPriorBox

    expected = MogPriorBox(scale_list=[0.68])(*size)
    cells = grid(Canvas(*size), CPU)
    assert cells.anchors.dtype == torch.float32
    assert np.array_equal(cells.anchors.numpy(), expected)
    lengths = [part.stop - part.start for part in cells.levels]
    assert lengths == [-(-size[0] // stride) * -(-size[1] // stride) for stride in STRIDES]
    assert cells.levels[-1].stop == len(expected)


def test_boxes_are_the_released_ones_bit_for_bit() -> None:
    from modelscope.models.cv.face_detection.mogface.models.utils import mogdecode

    anchors = grid(Canvas(97, 130), CPU).anchors
    offsets = torch.randn(anchors.shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(decode(offsets, anchors), mogdecode(offsets, anchors))


def test_a_canvas_is_laid_out_once() -> None:
    assert grid(Canvas(64, 96), CPU) is grid(Canvas(64, 96), CPU)
