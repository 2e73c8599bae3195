"""The multi-scale test with which WIDER FACE results of MogFace were published.

The image is run at eleven sizes, one of them mirrored too, each giving the faces it is good at, and what
overlaps is averaged. It costs 26 times the pixels of one pass: a way to measure a network, not to serve it.
Sizes, limits and overlap are those of the released test (``damo-cv/MogFace``, ``test_multi.py``, defaults);
other than there, boxes are not rounded to whole pixels, and a size too large for the stated limit is left
out where the released test takes the largest that fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from archive.subject import Subject
from handler.detections import Detections, no_landmarks
from handler.detectors import Prepared
from handler.geometry import Canvas, Float32, Placement, Uint8, letterbox
from handler.nms import rank
from handler.options import Options


@dataclass(frozen=True)
class Pass:
    """One run of the network.

    Attributes:
        scale: of the image.
        mirrored: left and right exchanged.
        over: faces of at most this area, in px of the image itself, are left to other passes.
        under: likewise from this area on.
    """

    scale: float
    mirrored: bool = False
    over: float = 0.0
    under: float = math.inf


PUBLISHED = (
    Pass(1.0),
    Pass(1.0, mirrored=True),
    Pass(0.25, over=2000),
    Pass(0.5, over=2000),
    Pass(0.75, over=2000),
    Pass(1.25, under=30_000),
    Pass(1.5, under=12_000),
    Pass(1.75, under=15_000),
    Pass(2.0, under=9_000),
    Pass(2.25, under=9_000),
    Pass(2.6, under=7_500),
)
#: Overlap from which boxes are one face.
OVERLAP = 0.6
#: Of one pass, at most: 2^31 / 200, as in the released test.
PIXELS = 10_737_418


def find(subject: Subject, image: Uint8, options: Options, passes: tuple[Pass, ...] = PUBLISHED) -> Detections:
    """Faces by many passes and a vote.

    Args:
        subject: the detector.
        image: [H, W, 3] uint8 RGB, upright.
        options: thresholds and the number of faces; the canvas is each pass's own.
        passes: those of at most ``PIXELS`` are run.

    Raises:
        MogFaceError: the detector fails.
    """
    height, width = image.shape[:2]
    boxes, scores = [], []
    for each in passes:
        if height * width * each.scale**2 > PIXELS:
            continue
        source = image[:, ::-1] if each.mirrored else image
        (faces,) = subject.run([_prepared(subject, source, each.scale, options)])
        found = faces.boxes.copy()
        if each.mirrored:
            found[:, [0, 2]] = (width - 1) - found[:, [2, 0]]
        area = (found[:, 2] - found[:, 0]) * (found[:, 3] - found[:, 1])
        kept = (area >= each.over) & (area < each.under)
        boxes.append(found[kept])
        scores.append(faces.scores[kept])
    if not boxes:
        (faces,) = subject.find([image], options)
        return faces
    merged, strength = vote(np.concatenate(boxes), np.concatenate(scores), OVERLAP)
    merged, strength = merged[: options.max_faces], strength[: options.max_faces]
    # The mean of boxes inside the image is inside it but for rounding.
    merged = np.clip(merged, 0, np.array([width - 1, height - 1] * 2, np.float32))
    return Detections(merged, strength, no_landmarks(len(strength)), height, width)


def _prepared(subject: Subject, image: Uint8, scale: float, options: Options) -> Prepared:
    height, width = image.shape[:2]
    content = (max(1, round(height * scale)), max(1, round(width * scale)))
    multiple = subject.detector.multiple
    canvas = Canvas(*(-(-side // multiple) * multiple for side in content))
    placement = Placement((height, width), content, canvas, content[1] / width, content[0] / height)
    array = letterbox(np.ascontiguousarray(image), placement, subject.detector.fill)
    return Prepared(array, placement, options)


def vote(boxes: Float32, scores: Float32, overlap: float) -> tuple[Float32, Float32]:
    """Boxes that overlap become their mean, weighted by score, with the best score.

    The strongest box gathers all that overlap it by ``overlap`` or more, corners inclusive as in
    :mod:`handler.nms`; then the strongest of the rest, and so on. A box alone stays as it is.

    Args:
        boxes: [N, 4] float32, x1 y1 x2 y2, px.
        scores: [N] float32, at least one of those that meet over 0.
        overlap: 0..1.

    Returns:
        [M, 4] and [M] float32, by falling score.
    """
    order = rank(scores)
    left, weights = boxes[order].astype(np.float64), scores[order].astype(np.float64)
    merged, strength = [], []
    while len(left):
        sides = np.minimum(left[0, 2:], left[:, 2:]) - np.maximum(left[0, :2], left[:, :2]) + 1
        shared = np.maximum(sides, 0).prod(axis=1)
        areas = (left[:, 2:] - left[:, :2] + 1).prod(axis=1)
        near = shared >= overlap * (areas[0] + areas - shared)
        merged.append(np.average(left[near], axis=0, weights=weights[near]))
        strength.append(weights[0])
        left, weights = left[~near], weights[~near]
    return np.array(merged, np.float32).reshape(-1, 4), np.array(strength, np.float32)
