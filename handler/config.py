"""The detector's settings: ``detector.yaml``, written when an archive is packed."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handler.errors import ConfigError, InvalidOption
from handler.geometry import Canvas
from handler.options import NAMES, Options

FILE = "detector.yaml"
DETECTORS = ("mogface", "centerface")
ENGINES = ("ort", "trt", "torch", "winograd")
PRECISIONS = ("fp32", "fp16", "int8")
DEVICES = ("auto", "cpu", "cuda")
#: Pillow itself warns of decompression bombs over this many pixels.
PIXELS_CEILING = 89_478_485


@dataclass(frozen=True)
class Limits:
    """What one request may cost.

    Attributes:
        bytes: of one encoded image.
        pixels: of one decoded image, known from its header before it is decoded.
        images: in one request.
        request_pixels: of all images of one request together, as their headers say them.
        response_bytes: of one answer; keep it under ``max_response_size`` of config.properties.

    A batch of more images or pixels than one request may have runs in parts of no more. So a worker takes at most::

        what it has after load
        + 28 pixels                                      decoding, of all images that are decoded side by side
        + 3 request_pixels                               upright pictures, for crops, landmarks and annotated answers
        + 15 MB x max(images, batchSize)                 canvases; 1.2 MB each where none is over 640x640
        + batchSize (2 max_request_size + 2 response_bytes)   bodies and answers, each once more while it is copied
        + cache_bytes                                    of Settings

    28 bytes a pixel are those of the costliest kind of image; ``handler.image.MEMORY`` has each kind's.
    """

    bytes: int = 21_000_000
    pixels: int = 50_000_000
    images: int = 32
    request_pixels: int = 150_000_000
    response_bytes: int = 28_000_000

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if getattr(self, each.name) < 1:
                raise ConfigError(f"limits.{each.name} is {getattr(self, each.name)}: expected 1 or more")
        if self.pixels > PIXELS_CEILING:
            raise ConfigError(f"limits.pixels is {self.pixels}: expected at most {PIXELS_CEILING}")


@dataclass(frozen=True)
class Settings:
    """Everything of ``detector.yaml``.

    Attributes:
        detector: ``mogface`` or ``centerface``.
        weights: where the weights came from, as every answer says it.
        options: the defaults of a request.
        engine: which library runs the graphs.
        precision: of the graphs.
        device: ``cpu``, ``cuda`` (refused where there is none), or ``auto``: a GPU where torch sees one.
        canvases: sizes the network may run at.
        long_side: the longest canvas side that ``canvas: auto`` may take.
        engine_batch: images that run together; on a CPU more than 1 gains nothing and costs memory.
        finest_batch: of these, images whose finest level runs together in MogFace's heads, which needs the most memory;
            0 is as many as the plan takes. For engine ``trt``.
        cuda_graphs: launch trunk and score head as CUDA graphs, which saves launches and costs a copy of their inputs
            and outputs. For engine ``trt``; no GPU has run it yet.
        threads: of the engine; 0 is OMP_NUM_THREADS where set, else this process's cores.
        decode_threads: images decoded side by side; 0 is this process's cores.
        deadline_s: an image not begun so many seconds after its batch came is answered 503.
        level_skipping: run MogFace's box head only where a level has a score over the threshold.
        draft: decode large JPEGs at a half, a quarter or an eighth of their size, down to twice what the canvas shows
            of them. Not where the answer shows the picture, for canvas ``native`` and for MogFace's landmarks.
        cache_bytes: for the results of images that were answered before; 0 keeps none. See handler.cache.
        log_requests: one structured line a request.
        limits: see Limits.
    """

    detector: str
    weights: str
    options: Options
    engine: str = "ort"
    precision: str = "fp32"
    device: str = "auto"
    canvases: tuple[Canvas, ...] = tuple(
        Canvas.parse(text) for text in ("640x640", "480x640", "640x480", "384x640", "640x384", "960x1280", "1280x960")
    )
    long_side: int = 640
    engine_batch: int = 1
    finest_batch: int = 0
    cuda_graphs: bool = False
    threads: int = 0
    decode_threads: int = 0
    deadline_s: float = 60.0
    level_skipping: bool = True
    draft: bool = False
    cache_bytes: int = 0
    log_requests: bool = True
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        choices = {
            "detector": DETECTORS,
            "engine": ENGINES,
            "precision": PRECISIONS,
            "device": DEVICES,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        if self.engine == "winograd" and (self.precision != "fp32" or self.device == "cuda"):
            raise ConfigError(f"precision is {self.precision}, device {self.device}: engine winograd runs fp32 on CPUs")
        least = {"engine_batch": 1, "finest_batch": 0, "threads": 0, "decode_threads": 0, "cache_bytes": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected {low} or more")
        for name in ("finest_batch", "cuda_graphs"):
            if getattr(self, name) and (self.detector, self.engine) != ("mogface", "trt"):
                raise ConfigError(
                    f"{name} is {getattr(self, name)}: it is for detector mogface on engine trt, and this is "
                    f"{self.detector} on {self.engine}"
                )
        if not 0 < self.deadline_s < 86_400:
            raise ConfigError(f"deadline_s is {self.deadline_s}: expected seconds over 0, under a day")
        try:
            self.options.require_canvas(self.canvases)
        except InvalidOption as error:
            raise ConfigError(f"options: {error}") from error
        if not any(max(canvas) <= self.long_side for canvas in self.canvases):
            raise ConfigError(f"long_side is {self.long_side}: none of the canvases is within it")

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Settings:
        """Settings out of plain YAML values.

        Raises:
            ConfigError: an unknown key, a missing one, or a value of the wrong type, by name.
        """
        values = dict(values)
        if isinstance(values.get("canvases"), list):
            values["canvases"] = tuple(Canvas.parse(str(text)) for text in typing.cast(list[Any], values["canvases"]))
        if isinstance(values.get("limits"), Mapping):
            values["limits"] = _build(Limits, typing.cast(Mapping[str, object], values["limits"]), "limits.")
        if isinstance(values.get("options"), Mapping):
            options = typing.cast(dict[str, Any], values["options"])
            unknown = sorted(map(str, set(options) - set(NAMES)))
            if unknown:
                raise ConfigError(f"unknown key 'options.{unknown[0]}': expected {', '.join(NAMES)}")
            try:
                values["options"] = Options(**options)
            except InvalidOption as error:
                raise ConfigError(f"options: {error}") from error
            except TypeError as error:
                raise ConfigError(f"options need score_threshold and nms_threshold: {error}") from error
        return _build(cls, values, "")

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read ``detector.yaml``.

        Raises:
            ConfigError: the file is missing, is no YAML mapping, or holds wrong settings.
        """
        import yaml

        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: expected a mapping of settings, got {type(values).__name__}")
        return cls.from_mapping(values)

    def dump(self) -> str:
        """The same settings as YAML, each key written out."""
        import yaml

        values = dataclasses.asdict(self)
        values["canvases"] = [str(canvas) for canvas in self.canvases]
        return yaml.safe_dump(values, sort_keys=False)


_T = typing.TypeVar("_T")


def _build(cls: type[_T], values: Mapping[str, object], where: str) -> _T:
    """A frozen dataclass of plain values, keys and types checked by name."""
    # get_type_hints resolves the annotations, which are text here.
    types = typing.get_type_hints(cls)
    unknown = sorted(map(str, set(values) - set(types)))
    if unknown:
        raise ConfigError(f"unknown key '{where}{unknown[0]}': expected {', '.join(types)}")
    for name, value in values.items():
        expected = typing.get_origin(types[name]) or types[name]
        if expected is float and isinstance(value, int) and not isinstance(value, bool):
            continue
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ConfigError(f"{where}{name} is {value!r}: expected {expected.__name__}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{where or FILE}: {error}") from error


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def engine_threads(setting: int) -> int:
    """The engine's thread count: the setting, else OMP_NUM_THREADS, else this process's cores."""
    if setting:
        return setting
    # OpenMP takes a list, one number a level of nesting: the outermost counts here.
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) else cores()
