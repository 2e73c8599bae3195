"""Faces or an error -> the bytes of an answer.

JSON is written by this module alone, never with NaN. Coordinates are rounded to a thousandth of a pixel,
scores to a millionth: well under what the network resolves.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from handler.crops import align
from handler.detections import LANDMARKS, Detections
from handler.detectors.base import Result
from handler.errors import DeadlineExceeded, MogFaceError, TooLarge
from handler.geometry import Uint8
from handler.options import Options

JSON = "application/json"
#: Formats without loss: an annotated picture of one comes back as PNG, any other as JPEG.
_LOSSLESS = ("PNG", "GIF", "BMP", "TIFF")
_JPEG_QUALITY = 95


@dataclass(frozen=True)
class Response:
    """What goes back.

    Attributes:
        status: of HTTP.
        content_type: of the body.
        body: its bytes.
        faces: how many it tells of.
        error: the error's type, for the log; empty where there is none.
    """

    status: int
    content_type: str
    body: bytes
    faces: int = 0
    error: str = ""


@dataclass(frozen=True)
class Answered:
    """One image's way through: what an answer is made of.

    Attributes:
        result: its faces.
        decode_ms: what decoding took.
        format: it came in.
        image: [H, W, 3] uint8 RGB, where a picture goes into the answer.
        cached: whether nothing was decoded or run for it.
    """

    result: Result
    decode_ms: float
    format: str
    image: Uint8 | None = None
    cached: bool = False


@dataclass(frozen=True)
class ModelInfo:
    """What answers say of the model: the archive's name and version, and what runs in it."""

    name: str
    version: str
    weights: str
    engine: str
    precision: str


class Budget:
    """What one answer may take: bytes, and time until the batch's deadline.

    Args:
        limit: bytes.
        deadline: of ``time.monotonic()``.
    """

    def __init__(self, limit: int, deadline: float) -> None:
        self._limit = limit
        self._left = limit
        self._deadline = deadline

    def spend(self, size: int) -> None:
        """Count bytes that go into the answer.

        Raises:
            TooLarge: it is over its limit. TorchServe would break the worker's connection over it, and with it every
                answer of the batch.
            DeadlineExceeded: it is not finished in time.
        """
        self._left -= size
        self.whole(self._limit - self._left)
        if time.monotonic() > self._deadline:
            raise DeadlineExceeded(
                "the answer was not finished in time: ask for fewer faces or images, or send it again"
            )

    def whole(self, size: int) -> None:
        """Raises TooLarge where the whole answer has ``size`` bytes and that is over its limit."""
        if size > self._limit:
            raise TooLarge(
                f"the answer is over the limit of {self._limit:,} bytes: ask for fewer images, fewer faces (max_faces) "
                "or no crops"
            )


def encode(
    answers: Sequence[Answered | MogFaceError],
    several: bool,
    options: Options,
    model: ModelInfo,
    batch_size: int,
    budget: Budget,
) -> Response:
    """The answer to one request.

    Args:
        answers: one an image.
        several: whether they go under ``results``; a single error is then no error of the request.
        options: of the request.
        model: what ran.
        batch_size: requests that ran together.
        budget: what the answer may take.

    Raises:
        TooLarge, DeadlineExceeded: as Budget.
    """
    faces = sum(len(answer.result.detections) for answer in answers if isinstance(answer, Answered))
    if not several:
        (answer,) = answers
        if isinstance(answer, MogFaceError):
            return encode_error(answer)
        if options.output == "image":
            return _picture(answer, budget)
        return _within(Response(200, JSON, _dump(_one(answer, options, model, batch_size, budget)), faces), budget)
    results = [
        _error(answer) if isinstance(answer, MogFaceError) else _one(answer, options, model, batch_size, budget)
        for answer in answers
    ]
    return _within(Response(200, JSON, _dump({"results": results}), faces), budget)


def encode_error(error: MogFaceError) -> Response:
    """``{"error": {"code", "type", "message"}}`` under the same status."""
    return Response(error.status, JSON, _dump(_error(error)), error=error.type)


