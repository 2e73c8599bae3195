"""CenterFace behind the handler that TorchServe's tutorials show: what this project's own is compared with.

It travels alone: it imports nothing of this project.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image
from ts.torch_handler.base_handler import BaseHandler

SIDE, STRIDE, THRESHOLD, OVERLAP = 160, 4, 0.25, 0.3


class PlainHandler(BaseHandler):  # type: ignore[misc]
    """Decodes, detects and answers the images of a batch one after the other."""

    def initialize(self, context: Any) -> None:
        """Load the graph."""
        folder = Path(context.system_properties["model_dir"])
        self.session = onnxruntime.InferenceSession(folder / "centerface.onnx", providers=["CPUExecutionProvider"])
        self.initialized = True

    def preprocess(self, data: list[dict[str, Any]]) -> list[Image.Image]:
        """Bytes -> pictures."""
        images = []
        for row in data:
            image = row.get("data") or row.get("body") or row["image"]
            images.append(Image.open(io.BytesIO(image)).convert("RGB"))
        return images

    def inference(self, data: list[Image.Image]) -> list[Any]:
        """Pictures -> faces."""
        return [self.detect(image) for image in data]

    def postprocess(self, data: list[Any]) -> list[Any]:
        """Faces -> answers."""
        return data

    def detect(self, image: Image.Image) -> list[list[float]]:
        """One picture -> its faces: x1 y1 x2 y2 in px, score."""
        pixels = np.asarray(image.resize((SIDE, SIDE)))[None]
        heat, size, offset, _ = self.session.run(["heatmap", "size", "offset", "points"], {"image": pixels})
        found = []
        for y, x in zip(*np.nonzero(heat[0, 0] > THRESHOLD), strict=True):
            height, width = np.exp(size[0, :, y, x]) * STRIDE
            centre_y, centre_x = (np.array([y, x]) + offset[0, :, y, x] + 0.5) * STRIDE
            box = np.array([centre_x - width / 2, centre_y - height / 2, centre_x + width / 2, centre_y + height / 2])
            found.append((box, heat[0, 0, y, x]))
        found.sort(key=lambda face: -face[1])
        kept: list[Any] = []
        for box, score in found:
            if all(overlap(box, other) < OVERLAP for other, _ in kept):
                kept.append((box, score))
        to_image = np.array([image.width, image.height] * 2) / SIDE
        return [[*(box * to_image).round(2).tolist(), round(float(score), 4)] for box, score in kept]


def overlap(first: Any, second: Any) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    shared = np.prod(np.maximum(sides, 0))
    return float(shared / (np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]) - shared))
