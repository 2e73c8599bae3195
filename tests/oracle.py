"""ModelScope's own MogFace, and what its boxes come to under this project's stated rules."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handler.geometry import Float32, Placement, Uint8

LEVELS = 6


class Oracle:
    """The released detector, on the CPU."""

    def __init__(self, weights: Path) -> None:
        from modelscope.models.cv.face_detection.mogface.models.detectors import MogFaceDetector

        self.detector: Any = MogFaceDetector(model_path=str(weights), device="cpu")

    def detect(self, array: Uint8) -> Float32:
        """[N, 5] boxes and scores in the pixels of ``array``, as released, but for its fault of dividing scores."""
        with torch.inference_mode():
            found = np.array(self.detector({"img": torch.from_numpy(array.astype(np.float32))}), np.float32)
        longest = max(array.shape[:2])
        if longest > 1500:
            found[:, 4] *= 1000.0 / longest
        return found

    def detect_without(self, array: Uint8, silent: Collection[int], score: float, overlap: float) -> Float32:
        """The same, at other thresholds and with the scores of the ``silent`` levels (0 is the finest) at zero."""
        from modelscope.models.cv.face_detection.mogface.models.utils import MogPriorBox, mogdecode, py_cpu_nms

        height, width = array.shape[:2]
        mean, deviation = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.120003, 57.375])
        pixels = ((array.astype(np.float32) - mean) / deviation / 255).astype(np.float32)
        with torch.inference_mode():
            scores, offsets = self.detector.net(torch.from_numpy(pixels.transpose(2, 0, 1)[None]))
        anchors = MogPriorBox(scale_list=[0.68])(height, width)
        flat = scores.numpy()[0, :, 0].copy()
        sizes = [-(-height // 2**k) * -(-width // 2**k) for k in range(2, 2 + LEVELS)]
        assert sum(sizes) == len(anchors)
        for level in silent:
            start = sum(sizes[:level])
            flat[start : start + sizes[level]] = 0
        boxes = mogdecode(offsets[0], torch.from_numpy(anchors)).numpy()
        over = np.flatnonzero(flat > score)
        over = over[np.argsort(-flat[over], kind="stable")][:5000]
        found = np.hstack([boxes[over], flat[over, None]]).astype(np.float32)
        kept: Float32 = found[py_cpu_nms(found, overlap)][:750]
        return kept


def to_source(found: Float32, placement: Placement) -> Float32:
    """Canvas boxes by the literal rule: divided by the scale, dropped where wholly outside, clipped."""
    height, width = placement.source
    rows = []
    for x1, y1, x2, y2, score in found.astype(np.float64):
        x1, x2 = x1 / placement.scale_x, x2 / placement.scale_x
        y1, y2 = y1 / placement.scale_y, y2 / placement.scale_y
        if x2 < 0 or y2 < 0 or x1 > width - 1 or y1 > height - 1:
            continue
        x1, x2 = min(max(x1, 0), width - 1), min(max(x2, 0), width - 1)
        y1, y2 = min(max(y1, 0), height - 1), min(max(y2, 0), height - 1)
        rows.append((x1, y1, x2, y2, score))
    return np.array(rows, np.float32).reshape(-1, 5)


Picture = Callable[..., Uint8]
