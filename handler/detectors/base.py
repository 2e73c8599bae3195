"""What every detector is: how images become batches, and how a fault stays with its image."""

from __future__ import annotations

import abc
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from handler import exhaustion
from handler.config import Settings
from handler.detections import Detections
from handler.errors import DeadlineExceeded, EngineError, InvalidOption, MogFaceError, OutOfMemory
from handler.geometry import (
    NATIVE,
    Canvas,
    Float32,
    Placement,
    Reduced,
    Uint8,
    choose_canvas,
    letterbox,
    place,
    place_native,
    size_of,
)
from handler.nms import rank
from handler.options import AUTO, Options

log = logging.getLogger("mogface")

#: Strongest candidates of an image that reach suppression, as in ModelScope's detector.
TOP_K = 5000


@dataclass(frozen=True)
class Prepared:
    """One image, ready for the network.

    Attributes:
        array: [canvas height, canvas width, 3] uint8 RGB.
        placement: how the image lies on it.
        options: of its request.
        fraction: None, or float32 like ``array``: what ``array`` lacks of unrounded values.
        image: the upright source, [H, W, 3] uint8 RGB, where a later stage needs it.
        milliseconds: what the preparation took.
    """

    array: Uint8
    placement: Placement
    options: Options
    fraction: Float32 | None = None
    image: Uint8 | None = None
    milliseconds: float = 0.0


# One object for all images of a run, told from another by being another.
@dataclass(frozen=True, eq=False)
class Run:
    """One run of the network, or of the landmarks behind it, over images that went together.

    Attributes:
        images: how many.
        seconds: by stage. The host's time between this run's own waits for the device: what a GPU does meanwhile
            counts to the stage that waits for it next, and nothing waits for the sake of the measurement.
    """

    images: int
    seconds: Mapping[str, float]


