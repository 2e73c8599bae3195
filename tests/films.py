"""Videos made by code: a portrait that moves over a photograph without faces, its place known on every frame."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.photographs import ASTRONAUT, NO_FACES

SIZE = (320, 240)
#: px; of the face on the frames.
_FACE = 72
_BASE = Fraction(1, 90_000)
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Film:
    """What is on a video.

    Attributes:
        path: of the file.
        times: of its frames, s.
        boxes: of the one face on each, x1 y1 x2 y2, px of the upright frame.
    """

    path: Path
    times: Sequence[float]
    boxes: Sequence[Box]


def scenes(count: int, size: tuple[int, int] = SIZE, seed: int = 0) -> Iterator[tuple[npt.NDArray[np.uint8], Box]]:
    """Frames, [height, width, 3] uint8 RGB, and the box of the face on each."""
    with Image.open(NO_FACES[seed % len(NO_FACES)]) as file:
        ground = file.convert("RGB").resize(size)
    x1, y1, x2, y2 = ASTRONAUT.box
    scale = _FACE / (y2 - y1)
    around = (int(x1 - 60), int(y1 - 50), int(x2 + 60), int(y2 + 50))
    with Image.open(ASTRONAUT.path) as file:
        head = file.convert("RGB").crop(around)
        head = head.resize((round(head.width * scale), round(head.height * scale)))
    for index in range(count):
        # There and back, from one edge to the other.
        share = abs((index * 0.05 + seed * 0.3) % 2 - 1)
        left, top = round(share * (size[0] - head.width)), round((1 - share) * (size[1] - head.height))
        picture = ground.copy()
        picture.paste(head, (left, top))
        box = (
            left + (x1 - around[0]) * scale,
            top + (y1 - around[1]) * scale,
            left + (x2 - around[0]) * scale,
            top + (y2 - around[1]) * scale,
        )
        yield np.asarray(picture), box


def film(
    path: Path,
    *,
    count: int = 20,
    codec: str = "libx264",
    size: tuple[int, int] = SIZE,
    fps: float = 25.0,
    times: Sequence[float] | None = None,
    seed: int = 0,
) -> Film:
    """Encode one.

    Args:
        path: of the file, whose suffix tells the container.
        count: of frames.
        codec: an encoder's name.
        size: width and height, px.
        fps: of the frames, where ``times`` says nothing else.
        times: of the frames, s.
        seed: of what is shown.
    """
    told = list(times or [index / fps for index in range(count)])
    boxes = []
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if times is not None:
            stream.codec_context.time_base = _BASE
        for index, (picture, box) in enumerate(scenes(len(told), size, seed)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times is not None:
                frame.time_base, frame.pts = _BASE, round(told[index] / _BASE)
            container.mux(stream.encode(frame))
            boxes.append(box)
        container.mux(stream.encode())
    return Film(path, told, boxes)


def turned(film: Film, path: Path, degrees: int) -> Film:
    """The film as a phone stores it: an MP4 whose header says by how much, clockwise, a player is to turn it."""
    cosine, sine = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    one, whole = 1 << 16, 1 << 30
    matrix = struct.pack(">9i", cosine * one, sine * one, 0, -sine * one, cosine * one, 0, 0, 0, whole)
    upright = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, whole)
    data = film.path.read_bytes()
    at = data.index(upright, data.index(b"tkhd"))
    path.write_bytes(data[:at] + matrix + data[at + len(matrix) :])
    width, height = SIZE
    boxes: list[Box] = []
    for x1, y1, x2, y2 in film.boxes:
        boxes.append(
            {
                90: (height - y2, x1, height - y1, x2),
                180: (width - x2, height - y2, width - x1, height - y1),
                270: (y1, width - x2, y2, width - x1),
            }[degrees]
        )
    return Film(path, film.times, boxes)
