"""What a request may ask for, validated once and never changed after."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handler.errors import InvalidOption
from handler.geometry import NATIVE, Canvas

ORDERS = ("score", "size")
OUTPUTS = ("json", "modelscope", "image")
AUTO = "auto"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True)
class Options:
    """One request's options; an archive's own values are the defaults.

    Attributes:
        score_threshold: a face's score must be over it; 0..1.
        nms_threshold: intersection over union over which the weaker of two boxes goes; 0..1.
        max_faces: at most so many faces, cut after ordering; 1..5000.
        order: ``score`` or ``size``, falling.
        min_face_size: side in source px of the square of a box's area under which faces are left
            out; restricts MogFace itself, whose finer levels are then not run; 0..100000.
        canvas: ``auto``, ``native`` or one of the archive's canvases, as ``480x640``.
        landmarks: whether five points a face are wanted.
        crops: whether each face comes as a 112x112 picture aligned by its landmarks; in ``json`` alone.
        output: ``json``, ``modelscope`` or ``image``.
    """

    score_threshold: float
    nms_threshold: float
    max_faces: int = 750
    order: str = "score"
    min_face_size: float = 0.0
    canvas: str = AUTO
    landmarks: bool = False
    crops: bool = False
    output: str = "json"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _PARSERS[field.name](field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        if self.crops and self.output != "json":
            raise InvalidOption(f"crops is true and output {self.output!r}: only output 'json' has room for crops")

    @property
    def wants_landmarks(self) -> bool:
        """Crops are aligned by landmarks, so they need them too."""
        return self.landmarks or self.crops

    def updated(self, given: Mapping[str, object], canvases: Sequence[Canvas]) -> Options:
        """These options with those of a request.

        Args:
            given: names to values, of JSON types or text.
            canvases: those of the archive.

        Raises:
            InvalidOption: naming what is allowed.
        """
        unknown = sorted(set(given) - set(NAMES))
        if unknown:
            raise InvalidOption(f"unknown option {_shown(unknown[0])}: the options are {', '.join(NAMES)}")
        # dataclasses.replace is typed by Any for its changes.
        changes: dict[str, Any] = dict(given)
        options = dataclasses.replace(self, **changes)
        options.require_canvas(canvases)
        return options

    def require_canvas(self, canvases: Sequence[Canvas]) -> None:
        """Raise InvalidOption unless ``canvas`` is one of these, ``auto`` or ``native``."""
        allowed = [AUTO, NATIVE, *map(str, canvases)]
        if self.canvas not in allowed:
            shown = _shown(self.canvas)
            raise InvalidOption(f"canvas is {shown}: this archive has {', '.join(allowed)} (height x width)")


def _number(low: float, high: float) -> Callable[[str, object], float]:
    def parse(name: str, value: object) -> float:
        number = math.nan
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            with contextlib.suppress(ValueError, OverflowError):
                # Python reads 1_000 as a number; no other language does.
                number = float(value) if "_" not in str(value) else math.nan
        if not low <= number <= high:
            raise InvalidOption(f"{name} is {_shown(value)}: expected a number from {low:g} to {high:g}")
        return number

    return parse


def _integer(low: int, high: int) -> Callable[[str, object], int]:
    number = _number(low, high)

    def parse(name: str, value: object) -> int:
        parsed = number(name, value)
        if parsed != int(parsed):
            raise InvalidOption(f"{name} is {_shown(value)}: expected a whole number from {low} to {high}")
        return int(parsed)

    return parse


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "1", "false", "0"):
        return value.strip().lower() in ("true", "1")
    raise InvalidOption(f"{name} is {_shown(value)}: expected true or false")


def _one_of(allowed: Sequence[str]) -> Callable[[str, object], str]:
    def parse(name: str, value: object) -> str:
        if isinstance(value, str) and value.strip() in allowed:
            return value.strip()
        raise InvalidOption(f"{name} is {_shown(value)}: expected one of {', '.join(allowed)}")

    return parse


def _canvas(name: str, value: object) -> str:
    """Only text here; which canvases there are, the archive knows."""
    if not isinstance(value, str):
        raise InvalidOption(f"{name} is {_shown(value)}: expected {AUTO}, {NATIVE} or a size such as '480x640'")
    return value.strip()


def _shown(value: object) -> str:
    """A value as it came, shortened: a message must not carry megabytes back, nor a list be written out for it."""
    try:
        text = _SHORT.repr(value)
    except (RecursionError, ValueError):
        # Nested too deep, or a number of more digits than Python writes.
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


_PARSERS: dict[str, Callable[[str, object], object]] = {
    "score_threshold": _number(0, 1),
    "nms_threshold": _number(0, 1),
    "max_faces": _integer(1, 5000),
    "order": _one_of(ORDERS),
    "min_face_size": _number(0, 100_000),
    "canvas": _canvas,
    "landmarks": _flag,
    "crops": _flag,
    "output": _one_of(OUTPUTS),
}
NAMES = tuple(_PARSERS)
