"""A detector whose faces and faults can be read off its images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from handler.config import Settings
from handler.detections import no_landmarks
from handler.detectors.base import Detector, Prepared, Result, finish
from handler.errors import EngineError
from handler.geometry import Canvas, Uint8
from handler.options import Options

OPTIONS = Options(score_threshold=0.0, nms_threshold=0.3)
CANVASES = (Canvas(64, 64), Canvas(64, 96), Canvas(96, 64), Canvas(128, 128))
SETTINGS = Settings("centerface", "none", OPTIONS, canvases=CANVASES, long_side=96, device="cpu")

#: Grey levels that make it fail.
POISON, BUG, NOT_FINITE = 200, 201, 202


def grey(height: int, width: int, level: int) -> Uint8:
    return np.full((height, width, 3), level, np.uint8)


class FakeDetector(Detector):
    """Finds one face a picture, its score the grey level over 255, its box most of the picture.

    Attributes:
        batches: the grey levels of each call, for a look at how images were put together.
        before: called at each of them.
    """

    fill = (1, 2, 3)

    def __init__(self, settings: Settings = SETTINGS) -> None:
        super().__init__(settings)
        self.batches: list[list[int]] = []
        self.canvases: list[Canvas] = []
        self.before: Callable[[], None] = lambda: None

    def _detect(self, images: list[Prepared]) -> list[Result]:
        self.before()
        levels = [int(image.array[0, 0, 0]) for image in images]
        self.batches.append(levels)
        (canvas,) = {image.placement.canvas for image in images}
        self.canvases.append(canvas)
        assert all(image.array.shape == (*canvas, 3) for image in images)
        if POISON in levels:
            raise EngineError("poisoned")
        if BUG in levels:
            raise ZeroDivisionError("an image that nobody thought of")
        return [self._face(image, level) for image, level in zip(images, levels, strict=True)]

    @staticmethod
    def _face(image: Prepared, level: int) -> Result:
        height, width = image.placement.content
        box = np.array([[1, 2, width - 3, height - 4]], np.float32)
        score = np.array([np.nan if level == NOT_FINITE else level / 255], np.float32)
        return Result(finish(box, score, no_landmarks(1), image.placement, image.options), image.placement)


CPU = torch.device("cpu")
