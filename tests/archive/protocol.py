"""WIDER FACE's evaluation, written out slowly: what the vectorised one is compared with."""

from __future__ import annotations

from archive.average_precision import Bools, Float64


def literal(found: list[Float64], faces: list[Float64], kept: list[Bools]) -> float:
    """The protocol step by step, one threshold, one image and one detection at a time."""
    scores = [row[4] for rows in found for row in rows]
    low, high = min(scores), max(scores)
    hits, proposals = [0] * 1000, [0] * 1000
    total = sum(int(mask.sum()) for mask in kept)
    for rows, boxes, mask in zip(found, faces, kept, strict=True):
        if not len(rows) or not len(boxes):
            continue
        ordered = sorted(rows.tolist(), key=lambda row: -row[4])
        for step in range(1000):
            threshold = 1 - (step + 1) / 1000
            seen: set[int] = set()
            for x, y, w, h, score in ordered:
                if (score - low) / (high - low) < threshold:
                    break
                best, owner = 0.0, -1
                for index, (fx, fy, fw, fh) in enumerate(boxes.tolist()):
                    across = min(x + w, fx + fw) - max(x, fx) + 1
                    down = min(y + h, fy + fh) - max(y, fy) + 1
                    if across <= 0 or down <= 0:
                        continue
                    shared = across * down
                    share = shared / ((w + 1) * (h + 1) + (fw + 1) * (fh + 1) - shared)
                    if share > best:
                        best, owner = share, index
                if best < 0.5:
                    proposals[step] += 1
                elif mask[owner]:
                    proposals[step] += 1
                    if owner not in seen:
                        hits[step] += 1
                    seen.add(owner)
    recalls = [0.0] + [hit / total for hit in hits] + [1.0]
    precisions = [0.0] + [hit / many if many else 0.0 for hit, many in zip(hits, proposals, strict=True)] + [0.0]
    area = 0.0
    for index in range(1, len(recalls)):
        area += (recalls[index] - recalls[index - 1]) * max(precisions[index:])
    return area
