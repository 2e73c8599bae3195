"""Does a detector in another precision, or on another engine, still find the same faces?

A reference and a candidate see the same pictures. Faces near the threshold may fall on either side of it by
a hair, so both run at a threshold lower by the score difference that is allowed, and a face over the real
one counts as found where the other has its box at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from archive.average_precision import Float64, average_precisions
from archive.files import progress
from archive.subject import Subject, opened
from archive.verify import PHOTOGRAPH
from archive.wider import rows
from handler.detections import Detections
from handler.errors import ArtifactError, ConfigError, RequestError
from handler.geometry import Float32, Uint8
from handler.image import decode

#: Overlap from which two boxes are the same face in the same place.
OVERLAP = 0.9


@dataclass(frozen=True)
class Tolerance:
    """What a candidate may differ.

    Attributes:
        missed: share of the reference's faces that the candidate lacks, and of the candidate's that the
            reference lacks; 0..1.
        box_mean: difference of a corner coordinate, mean over the faces of each one's worst, as a share of
            the face's side.
        box_worst: the same of the worst face.
        points: difference of a landmark's coordinate, as ``box_mean``; a face with landmarks on one side alone
            counts as 1, one without on either is left out.
        score_mean: difference of scores, mean over the faces.
        score_worst: the same of the worst face.
        ap: average precision less than the reference's own, its faces as ground truth; 0..1.
    """

    missed: float
    box_mean: float
    box_worst: float
    points: float
    score_mean: float
    score_worst: float
    ap: float


#: Grounds. ``fp32`` is the same arithmetic in another order, TF32 excluded: sums differ by 1e-5, and these are far
#: above that and still invisible. ``fp16`` rounds to 1/2048: seeded MogFace came to 0.003 of a face's side and 0.0006
#: of score in the mean, 0.006 of score at worst, most of it from the trunk's hundred layers, see half.LAYERS; the
#: limits are twice that and more. ``int8`` rounds to 1/127 of a range: CenterFace keeps 99 % of the faces at this
#: overlap, boxes within 0.5 % of the side and scores within 0.006 in the mean, 0.03 at worst; the limits are twice
#: that, or what an overlap of 0.9 allows: a box's error of 5 % of its side where all four edges err, of 10 % where
#: one does.
TOLERANCES = {
    "fp32": Tolerance(
        missed=0.002, box_mean=0.002, box_worst=0.01, points=0.002, score_mean=0.0005, score_worst=0.005, ap=0.002
    ),
    "fp16": Tolerance(
        missed=0.01, box_mean=0.006, box_worst=0.05, points=0.01, score_mean=0.0012, score_worst=0.02, ap=0.005
    ),
    "int8": Tolerance(
        missed=0.05, box_mean=0.01, box_worst=0.1, points=0.03, score_mean=0.014, score_worst=0.1, ap=0.02
    ),
}


@dataclass(frozen=True)
class Report:
    """A candidate beside its reference.

    Attributes:
        reference: its label.
        candidate: likewise.
        images: pictures compared.
        faces: of the reference, over its threshold.
        extra: of the candidate, likewise.
        measured: each figure of ``Tolerance`` as it came out; NaN where no face was common to both.
        pixels_mean: difference of a corner coordinate as in ``box_mean``, in px of the image.
        pixels_worst: the same of the worst face.
        tolerance: what is allowed.
    """

    reference: str
    candidate: str
    images: int
    faces: int
    extra: int
    measured: Tolerance
    pixels_mean: float
    pixels_worst: float
    tolerance: Tolerance

    @property
    def misses(self) -> list[str]:
        """Each figure that is over its tolerance, in words."""
        found, allowed = dataclasses.asdict(self.measured), dataclasses.asdict(self.tolerance)
        # Written so that NaN fails too.
        return [
            f"{name} is {found[name]:.4f}, over {allowed[name]:g}" for name in found if not found[name] <= allowed[name]
        ]

    def table(self) -> str:
        """Text for a terminal."""
        found, allowed = dataclasses.asdict(self.measured), dataclasses.asdict(self.tolerance)
        lines = [
            f"{self.candidate} against {self.reference}",
            f"  {self.images} images, {self.faces} faces of the reference, {self.extra} of the candidate",
            f"  {'':<12} {'measured':>9} {'allowed':>9}",
        ]
        for name in found:
            verdict = "" if found[name] <= allowed[name] else "  over"
            lines.append(f"  {name.replace('_', ' '):<12} {found[name]:>9.4f} {allowed[name]:>9.4f}{verdict}")
        lines.append(f"  boxes differ by {self.pixels_mean:.2f} px in the mean, {self.pixels_worst:.2f} px at worst")
        return "\n".join(lines)

    def refuse(self) -> None:
        """Raise ArtifactError, naming every miss, unless all is within the tolerance."""
        if not self.faces:
            raise ArtifactError(f"{self.reference} finds no face on the {self.images} images: nothing was compared")
        if self.misses:
            raise ArtifactError(
                f"{self.candidate} is not {self.reference}:\n" + "\n".join(f"  {m}" for m in self.misses)
            )


def compare(
    reference: Subject,
    candidate: Subject,
    images: Sequence[Uint8 | Path],
    tolerance: Tolerance,
    threshold: float | None = None,
) -> Report:
    """Run both on the same pictures.

    Args:
        reference: what is taken as right.
        candidate: what is judged.
        images: upright [H, W, 3] uint8 RGB arrays, or files.
        tolerance: what is allowed; its ``score_worst`` widens the threshold.
        threshold: of a face's score; the reference archive's own where None.

    Raises:
        ConfigError: no images, or one that cannot be read.
        MogFaceError: a detector fails.
    """
    if not images:
        raise ConfigError("there are no images to compare on")
    options = dataclasses.replace(reference.settings.options, landmarks=True, crops=False, output="json")
    limit = options.score_threshold if threshold is None else threshold
    wide = dataclasses.replace(options, score_threshold=max(0.0, limit - tolerance.score_worst))
    pairs = []
    with progress("gate", len(images), "image") as bar:
        for image in images:
            array = _array(image, reference)
            (expected,), (found,) = reference.find([array], wide), candidate.find([array], wide)
            pairs.append((expected, found))
            bar.update()
    return judge(reference.label, candidate.label, pairs, tolerance, limit)


def known() -> list[Uint8]:
    """The known photograph at six sizes, every other one mirrored: faces of 25 to 110 px."""
    picture = Image.open(PHOTOGRAPH)
    sizes = [(round(picture.width * scale), round(picture.height * scale)) for scale in (0.3, 0.4, 0.5, 0.7, 0.85, 1.0)]
    arrays = [np.asarray(picture.resize(size)) for size in sizes]
    return [np.ascontiguousarray(array[:, ::-1]) if index % 2 else array for index, array in enumerate(arrays)]


def against(reference: Path, candidate: Path, images: Sequence[Uint8 | Path], on: str | None = None) -> Report:
    """Compare two archives, by the tolerance of the candidate's precision.

    Args:
        reference: an archive, FP32.
        candidate: another of the same detector.
        images: as for :func:`compare`.
        on: device of both, as for :func:`archive.subject.opened`.

    Raises:
        ConfigError: the archives hold different detectors or different weights; otherwise as :func:`compare`.
        SetupError: an archive that cannot be opened here.
    """
    with opened(reference, on) as first, opened(candidate, on) as second:
        for name in ("detector", "weights"):
            values = [getattr(each.settings, name) for each in (first, second)]
            if values[0] != values[1]:
                raise ConfigError(f"{name} is {values[0]!r} in {reference.name} and {values[1]!r} in {candidate.name}")
        return compare(first, second, images, TOLERANCES[second.settings.precision])


def _array(image: Uint8 | Path, subject: Subject) -> Uint8:
    if not isinstance(image, Path):
        return image
    try:
        return decode(image.read_bytes(), subject.settings.limits).array
    except (OSError, RequestError) as error:
        raise ConfigError(f"{image}: {error}") from error


def judge(
    reference: str,
    candidate: str,
    pairs: Sequence[tuple[Detections, Detections]],
    tolerance: Tolerance,
    threshold: float,
) -> Report:
    """The report on faces that were found already.

    Args:
        reference: its label.
        candidate: likewise.
        pairs: for each picture the reference's and the candidate's faces, down to somewhat under the threshold.
        tolerance: what is allowed.
        threshold: over it a face must be found by the other.
    """
    limit = np.float32(threshold)
    missing = extra = faces = others = 0
    shares, pixels, points, scores = [], [], [], []
    for expected, found in pairs:
        partners = match(expected.boxes, found.boxes)
        strong, other = expected.scores > limit, found.scores > limit
        faces += int(strong.sum())
        others += int(other.sum())
        missing += int((strong & (partners < 0)).sum())
        taken = np.zeros(len(found), np.bool_)
        taken[partners[partners >= 0]] = True
        extra += int((other & ~taken).sum())
        for row in np.flatnonzero(partners >= 0):
            column = partners[row]
            if strong[row] or other[column]:
                away = float(np.abs(expected.boxes[row] - found.boxes[column]).max())
                pixels.append(away)
                shares.append(away / float(expected.sizes[row]))
                points += _strayed(expected[row : row + 1], found[column : column + 1])
                scores.append(abs(float(expected.scores[row]) - float(found.scores[column])))
    measured = Tolerance(
        missed=max(missing / max(1, faces), extra / max(1, others)),
        box_mean=_mean(shares),
        box_worst=max(shares, default=float("nan")),
        points=_mean(points) if points else 0.0,
        score_mean=_mean(scores),
        score_worst=max(scores, default=float("nan")),
        ap=_lost(pairs, limit),
    )
    worst = max(pixels, default=float("nan"))
    return Report(reference, candidate, len(pairs), faces, others, measured, _mean(pixels), worst, tolerance)


def _strayed(expected: Detections, found: Detections) -> list[float]:
    """How far one face's landmarks are off, as a share of its side; empty where neither has any."""
    both = expected.has_landmarks[0], found.has_landmarks[0]
    if not any(both):
        return []
    if not all(both):
        return [1.0]
    return [float(np.abs(expected.landmarks - found.landmarks).max()) / float(expected.sizes[0])]


