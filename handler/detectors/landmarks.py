"""Five points for each face of another detector: CenterFace on one small crop a face.

All crops have one size, so the faces of any number of images run together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from handler import exhaustion
from handler.detections import no_landmarks
from handler.detectors.centerface import decode
from handler.engines import Engine
from handler.errors import DeadlineExceeded, EngineError, MogFaceError, OutOfMemory
from handler.geometry import Float32, Uint8
from handler.nms import nms

#: Side of a crop as the network sees it, px.
SIDE = 160
#: What a crop shows beyond each side of the face, as a share of the face's own side.
MARGIN = 0.3
#: Crops that run together.
BATCH = 16
#: CenterFace's own settings.
SCORE = 0.5
OVERLAP = 0.3


@dataclass(frozen=True)
class _Crop:
    """A face and its surroundings; ``origin`` + crop point * ``step`` is a source point, each (x, y)."""

    array: Uint8
    origin: Float32
    step: Float32
    box: Float32


class LandmarkStage:
    """CenterFace's graph (see :mod:`handler.detectors.centerface`), one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, images: Sequence[tuple[Uint8, Float32]], deadline: float = math.inf) -> list[Float32 | MogFaceError]:
        """The points of every face of every image.

        Args:
            deadline: of ``time.monotonic()``; images with crops not begun by then get DeadlineExceeded.
            images: each [H, W, 3] uint8 RGB, upright, and its faces' boxes [N, 4] float32, source px, inside it.

        Returns:
            For each image [N, 5, 2] float32 in source px, NaN for a face without; or the error that its crops met.
        """
        found: list[Float32 | MogFaceError] = [no_landmarks(len(boxes)) for _, boxes in images]
        faces = [(index, face) for index, (_, boxes) in enumerate(images) for face in range(len(boxes))]
        for start in range(0, len(faces), BATCH):
            part = faces[start : start + BATCH]
            if time.monotonic() > deadline:
                for index, _ in faces[start:]:
                    found[index] = DeadlineExceeded("landmarks were not begun in time: ask for fewer faces, or none")
                break
            crops = [_cut(images[index][0], images[index][1][face]) for index, face in part]
            for (index, face), points in zip(part, self._attempt(crops), strict=True):
                target = found[index]
                if isinstance(points, EngineError):
                    found[index] = points
                elif not isinstance(target, MogFaceError):
                    target[face] = points
        return found

    def _attempt(self, crops: list[_Crop]) -> list[Float32 | EngineError]:
        """[5, 2] source points a crop; a failure of several is tried again one by one."""
        try:
            maps = self._engine.run({"image": torch.from_numpy(np.stack([crop.array for crop in crops]))})
            arrays = {name: tensor.float().cpu().numpy() for name, tensor in maps.items()}
        except Exception as error:
            failure = exhaustion.failure(error, 1)
            if failure is None:
                raise
        else:
            return [
                _points(crop, {name: array[row] for name, array in arrays.items()}) for row, crop in enumerate(crops)
            ]
        # Only here is the error gone, and with it the tensors that its traceback held.
        if isinstance(failure, OutOfMemory):
            exhaustion.release()
        if len(crops) == 1:
            return [failure]
        return [self._attempt([crop])[0] for crop in crops]


def _cut(image: Uint8, box: Float32) -> _Crop:
    """The box and its margin, cut at the image's edges, its long side brought to 160 px; zeros fill the rest."""
    height, width = image.shape[:2]
    corners = box.astype(np.float64)
    margin = MARGIN * (corners[2:] - corners[:2] + 1)
    left, top = np.floor(np.maximum(corners[:2] - margin, 0)).astype(int).tolist()
    right, bottom = np.ceil(np.minimum(corners[2:] + margin + 1, (width, height))).astype(int).tolist()
    scale = SIDE / max(right - left, bottom - top)
    size = (max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale)))
    face = Image.fromarray(image[top:bottom, left:right]).resize(size, Image.Resampling.BILINEAR)
    array = np.zeros((SIDE, SIDE, 3), np.uint8)
    array[: size[1], : size[0]] = np.asarray(face)
    origin = np.array([left, top], np.float32)
    step = np.array([(right - left) / size[0], (bottom - top) / size[1]], np.float32)
    return _Crop(array, origin, step, box)


def _points(crop: _Crop, maps: dict[str, Float32]) -> Float32 | EngineError:
    """The points of the face nearest the box's centre, if that face's own centre lies in the box; NaN if none."""
    try:
        boxes, scores, points = decode(maps["heatmap"][0], maps["size"], maps["offset"], maps["points"], SCORE)
    except EngineError as error:
        return error
    kept = nms(boxes, scores, OVERLAP)
    boxes, points = boxes[kept], points[kept]
    centres = crop.origin + (boxes[:, :2] + boxes[:, 2:]) / 2 * crop.step
    inside = ((centres >= crop.box[:2]) & (centres <= crop.box[2:])).all(axis=1)
    if not inside.any():
        return no_landmarks(1).reshape(5, 2)
    away = np.square(centres - (crop.box[:2] + crop.box[2:]) / 2).sum(axis=1)
    nearest = points[int(np.argmin(np.where(inside, away, np.inf)))]
    source: Float32 = (crop.origin + nearest * crop.step).astype(np.float32)
    return source if np.isfinite(source).all() else no_landmarks(1).reshape(5, 2)
