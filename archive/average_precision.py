"""Average precision as WIDER FACE's own evaluation computes it (Yang et al., arXiv:1511.06523, its MATLAB tool).

Boxes are rows x y w h in px of the image, as in WIDER's files. The tool takes x + w and y + h for the far
corner, and corners as inclusive, so the intersection of two boxes has sides of one more than their difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Overlap from which a detection finds a face.
OVERLAP = 0.5
#: Points of the curve.
THRESHOLDS = 1000


def overlaps(found: Float64, faces: Float64) -> Float64:
    """Intersection over union.

    Args:
        found: [N, 4] float64, x y w h.
        faces: [G, 4] likewise.

    Returns:
        [N, G] float64.
    """
    low = np.maximum(found[:, None, :2], faces[None, :, :2])
    high = np.minimum((found[:, :2] + found[:, 2:])[:, None], (faces[:, :2] + faces[:, 2:])[None])
    shared = np.maximum(high - low + 1, 0).prod(axis=2)
    union = (found[:, 2:] + 1).prod(axis=1)[:, None] + (faces[:, 2:] + 1).prod(axis=1)[None] - shared
    share: Float64 = shared / union
    return share


def average_precisions(
    found: Sequence[Float64], faces: Sequence[Float64], subsets: Mapping[str, Sequence[Bools]]
) -> dict[str, float]:
    """The average precision of each subset.

    Scores are brought to 0..1 by the least and the largest of all images. Each detection belongs to the
    face it overlaps most, if by 0.5 or more. It counts for nothing where that face is outside the subset; the
    first, by falling score, finds its face; a second one, and one that belongs to no face, is false. Precision
    and recall are taken at 1000 score thresholds 0.999, 0.998 .. 0, each precision is raised to the largest
    at its recall or beyond, and the area under that is the average precision.

    As in the tool, detections on an image without any face are left out, those on one whose faces are all
    outside the subset are not.

    Args:
        found: for each image [N, 5] float64, x y w h score, in any order; equal scores keep theirs.
        faces: for each image [G, 4] float64, x y w h.
        subsets: by name, for each image [G] bool: the faces that count.

    Returns:
        By name, 0..1; NaN for a subset without a face.
    """
    every = np.concatenate([rows[:, 4] for rows in found]) if found else np.zeros(0)
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    scores, owners, firsts = [], [], []
    for rows, boxes in zip(found, faces, strict=True):
        if not len(rows) or not len(boxes):
            owners.append(np.zeros(0, np.int64))
            continue
        rows = rows[np.argsort(-rows[:, 4], kind="stable")]
        owner = _owners(rows, boxes)
        scores.append((rows[:, 4] - low) / (high - low) if high > low else np.ones(len(rows)))
        first = np.zeros(len(rows), np.bool_)
        first[np.unique(owner, return_index=True)[1]] = True
        owners.append(owner)
        firsts.append(first & (owner >= 0))
    joined = np.concatenate(scores) if scores else np.zeros(0)
    first = np.concatenate(firsts) if firsts else np.zeros(0, np.bool_)
    result = {}
    for name, kept in subsets.items():
        counts = [mask[owner] | (owner < 0) for mask, owner in zip(kept, owners, strict=True) if len(owner)]
        counted = np.concatenate(counts) if counts else np.zeros(0, np.bool_)
        total = sum(int(mask.sum()) for mask in kept)
        result[name] = _area(joined[counted], joined[counted & first], total)
    return result


def _owners(rows: Float64, boxes: Float64) -> npt.NDArray[np.int64]:
    """[N] int64: the face that each detection overlaps most, among equals the first; -1 for none."""
    share = overlaps(rows[:, :4], boxes)
    owner = share.argmax(axis=1)
    return np.where(share[np.arange(len(rows)), owner] >= OVERLAP, owner, -1)


def _area(proposals: Float64, hits: Float64, total: int) -> float:
    """Area under the curve of these scores: of all detections that count, of those that find a face."""
    if not total:
        return float("nan")
    thresholds = 1 - (np.arange(THRESHOLDS) + 1) / THRESHOLDS
    proposed, hit = (len(each) - np.searchsorted(np.sort(each), thresholds, "left") for each in (proposals, hits))
    precision = hit / np.maximum(proposed, 1)
    recall = np.concatenate([[0.0], hit / total, [1.0]])
    # The largest precision from each point on.
    envelope = np.maximum.accumulate(np.concatenate([[0.0], precision, [0.0]])[::-1])[::-1]
    return float(np.sum(np.diff(recall) * envelope[1:]))