def _within(response: Response, budget: Budget) -> Response:
    budget.whole(len(response.body))
    return response


def _one(answer: Answered, options: Options, model: ModelInfo, batch_size: int, budget: Budget) -> dict[str, Any]:
    faces = answer.result.detections
    boxes, scores = _rounded(faces.boxes, 3), _rounded(faces.scores, 6)
    points = [
        _rounded(landmarks, 3) if has else None
        for landmarks, has in zip(faces.landmarks, faces.has_landmarks, strict=True)
    ]
    if options.output == "modelscope":
        flat = [[number for point in each for number in point] if each else None for each in points]
        return {"scores": scores, "boxes": boxes, "keypoints": flat if options.wants_landmarks else None}
    listed: list[dict[str, Any]] = [
        {"box": box, "score": score, "landmarks": dict(zip(LANDMARKS, each, strict=True)) if each else None}
        for box, score, each in zip(boxes, scores, points, strict=True)
    ]
    if options.crops and answer.image is not None:
        for face, landmarks, has in zip(listed, faces.landmarks, faces.has_landmarks, strict=True):
            face["crop"] = _base64_jpeg(align(answer.image, landmarks)) if has else None
            # As it grows, so that what cannot be sent is not built first.
            budget.spend(len(face["crop"] or ""))
    timing = {"decode": answer.decode_ms, **answer.result.timing_ms}
    return {
        "model": model.__dict__,
        "image": {"width": faces.width, "height": faces.height},
        "canvas": str(answer.result.placement.canvas),
        "scale": round(answer.result.placement.scale, 6),
        "faces": listed,
        "timing_ms": {stage: round(value, 2) for stage, value in timing.items()},
        "batch_size": batch_size,
        **({"cached": True} if answer.cached else {}),
    }


def _error(error: MogFaceError) -> dict[str, Any]:
    return {"error": {"code": error.status, "type": error.type, "message": error.message}}


class _Spent(io.BytesIO):
    """A file in memory whose bytes are spent as they are written: a picture that cannot be sent is not finished."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def write(self, data: Any) -> int:
        """Raises as Budget.spend."""
        self._budget.spend(len(data))
        return super().write(data)


def _picture(answer: Answered, budget: Budget) -> Response:
    assert answer.image is not None
    lossless = answer.format in _LOSSLESS
    data = _Spent(budget)
    picture = annotate(answer.image, answer.result.detections)
    picture.save(data, "PNG" if lossless else "JPEG", quality=_JPEG_QUALITY)
    content_type = "image/png" if lossless else "image/jpeg"
    return Response(200, content_type, data.getvalue(), len(answer.result.detections))


def annotate(image: Uint8, faces: Detections) -> Image.Image:
    """The picture with a box, a score and, where there are any, five points a face.

    Args:
        image: [H, W, 3] uint8 RGB, upright.
        faces: of this image.
    """
    picture = Image.fromarray(image)
    draw = ImageDraw.Draw(picture)
    stroke = max(2, round(max(picture.size) / 400))
    for box, score, points, has in zip(faces.boxes, faces.scores, faces.landmarks, faces.has_landmarks, strict=True):
        x1, y1, x2, y2 = box.tolist()
        draw.rectangle((x1, y1, x2, y2), outline=(0, 230, 90), width=stroke)
        size = float(np.clip((x2 - x1) / 6, 10, 40))
        draw.text((x1, max(0.0, y1 - size * 1.2)), f"{score:.2f}", fill=(0, 230, 90), font_size=size)
        for x, y in points.tolist() if has else []:
            draw.ellipse((x - stroke, y - stroke, x + stroke, y + stroke), fill=(255, 60, 60))
    return picture


def _base64_jpeg(picture: Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=_JPEG_QUALITY)
    return base64.b64encode(data.getvalue()).decode("ascii")


def _rounded(array: np.ndarray[Any, np.dtype[np.float32]], digits: int) -> list[Any]:
    # float64 first: rounding in float32 leaves long decimals.
    return np.round(array.astype(np.float64), digits).tolist()  # type: ignore[no-any-return]


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("utf-8")
