"""Photographs to send, and whether an answer to one is right.

A server under load that answers quickly and wrongly has not passed: every answer is compared with the one that
the same server gave to the same picture alone, and the carried photographs' faces are known beforehand.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.answer import Answer

#: NASA, public domain; 512x512, and where its one face is: x1 y1 x2 y2, px.
PHOTOGRAPH = Path(__file__).resolve().parents[1] / "archive" / "data" / "astronaut.jpg"
_FACE = (181.0, 58.0, 270.0, 178.0)
#: Pages that cameras and phones give, width x height; portrait and landscape, small and large.
SIZES = ((640, 480), (480, 640), (1280, 720), (320, 240), (1080, 1920), (800, 800))
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
#: Overlap of a face with the same face of another answer. Batches of another size round otherwise in FP16.
_SAME_IOU = 0.9
_FOUND_IOU = 0.6


@dataclass(frozen=True)
class Picture:
    """One picture to send.

    Attributes:
        name: in reports.
        data: its bytes, as they are sent.
        face: its one face where that is known: x1 y1 x2 y2, px.
        reference: what the server answered to it alone.
    """

    name: str
    data: bytes
    face: tuple[float, float, float, float] | None = None
    reference: Answer | None = None

    def referred(self, answer: Answer) -> Picture:
        """With the answer that others are to equal.

        Raises:
            ValueError: its known face is not in it; whatever came after would mean nothing.
        """
        if self.face is not None and (
            not len(answer.boxes) or _overlaps(np.array([self.face]), answer.boxes).max() < _FOUND_IOU
        ):
            raise ValueError(
                f"{self.name}: the server found {len(answer.faces)} faces and not the one at {self.face}. "
                "Seeded weights find nothing: use --any-answer with them"
            )
        return replace(self, reference=answer)

    def right(self, answer: Answer) -> bool:
        """Whether these are the faces of this picture, those of the reference.

        Args:
            answer: that came under load.
        """
        if self.reference is None:
            return True
        expected = self.reference
        if (answer.width, answer.height, len(answer.faces)) != (expected.width, expected.height, len(expected.faces)):
            return False
        if not expected.faces:
            return True
        overlaps = _overlaps(expected.boxes, answer.boxes)
        # Each has its own in the other: no face counts for two.
        return bool(overlaps.max(axis=0).min() >= _SAME_IOU and overlaps.max(axis=1).min() >= _SAME_IOU)


def carried(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Picture]:
    """The known photograph on pages of these sizes (width, height), as JPEG of quality 90."""
    return [_page(width, height) for width, height in sizes]


def folder(path: Path) -> list[Picture]:
    """Every picture under a folder, in the order of their names.

    Raises:
        ValueError: there is none.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise ValueError(f"{path}: no picture ({', '.join(SUFFIXES)}) in it")
    return [Picture(str(file.relative_to(path)), file.read_bytes()) for file in files]


def _page(width: int, height: int) -> Picture:
    page = Image.new("RGB", (width, height), (120, 120, 120))
    with Image.open(PHOTOGRAPH) as file:
        side = min(width, height)
        page.paste(file.resize((side, side)), (0, 0))
    data = io.BytesIO()
    page.save(data, "JPEG", quality=90)
    left, top, right, bottom = (number * side / 512 for number in _FACE)
    return Picture(f"{width}x{height}", data.getvalue(), (left, top, right, bottom))


def _overlaps(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Intersection over union of every box of [N, 4] with every one of [M, 4], x1 y1 x2 y2: [N, M]."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    inside = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (a, b)]
    overlaps: npt.NDArray[np.floating] = inside / (areas[0][:, None] + areas[1][None, :] - inside)
    return overlaps