class Stopwatch:
    """Seconds by stage: each lap adds the time since the last one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End a stage, or a part of one."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


@dataclass(frozen=True)
class Result:
    """One image's faces, and how they were found.

    Attributes:
        detections: in the order and number the options ask for.
        placement: canvas and scale.
        timing_ms: milliseconds by stage: preprocess, network, postprocess, landmarks. Of a batch that ran
            together each image says the whole batch's time.
        levels: strides of the levels whose boxes were computed, where the detector has levels.
        runs: that this image went through.
    """

    detections: Detections
    placement: Placement
    timing_ms: dict[str, float] = field(default_factory=dict)
    levels: tuple[int, ...] = ()
    runs: tuple[Run, ...] = ()


class Detector(abc.ABC):
    """Faces of many images of any sizes, each answered as if alone."""

    #: Colour of the pad, RGB.
    fill: tuple[int, int, int] = (0, 0, 0)
    #: What the sides of a ``native`` array must be multiples of.
    multiple: int = 1
    #: Whether landmarks are found on the source image, which is then kept; it can be far larger than its canvas.
    landmarks_on_source: bool = False
    #: What its runs tell the seconds of.
    stages: tuple[str, ...] = ("network",)
    #: Strides of its levels, where each can be left out.
    levels: tuple[int, ...] = ()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def place(self, height: int, width: int, options: Options) -> Placement:
        """Where an image of this size, upright, lies on its canvas; may be asked from many threads at once."""
        if options.canvas == NATIVE:
            return place_native(height, width, self.multiple)
        if options.canvas == AUTO:
            canvases, long_side = self.settings.canvases, self.settings.long_side
            return place(height, width, choose_canvas(height, width, canvases, long_side))
        return place(height, width, Canvas.parse(options.canvas))

    def prepare(self, image: Uint8 | Image.Image, options: Options, reduced: Reduced | None = None) -> Prepared:
        """Put one image on its canvas. May run in many threads at once.

        Args:
            image: [H, W, 3] uint8 RGB, upright; or Pillow's picture in RGB.
            options: of its request.
            reduced: where ``image`` stands for a larger one, which the faces will be found in. Not for an image that
                ``looks_at_source``.
        """
        started = time.perf_counter()
        native = options.canvas == NATIVE
        placement = self.place(*(reduced.source if reduced else size_of(image)), options)
        kept = None
        if self.looks_at_source(options):
            assert reduced is None
            image = np.asarray(image)
            kept = image if options.wants_landmarks and self.landmarks_on_source else None
        array, fraction = self._array(image, placement, reduced, native)
        shapes = {"image": (1, *array.shape)} | ({} if fraction is None else {"fraction": (1, *fraction.shape)})
        if native and not self._takes(shapes):
            allowed = ", ".join([AUTO, *map(str, self.settings.canvases)])
            raise InvalidOption(
                f"canvas is 'native', {placement.canvas} here, which engine {self.settings.engine} has no plan for: "
                f"this archive has {allowed} (height x width)"
            )
        return Prepared(array, placement, options, fraction, kept, _since(started))

    def looks_at_source(self, options: Options) -> bool:
        """Whether these options take more of an image than its canvas: exact values, or landmarks at its full size."""
        return options.canvas == NATIVE or (options.wants_landmarks and self.landmarks_on_source)

    def _takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the first graph takes inputs of these names and shapes; here any."""
        return True

    def _array(
        self, image: Uint8 | Image.Image, placement: Placement, reduced: Reduced | None, native: bool
    ) -> tuple[Uint8, Float32 | None]:
        """The canvas array, and what it lacks of unrounded values; ``native`` is the canvas that was asked for."""
        return letterbox(image, placement, self.fill, reduced), None

    def detect(self, images: Iterable[Prepared], deadline: float) -> list[Result | MogFaceError]:
        """Find the faces of every image.

        Images of one canvas run together, at most ``engine_batch`` at a time, as soon as so many have come. When a
        batch fails, or memory is out, it is halved until the fault is alone: it costs only the image that caused it.

        Args:
            images: in any order and of any sizes. They may come one by one while others run; which ones run together
                is decided by their order alone.
            deadline: of ``time.monotonic()``; images whose batch has not begun by then are not run.

        Returns:
            In the order of ``images``: a result, or the error that belongs to that image.
        """
        size = self.settings.engine_batch
        groups: dict[tuple[Canvas, bool], list[int]] = defaultdict(list)
        results: dict[int, Result | MogFaceError] = {}
        come: list[Prepared] = []
        for index, image in enumerate(images):
            come.append(image)
            members = groups[image.placement.canvas, image.fraction is not None]
            members.append(index)
            if len(members) == size:
                self._run(members.copy(), come, deadline, results)
                members.clear()
        for members in groups.values():
            self._run(members, come, deadline, results)
        return self._complete(come, [results[index] for index in range(len(come))], deadline)

    def _run(
        self, members: list[int], come: Sequence[Prepared], deadline: float, results: dict[int, Result | MogFaceError]
    ) -> None:
        """Run some of the images together, in halves where that fails, and add their results."""
        # Last in, first out: the halves of a failed chunk come next.
        chunks = [members] if members else []
        while chunks:
            chunk = chunks.pop()
            results.update(self._attempt(chunk, [come[index] for index in chunk], deadline, chunks))

    def _complete(
        self, images: Sequence[Prepared], results: list[Result | MogFaceError], deadline: float
    ) -> list[Result | MogFaceError]:
        """What is added once all images are through, whatever their canvas; here nothing."""
        return results

    def _attempt(
        self, indices: list[int], images: list[Prepared], deadline: float, retries: list[list[int]]
    ) -> dict[int, Result | MogFaceError]:
        late = time.monotonic() - deadline
        if late > 0:
            message = f"not begun within {self.settings.deadline_s:g} s of its batch's arrival; send it again"
            return {index: DeadlineExceeded(message) for index in indices}
        try:
            return dict(zip(indices, self._detect(images), strict=True))
        except Exception as error:
            failure = exhaustion.failure(error, len(indices))
            if failure is None:
                raise
        # Only here is the error gone, and with it the tensors that its traceback held.
        if isinstance(failure, OutOfMemory):
            exhaustion.release()
            log.warning(json.dumps({"event": "out_of_memory", "images": len(indices)}))
        if len(indices) == 1:
            return {indices[0]: failure}
        middle = len(indices) // 2
        retries += [indices[middle:], indices[:middle]]
        return {}

    @abc.abstractmethod
    def _detect(self, images: list[Prepared]) -> list[Result]:
        """Faces of images that share one canvas.

        Raises:
            EngineError: the batch cannot be answered.
        """

    def warm_up(self, device: torch.device) -> None:
        """Run once before the first request, so that it waits for nothing.

        Args:
            device: a GPU prepares itself for each canvas; a CPU only for the first run, of the least one.
        """
        allowed = [canvas for canvas in self.settings.canvases if max(canvas) <= self.settings.long_side]
        least = min(allowed, key=lambda canvas: canvas.height * canvas.width)
        for canvas in [least] if device.type == "cpu" else allowed:
            self._detect([self.prepare(np.zeros((*canvas, 3), np.uint8), self.settings.options)])


def finish(boxes: Float32, scores: Float32, landmarks: Float32, placement: Placement, options: Options) -> Detections:
    """Suppressed boxes on the canvas -> the faces an answer holds.

    To source pixels, clipped to the image; a box wholly outside it (it lies in the pad) is left out; then
    ``min_face_size``, ``order`` and ``max_faces``, in this order.

    Args:
        boxes: [N, 4] float32 canvas px, by falling score.
        scores: [N] float32.
        landmarks: [N, 5, 2] float32 canvas px, NaN where there are none.
        placement: of the image.
        options: of its request.

    Raises:
        EngineError: numbers that are not finite.
    """
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
        raise EngineError("the network gave boxes or scores that are not finite")
    height, width = placement.source
    boxes = placement.to_source(boxes)
    inside = (boxes[:, 2] >= 0) & (boxes[:, 3] >= 0) & (boxes[:, 0] <= width - 1) & (boxes[:, 1] <= height - 1)
    boxes = np.clip(boxes[inside], 0, np.array([width - 1, height - 1] * 2, np.float32))
    points = placement.to_source(landmarks[inside].reshape(-1, 10)).reshape(-1, 5, 2)
    try:
        faces = Detections(boxes, scores[inside], points, height, width)
    except ValueError as error:
        raise EngineError(f"the network gave impossible faces: {error}") from error
    if options.min_face_size > 0:
        faces = faces[faces.sizes >= options.min_face_size]
    if options.order == "size":
        faces = faces[rank(faces.sizes)]
    return faces[: options.max_faces] if len(faces) > options.max_faces else faces


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
