"""The result value: the faces of one image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from handler.geometry import Float32

#: The five points, in the order of every landmark array. Right and left are the person's.
LANDMARKS = ("right_eye", "left_eye", "nose", "mouth_right", "mouth_left")

Index = slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Detections:
    """Faces of one upright image, in their final order.

    Attributes:
        boxes: [N, 4] float32, x1 y1 x2 y2 in source pixels, inside the image.
        scores: [N] float32 in 0..1.
        landmarks: [N, 5, 2] float32, x y in source pixels, in the order of ``LANDMARKS``; a face without
            them has NaN in all ten. They may lie outside a cut face's image.
        height: of the image, px.
        width: of the image, px.

    The arrays cannot be written to. An index, slice or mask gives Detections again.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite or outside their range.
    """

    boxes: Float32
    scores: Float32
    landmarks: Float32
    height: int
    width: int

    def __post_init__(self) -> None:
        count = len(self.scores)
        shapes = {"boxes": (count, 4), "scores": (count,), "landmarks": (count, 5, 2)}
        for name, shape in shapes.items():
            # A copy: the caller's own array may change.
            array = np.array(getattr(self, name), dtype=np.float32, order="C")
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        x1, y1, x2, y2 = self.boxes.T
        # Written so that NaN fails too.
        if not (np.all(x1 >= 0) and np.all(y1 >= 0) and np.all(x1 <= x2) and np.all(y1 <= y2)):
            raise ValueError("a box is not finite, runs outside the image or has its corners swapped")
        if not (np.all(x2 <= self.width - 1) and np.all(y2 <= self.height - 1)):
            raise ValueError(f"a box runs outside the {self.width}x{self.height} image")
        if not (np.all(self.scores >= 0) and np.all(self.scores <= 1)):
            raise ValueError("a score lies outside 0..1")
        numbers = self.landmarks.reshape(count, 10)
        if not np.all(np.isfinite(numbers).all(axis=1) | np.isnan(numbers).all(axis=1)):
            raise ValueError("a face has some of its five landmarks and lacks others, or infinite ones")

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: Index) -> Detections:
        return Detections(self.boxes[index], self.scores[index], self.landmarks[index], self.height, self.width)

    @property
    def has_landmarks(self) -> npt.NDArray[np.bool_]:
        """[N] bool: which faces carry their five points."""
        return np.isfinite(self.landmarks[:, 0, 0])

    @property
    def sizes(self) -> Float32:
        """[N] float32: the side, in px, of the square of each box's area; corners count as inside."""
        return np.sqrt((self.boxes[:, 2] - self.boxes[:, 0] + 1) * (self.boxes[:, 3] - self.boxes[:, 1] + 1))

    def with_landmarks(self, landmarks: Float32) -> Detections:
        """The same faces with these [N, 5, 2] points."""
        return Detections(self.boxes, self.scores, landmarks, self.height, self.width)


def no_landmarks(count: int) -> Float32:
    """[count, 5, 2] of NaN."""
    return np.full((count, 5, 2), np.nan, np.float32)
