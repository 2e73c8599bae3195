"""One photograph -> its faces, by the released code or by the plainest there is. It travels: no import of a project.

A folder's ``peer.json`` says which detector and which file of weights are meant.
"""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image


class Detector(Protocol):
    """What both are."""

    def detect(self, photograph: bytes) -> Any:
        """[N, 5] float32: x1 y1 x2 y2 in px and a score, of an encoded photograph."""


class ModelScope:
    """ModelScope's own MogFace, eager, on the CPU. Its thresholds are written into its code: 0.82 and 0.4."""

    label = "ModelScope's detector"

    def __init__(self, weights: Path) -> None:
        from modelscope.models.cv.face_detection.mogface.models.detectors import MogFaceDetector

        self._detector: Any = MogFaceDetector(model_path=str(weights), device="cpu")

    def detect(self, photograph: bytes) -> Any:
        """As Detector."""
        import torch

        # Without autograd, which the released pipeline leaves on: a tutorial would turn it off.
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(self._detector({"img": torch.from_numpy(_pixels(photograph).astype(np.float32))}))


class CenterFace:
    """CenterFace's graph by ONNX Runtime as it comes, decoded cell by cell. Sides must be multiples of 32."""

    label = "CenterFace in ONNX Runtime"
    _SCORE, _OVERLAP, _STRIDE = 0.5, 0.3, 4

    def __init__(self, weights: Path) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(weights), providers=["CPUExecutionProvider"])
        self._names = ["heatmap", "size", "offset"]

    def detect(self, photograph: bytes) -> Any:
        """As Detector."""
        heatmap, size, offset = self._session.run(self._names, {"image": _pixels(photograph)[None]})
        found = []
        for row, column in np.argwhere(heatmap[0, 0] > self._SCORE):
            height, width = np.exp(size[0, :, row, column]) * self._STRIDE
            y = (row + offset[0, 0, row, column] + 0.5) * self._STRIDE
            x = (column + offset[0, 1, row, column] + 0.5) * self._STRIDE
            score = heatmap[0, 0, row, column]
            found.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2, score])
        kept: list[list[float]] = []
        for face in sorted(found, key=lambda each: -each[4]):
            if all(_overlap(face, other) <= self._OVERLAP for other in kept):
                kept.append(face)
        return np.array(kept, np.float32).reshape(-1, 5)


_KINDS: dict[str, Any] = {"mogface": ModelScope, "centerface": CenterFace}


def load(folder: Path) -> Detector:
    """The detector that a folder's ``peer.json`` asks for, out of that folder."""
    peer = json.loads((folder / "peer.json").read_text(encoding="utf-8"))
    found: Detector = _KINDS[peer["detector"]](folder / peer["weights"])
    return found


def answer(found: Any) -> bytes:
    """Faces as JSON of this project's shape, so that one reader does for all systems."""
    faces = [{"box": row[:4], "score": row[4], "landmarks": None} for row in np.asarray(found).tolist()]
    return json.dumps({"faces": faces}).encode()


def _pixels(photograph: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(photograph)).convert("RGB"))


def _overlap(a: list[float], b: list[float]) -> float:
    """Intersection over union; corners count as inside."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    inside = max(0.0, width) * max(0.0, height)
    areas = [(each[2] - each[0] + 1) * (each[3] - each[1] + 1) for each in (a, b)]
    return float(inside / (sum(areas) - inside))