def match(expected: Float32, found: Float32) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which found box is which expected one.

    In their order, which is by falling score, each expected box takes the box not yet taken that it overlaps
    most, if by 0.9 or more.

    Args:
        expected: [N, 4] float32, x1 y1 x2 y2, px.
        found: [M, 4] likewise.

    Returns:
        [N] int64: index of the found box, -1 for none.
    """
    partners = np.full(len(expected), -1, np.int64)
    free = np.ones(len(found), np.bool_)
    areas = (found[:, 2:] - found[:, :2] + 1).prod(axis=1)
    for row, box in enumerate(expected):
        sides = np.minimum(box[2:], found[:, 2:]) - np.maximum(box[:2], found[:, :2]) + 1
        shared = np.maximum(sides, 0).prod(axis=1)
        overlap = shared / (areas + (box[2:] - box[:2] + 1).prod() - shared) * free
        if len(found) and overlap.max() >= OVERLAP:
            partners[row] = int(overlap.argmax())
            free[partners[row]] = False
    return partners


def _lost(pairs: Sequence[tuple[Detections, Detections]], limit: np.float32) -> float:
    """The reference's average precision on its own faces, less the candidate's; under 0 counts as 0."""
    truths: list[Float64] = [rows(expected[expected.scores > limit])[:, :4] for expected, _ in pairs]
    everything = {"all": [np.ones(len(faces), np.bool_) for faces in truths]}
    own, other = (
        average_precisions([rows(pair[side]) for pair in pairs], truths, everything)["all"] for side in (0, 1)
    )
    return max(0.0, own - other)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
