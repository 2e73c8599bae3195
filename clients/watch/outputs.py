"""What a run leaves: a line a frame, annotated videos, cut-out faces."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Protocol

import av
import numpy as np
from PIL import Image, ImageFilter

from clients import draw
from clients.answer import Answer
from clients.errors import ClientError
from clients.files import naming, whole
from clients.streams import STDOUT
from clients.watch.follow import Seen

_TIME_BASE = Fraction(1, 90_000)
#: Constant rate factor of x264: sharp enough to tell faces, a tenth of the size of the sources' JPEG frames.
_CRF = "21"
#: A blurred face keeps no detail of more than this share of its width.
_BLUR = 0.15
#: Hair and chin beyond the box, as shares of its sides.
_MARGIN = 0.25


class Output(Protocol):
    """Takes results; of one source in their order, of several at once."""

    def write(self, seen: Seen) -> None:
        """One more.

        Raises:
            OSError: it cannot be written; with its name.
        """

    def close(self) -> None:
        """End it, whole.

        Raises:
            OSError: it cannot be; with its name.
        """


class Lines:
    """One JSON object a line and frame: ``source``, ``frame``, ``seconds``, ``at``, ``lag_ms``, and ``answer`` or
    ``error``. ``at`` is when the frame was decoded, s since 1970.

    Args:
        file: that is written to, and flushed at each line.
        path: of the file, which is closed at the end; None for ``stdout``, which is not.
    """

    def __init__(self, file: IO[bytes], path: Path | None = None) -> None:
        self._file = file
        self._path = path
        self._lock = threading.Lock()

    def write(self, seen: Seen) -> None:
        """See Output."""
        told: dict[str, Any] = {
            "source": seen.source,
            "frame": seen.frame.index,
            "seconds": round(seen.frame.seconds, 6),
            "at": round(time.time() - (time.monotonic() - seen.frame.arrived), 3),
            "lag_ms": round(1000 * seen.lag_s, 1),
        }
        if isinstance(seen.outcome, ClientError):
            error = seen.outcome
            told["error"] = {"code": error.status, "type": error.type, "message": error.message}
        else:
            told["answer"] = replace(seen.outcome, crops=False).to_json()
        line = json.dumps(told, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
        with self._lock, naming(self._path or STDOUT):
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """See Output."""
        if self._path:
            with naming(self._path):
                self._file.close()


class Crops:
    """``FOLDER/SOURCE/FRAME-FACE.jpg``: each face as the server cuts it out.

    Args:
        folder: that the sources' own are made in.
        files: each source's name as one of a file.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self._folder = folder
        self._files = files

    def write(self, seen: Seen) -> None:
        """See Output."""
        if isinstance(seen.outcome, Answer):
            for number, face in enumerate(seen.outcome.faces):
                if face.crop is not None:
                    name = f"{seen.frame.index:08}-{number:03}.jpg"
                    with whole(self._folder / self._files[seen.source] / name) as file:
                        file.write(face.crop)

    def close(self) -> None:
        """See Output."""


class Videos:
    """``FOLDER/SOURCE.mp4``: the frames that were answered, at their times, with their faces drawn in or blurred.

    A frame without an answer is left out: nobody knows what is on it. A source whose frames change their size goes on
    in ``SOURCE.2.mp4``, or the next number that is no other source's. Each file is named so once it is whole.

    Args:
        folder: of the videos.
        files: each source's name as one of a file.
        blur: make faces unrecognisable instead.
    """

    def __init__(self, folder: Path, files: Mapping[str, str], blur: bool = False) -> None:
        self._folder = folder
        self._files = files
        self._blur = blur
        self._open: dict[str, _Video] = {}
        self._parts: dict[str, int] = {}

    def write(self, seen: Seen) -> None:
        """See Output."""
        answer = seen.outcome
        if isinstance(answer, ClientError):
            return
        picture = seen.frame.image()
        picture = blurred(picture, answer) if self._blur else draw.annotate(picture, answer)
        video = self._open.get(seen.source)
        if video and video.size != picture.size:
            self._open.pop(seen.source).close()
            video = None
        if video is None:
            path = self._folder / f"{self._next(seen.source)}.mp4"
            video = self._open[seen.source] = _Video(path, picture.size)
        video.write(picture, seen.frame.seconds)

    def close(self) -> None:
        """See Output."""
        with contextlib.ExitStack() as stack:
            for video in self._open.values():
                stack.callback(video.close)

    def _next(self, source: str) -> str:
        """The name of a source's next file; another source's own may be ``SOURCE.2``."""
        name = file = self._files[source]
        part = self._parts.get(source, 0) + 1
        while part > 1 and (name := f"{file}.{part}") in self._files.values():
            part += 1
        self._parts[source] = part
        return name


class _Video:
    """One file of H.264, under a hidden name until it is whole."""

    def __init__(self, path: Path, size: tuple[int, int]) -> None:
        self.size = size
        self._path = path
        self._draft = path.with_name(f".{path.name}")
        with _naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._draft), "w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=30, options={"crf": _CRF, "preset": "veryfast"})
        # Chroma comes in pairs of pixels.
        self._stream.width, self._stream.height = (side + side % 2 for side in size)
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = _TIME_BASE
        self._last = -1

    def write(self, picture: Image.Image, seconds: float) -> None:
        padded = Image.new("RGB", (self._stream.width, self._stream.height))
        padded.paste(picture)
        frame = av.VideoFrame.from_ndarray(np.asarray(padded), format="rgb24")
        frame.time_base = _TIME_BASE
        frame.pts = self._last = max(self._last + 1, round(seconds / _TIME_BASE))
        with _naming(self._path):
            self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        try:
            with _naming(self._path):
                try:
                    self._container.mux(self._stream.encode())
                finally:
                    self._container.close()
                self._draft.replace(self._path)
        finally:
            self._draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """FFmpeg's errors as OSErrors with this name; not all of them are."""
    with naming(path):
        try:
            yield
        except av.error.FFmpegError as error:
            raise OSError(error.errno, error.strerror) from error


def blurred(picture: Image.Image, answer: Answer) -> Image.Image:
    """A copy in which no face can be recognised.

    Args:
        picture: RGB, upright.
        answer: of it.
    """
    hidden = picture.copy()
    for face in answer.faces:
        x1, y1, x2, y2 = face.box
        across, down = _MARGIN * (x2 - x1), _MARGIN * (y2 - y1)
        area = (
            max(0, int(x1 - across)),
            max(0, int(y1 - down)),
            min(picture.width, int(x2 + across) + 1),
            min(picture.height, int(y2 + down) + 1),
        )
        # Of few pixels first, so that no sharpening brings back what was there.
        side = max(1, round(1 / _BLUR))
        small = picture.crop(area).resize((side, side), Image.Resampling.BOX)
        grown = small.resize((area[2] - area[0], area[3] - area[1]), Image.Resampling.BILINEAR)
        hidden.paste(grown.filter(ImageFilter.GaussianBlur(max(1.0, (x2 - x1) / side / 2))), area[:2])
    return hidden
