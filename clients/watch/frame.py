"""One frame of a source."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import av
from PIL import Image

from clients import draw
from clients.errors import UsageError

#: Quarter turns by which a decoded frame is turned, counter-clockwise, by its display matrix.
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
#: Times of frames are multiples of 1/90000 s and the like: a frame that is due is not missed for its rounding.
_TOLERANCE_S = 1e-3


@dataclass(frozen=True)
class Frame:
    """A frame, decoded but in its own colours until it is wanted: most frames of a fast source never are.

    Attributes:
        index: of the source's frames, from 0, those that were left out counted.
        seconds: on the source's own clock, since its first frame; greater than that of the frame before.
        arrived: when it was decoded, s, of ``time.monotonic``.
        raw: the decoded frame, or the file of one.
    """

    index: int
    seconds: float
    arrived: float
    raw: av.VideoFrame | Path

    def image(self) -> Image.Image:
        """[height, width] RGB, upright.

        Raises:
            UsageError: a file that cannot be read, or is no picture.
        """
        if isinstance(self.raw, Path):
            try:
                return draw.upright(self.raw.read_bytes())
            except OSError as error:
                raise UsageError(f"{self.raw}: {error.strerror or error}") from error
        picture = Image.fromarray(self.raw.to_ndarray(format="rgb24"))
        turn = _TURNS.get(round(self.raw.rotation) % 360)
        return picture if turn is None else picture.transpose(turn)

    def picture(self, quality: int) -> bytes | Path:
        """What is sent: a file as it is, a decoded frame as a JPEG of this quality.

        Raises:
            UsageError: a frame that no JPEG holds, or whose colours cannot be had.
        """
        if isinstance(self.raw, Path):
            return self.raw
        data = io.BytesIO()
        try:
            self.image().save(data, "JPEG", quality=quality)
        except (av.error.FFmpegError, OSError, ValueError) as error:
            size = f"{self.raw.width}x{self.raw.height}"
            raise UsageError(f"a frame of {size} {self.raw.format.name} has no JPEG: {error}") from error
        return data.getvalue()


@dataclass
class Picker:
    """Which frames of a source are asked for.

    Args:
        every: of so many frames the first.
        fps: at most so many a second of the source's clock; None for all.
    """

    every: int = 1
    fps: float | None = None
    _due: float = 0.0

    def wants(self, index: int, seconds: float) -> bool:
        """Whether the frame is one of them; to be asked once of each frame, in order."""
        if index % self.every:
            return False
        if self.fps is None:
            return True
        if seconds < self._due - _TOLERANCE_S:
            return False
        # From the grid, so that a source of 25 frames a second gives 10 of them and not 8; from the frame where it
        # is late by a whole step.
        step = 1 / self.fps
        self._due = self._due + step if seconds < self._due + step else seconds + step
        return True
