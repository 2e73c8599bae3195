"""CenterFace: the embedded detector, and the landmark stage of the other one.

Decoding follows the network's definition (CenterFace, arXiv:1911.03599): a heat map at a quarter of the
canvas, at each cell the logarithms of height and width, the centre's offset within the cell, and five
points relative to the box.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from handler import engines
from handler.config import Settings
from handler.detections import no_landmarks
from handler.detectors.base import TOP_K, Detector, Prepared, Result, Run, finish
from handler.errors import EngineError
from handler.geometry import Float32
from handler.nms import nms, rank

GRAPH = "centerface"
STRIDE = 4


class CenterFace(Detector):
    """CenterFace on one engine.

    Its graph takes ``image`` [N, H, W, 3] uint8 RGB, sides multiples of 32, and gives float32 ``heatmap``
    [N, 1, H/4, W/4], ``size`` [N, 2, ...] (h, w), ``offset`` [N, 2, ...] (y, x), ``points`` [N, 10, ...]
    (y, x alternating).
    """

    multiple = 32

    def __init__(self, settings: Settings, engine: engines.Engine) -> None:
        super().__init__(settings)
        self._engine = engine

    @classmethod
    def load(cls, folder: Path, settings: Settings, device: torch.device) -> CenterFace:
        """Out of an unpacked archive."""
        return cls(settings, engines.load(settings, folder, GRAPH, device))

    def _takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        return self._engine.takes(shapes)

    def _detect(self, images: list[Prepared]) -> list[Result]:
        started = time.perf_counter()
        batch = torch.from_numpy(np.stack([image.array for image in images]))
        maps = {name: tensor.cpu().numpy() for name, tensor in self._engine.run({"image": batch}).items()}
        network = time.perf_counter() - started
        run = Run(len(images), {"network": network})
        results = []
        for row, image in enumerate(images):
            started = time.perf_counter()
            options = image.options
            boxes, scores, points = decode(
                maps["heatmap"][row, 0],
                maps["size"][row],
                maps["offset"][row],
                maps["points"][row],
                options.score_threshold,
            )
            kept = nms(boxes, scores, options.nms_threshold)
            points = points[kept] if options.wants_landmarks else no_landmarks(len(kept))
            faces = finish(boxes[kept], scores[kept], points, image.placement, options)
            timing = {
                "preprocess": image.milliseconds,
                "network": network * 1000,
                "postprocess": (time.perf_counter() - started) * 1000,
                "landmarks": 0.0,
            }
            results.append(Result(faces, image.placement, timing, runs=(run,)))
        return results


def decode(
    heatmap: Float32, size: Float32, offset: Float32, points: Float32, threshold: float
) -> tuple[Float32, Float32, Float32]:
    """One image's maps -> boxes, scores and points over the threshold, by falling score.

    Args:
        heatmap: [h, w] float32, scores.
        size: [2, h, w] logarithms of height and width, in cells.
        offset: [2, h, w] y and x of the centre within its cell.
        points: [10, h, w] y and x of five points, in box heights and widths from the box's corner.
        threshold: scores must be over it.

    Returns:
        [N, 4] boxes, [N] scores, [N, 5, 2] points, float32, canvas px, not clipped; N <= 5000.

    Raises:
        EngineError: NaN in the heat map.
    """
    if np.isnan(heatmap).any():
        raise EngineError("the network gave scores that are not numbers")
    rows, columns = np.nonzero(heatmap > np.float32(threshold))
    scores = heatmap[rows, columns]
    order = rank(scores, TOP_K)
    rows, columns, scores = rows[order], columns[order], scores[order]
    height, width = np.exp(size[:, rows, columns]) * STRIDE
    shift_y, shift_x = offset[:, rows, columns]
    x1 = (columns + shift_x + 0.5) * STRIDE - width / 2
    y1 = (rows + shift_y + 0.5) * STRIDE - height / 2
    boxes = np.stack([x1, y1, x1 + width, y1 + height], axis=1).astype(np.float32)
    local = points[:, rows, columns]
    absolute = np.stack([local[1::2] * width + x1, local[0::2] * height + y1], axis=2)
    return boxes, scores, absolute.transpose(1, 0, 2).astype(np.float32)
