"""What a request is answered with: values, parsed from the server's JSON and checked."""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from clients.errors import BadAnswer, shown

#: The order of ``Answer.landmarks``; right and left are the person's.
LANDMARKS = ("right_eye", "left_eye", "nose", "mouth_right", "mouth_left")

Float32 = npt.NDArray[np.float32]
_DIGITS = 60


@dataclass(frozen=True)
class Model:
    """What ran: the archive's name and version, and what is in it."""

    name: str
    version: str
    weights: str
    engine: str
    precision: str


@dataclass(frozen=True)
class Face:
    """One face, in px of the upright image, x to the right, y down.

    Attributes:
        box: x1 y1 x2 y2, clipped to the image.
        score: 0..1.
        landmarks: name to x y, named as ``LANDMARKS``; None where none were asked for or seen.
        crop: the aligned face as JPEG, where crops were asked for and landmarks seen.
    """

    box: tuple[float, float, float, float]
    score: float
    landmarks: Mapping[str, tuple[float, float]] | None = None
    crop: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """One image's answer.

    Attributes:
        model: what ran.
        width: of the upright image, px.
        height: of the upright image, px.
        canvas: height x width that the network ran at, as ``480x640``.
        scale: the canvas's px a px of the image.
        faces: in the order that was asked for.
        timing_ms: stage to ms of the server's time.
        batch_size: how many requests ran together.
        crops: whether crops were asked for.
        cached: whether the server had it from an earlier request, and ran nothing.
    """

    model: Model
    width: int
    height: int
    canvas: str
    scale: float
    faces: tuple[Face, ...]
    timing_ms: Mapping[str, float]
    batch_size: int
    crops: bool = False
    cached: bool = False

    @property
    def boxes(self) -> Float32:
        """[N, 4] float32: x1 y1 x2 y2, px."""
        return np.array([face.box for face in self.faces], np.float32).reshape(-1, 4)

    @property
    def scores(self) -> Float32:
        """[N] float32, 0..1."""
        return np.array([face.score for face in self.faces], np.float32)

    @property
    def landmarks(self) -> Float32:
        """[N, 5, 2] float32: x y of each of ``LANDMARKS``, px; NaN for a face without."""
        none = dict.fromkeys(LANDMARKS, (math.nan, math.nan))
        points = [[(face.landmarks or none)[name] for name in LANDMARKS] for face in self.faces]
        return np.array(points, np.float32).reshape(-1, len(LANDMARKS), 2)

    def to_json(self) -> dict[str, Any]:
        """The server's JSON again, its keys in the server's order."""
        return {
            "model": dict(self.model.__dict__),
            "image": {"width": self.width, "height": self.height},
            "canvas": self.canvas,
            "scale": self.scale,
            "faces": [self._face(face) for face in self.faces],
            "timing_ms": dict(self.timing_ms),
            "batch_size": self.batch_size,
            **({"cached": True} if self.cached else {}),
        }

    def _face(self, face: Face) -> dict[str, Any]:
        points = None
        if face.landmarks is not None:
            points = {name: list(point) for name, point in face.landmarks.items()}
        listed: dict[str, Any] = {"box": list(face.box), "score": face.score, "landmarks": points}
        if self.crops:
            listed["crop"] = None if face.crop is None else base64.b64encode(face.crop).decode("ascii")
        return listed

    @classmethod
    def parse(cls, value: object) -> Answer:
        """An answer out of parsed JSON. Keys that are not of the contract are left out: a later server may add some.

        Raises:
            BadAnswer: something is missing, of the wrong type or out of range, by name.
        """
        top = _mapping(value, "answer")
        model = _mapping(_get(top, "model"), "model")
        image = _mapping(_get(top, "image"), "image")
        faces = _get(top, "faces")
        if not isinstance(faces, list):
            _bad("faces", "a list", faces)
        timing = _mapping(_get(top, "timing_ms"), "timing_ms")
        return cls(
            model=Model(*(_text(_get(model, name), f"model.{name}") for name in Model.__dataclass_fields__)),
            width=_count(_get(image, "width"), "image.width"),
            height=_count(_get(image, "height"), "image.height"),
            canvas=_text(_get(top, "canvas"), "canvas"),
            scale=_number(_get(top, "scale"), "scale"),
            faces=tuple(_parse_face(face, f"faces[{index}]") for index, face in enumerate(faces)),
            timing_ms={stage: _number(ms, f"timing_ms.{stage}") for stage, ms in timing.items()},
            batch_size=_count(_get(top, "batch_size"), "batch_size"),
            crops=any("crop" in face for face in faces),
            cached=top.get("cached") is True,
        )


def _parse_face(value: object, where: str) -> Face:
    face = _mapping(value, where)
    points = _get(face, "landmarks")
    landmarks: dict[str, tuple[float, float]] | None = None
    if points is not None:
        named = _mapping(points, f"{where}.landmarks")
        if tuple(named) != LANDMARKS:
            _bad(f"{where}.landmarks", f"the keys {', '.join(LANDMARKS)}", points)
        landmarks = {}
        for name in LANDMARKS:
            x, y = _numbers(named[name], 2, f"{where}.landmarks.{name}")
            landmarks[name] = (x, y)
    x1, y1, x2, y2 = _numbers(_get(face, "box"), 4, f"{where}.box")
    if x1 > x2 or y1 > y2:
        _bad(f"{where}.box", "x1 <= x2 and y1 <= y2", face["box"])
    score = _number(_get(face, "score"), f"{where}.score")
    if not 0 <= score <= 1:
        _bad(f"{where}.score", "0..1", score)
    return Face((x1, y1, x2, y2), score, landmarks, _crop(face.get("crop"), f"{where}.crop"))


def _crop(value: object, where: str) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(_text(value, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadAnswer(f"{where} of the answer is no base64 text: {error}") from error


def _get(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise BadAnswer(f"the answer has no {name!r} beside {', '.join(map(repr, values))[:200] or 'nothing else'}")
    return values[name]


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _bad(where, "an object", value)


def _text(value: object, where: str) -> str:
    return value if isinstance(value, str) else _bad(where, "text", value)


def _count(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    return _bad(where, "a whole number, 1 or more", value)


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # JSON's integers may have any number of digits
            number = float(value)
            if math.isfinite(number):
                return number
    return _bad(where, "a finite number", value)


def _numbers(value: object, count: int, where: str) -> list[float]:
    if not isinstance(value, list) or len(value) != count:
        _bad(where, f"{count} numbers", value)
    return [_number(each, where) for each in value]


def _bad(where: str, expected: str, value: object) -> NoReturn:
    raise BadAnswer(f"{where} of the answer is {shown(value, _DIGITS)}: expected {expected}")
