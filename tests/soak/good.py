"""Photographs whose faces are known, and what each has to be answered, whatever runs beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from tests.photographs import ASTRONAUT, HOPPER, NO_FACES, compose, iou
from tests.support import saved

_ALIKE = 0.7
#: Of an answer, what differs from time to time.
_VARYING = ("timing_ms", "batch_size")


@dataclass(frozen=True)
class Photograph:
    """One file.

    Attributes:
        name: for messages.
        data: its bytes.
        boxes: of its faces, x1 y1 x2 y2, px, as whoever made it knows them.
    """

    name: str
    data: bytes
    boxes: tuple[tuple[float, ...], ...]


def photographs() -> list[Photograph]:
    """Several sizes and formats; with one face, many and none."""
    with Image.open(ASTRONAUT.path) as file:
        astronaut = file.convert("RGB")
    with Image.open(NO_FACES[0]) as file:
        coffee = file.convert("RGB").resize((640, 480))
    made = [
        Photograph("portrait, JPEG", HOPPER.path.read_bytes(), (HOPPER.box,)),
        Photograph("portrait, WebP", saved(astronaut, "WEBP", quality=90), (ASTRONAUT.box,)),
        Photograph("nobody, PNG", saved(coffee, "PNG"), ()),
    ]
    for number, (height, width) in enumerate(((480, 640), (640, 480), (384, 640))):
        pixels, boxes = compose(number + 3, height, width)
        data = saved(Image.fromarray(pixels), "JPEG", quality=92)
        made.append(Photograph(f"{width}x{height}, JPEG", data, tuple(map(tuple, boxes.tolist()))))
    large = astronaut.resize((2400, 2400))
    boxes_ = (tuple(number * 2400 / 512 for number in ASTRONAUT.box),)
    made.append(Photograph("6 megapixels, JPEG", saved(large, "JPEG", quality=85), boxes_))
    return made


def told(body: bytes) -> object:
    """What of an answer's body has to be the same every time: all but times and the batch's size."""
    try:
        answer = json.loads(body)
    except ValueError:
        return body
    return _without(answer)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in _VARYING}
    if isinstance(value, list):
        return [_without(each) for each in value]
    return value


def require_faces(photograph: Photograph, answer: Mapping[str, Any]) -> None:
    """By the default threshold, each face where it is, and no more.

    Raises:
        AssertionError: the server does not know its photographs: a soak on it would mean nothing.
    """
    found = [face["box"] for face in answer["faces"]]
    missed = [box for box in photograph.boxes if not any(iou(box, other) > _ALIKE for other in found)]
    if missed or len(found) != len(photograph.boxes):
        raise AssertionError(f"{photograph.name}: the server finds {found}, expected {list(photograph.boxes)}")
