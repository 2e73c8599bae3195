"""What a pipeline counts of each batch; the series are those of :mod:`handler.metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from handler import metrics
from handler.config import Settings
from handler.detectors import Detector
from handler.errors import MogFaceError, RequestError, ServiceError
from handler.geometry import NATIVE
from handler.metrics import Meter
from handler.response import Answered, Response


def _types(root: type[MogFaceError]) -> Iterator[str]:
    for error in root.__subclasses__():
        yield error.type
        yield from _types(error)


#: How a request or an image can end.
OUTCOMES = ("ok", *sorted({*_types(RequestError), *_types(ServiceError)}))
#: How looking an image up in the cache can end: it is there, it is not, or the same image is already in this batch.
HIT, MISS, DUPLICATE = LOOKUPS = ("hit", "miss", "duplicate")


class Counts:
    """One pipeline's, on its meter; every series that is known beforehand is shown at zero.

    Args:
        meter: takes them.
        detector: with its stages and levels.
        settings: the archive's own.
    """

    def __init__(self, meter: Meter, detector: Detector, settings: Settings) -> None:
        self._meter = meter
        self._detector = detector
        self._canvases = settings.canvases
        for outcome in OUTCOMES:
            meter.open(metrics.REQUESTS, outcome)
            meter.open(metrics.IMAGES, outcome)
        for stage in ("decode", "preprocess", *detector.stages, "postprocess", "encode"):
            meter.open(metrics.STAGE_SECONDS, stage)
        for canvas in (*map(str, settings.canvases), NATIVE):
            meter.open(metrics.CANVASES, canvas)
        for level in detector.levels:
            for box_head in ("run", "skipped"):
                meter.open(metrics.LEVELS, str(level), box_head)
        for histogram in (metrics.BATCH_REQUESTS, metrics.BATCH_SECONDS, metrics.RUN_IMAGES):
            meter.open(histogram)
        for result in LOOKUPS:
            meter.open(metrics.CACHE_LOOKUPS, result)
        meter.open(metrics.CACHE_EVICTIONS)

    def encoded(self, seconds: float) -> None:
        """What writing one request's answer took."""
        self._meter.observe(metrics.STAGE_SECONDS, seconds, "encode")

    def looked_up(self, result: str) -> None:
        """One image in the cache; of LOOKUPS."""
        self._meter.add(metrics.CACHE_LOOKUPS, 1, result)

    def evicted(self, results: int) -> None:
        """Results that left the cache for others."""
        self._meter.add(metrics.CACHE_EVICTIONS, results)

    def batch(self, responses: Sequence[Response], images: Iterable[Answered | MogFaceError], seconds: float) -> None:
        """One batch.

        Args:
            responses: to its requests.
            images: of all of them.
            seconds: that it took.
        """
        meter = self._meter
        meter.observe(metrics.BATCH_REQUESTS, len(responses))
        meter.observe(metrics.BATCH_SECONDS, seconds)
        for response in responses:
            meter.add(metrics.REQUESTS, 1, response.error or "ok")
            meter.add(metrics.FACES, response.faces)
        ran = []
        for image in images:
            meter.add(metrics.IMAGES, 1, image.type if isinstance(image, MogFaceError) else "ok")
            if isinstance(image, Answered) and not image.cached:
                self._image(image)
                ran.append(image)
        for run in dict.fromkeys(run for image in ran for run in image.result.runs):
            if "network" in run.seconds:
                meter.observe(metrics.RUN_IMAGES, run.images)
            for stage, taken in run.seconds.items():
                meter.observe(metrics.STAGE_SECONDS, taken, stage)

    def _image(self, image: Answered) -> None:
        meter, canvas, timing = self._meter, image.result.placement.canvas, image.result.timing_ms
        # A native canvas has the size of a caller's picture, of which there are too many for a label.
        meter.add(metrics.CANVASES, 1, str(canvas) if canvas in self._canvases else NATIVE)
        for level in self._detector.levels:
            meter.add(metrics.LEVELS, 1, str(level), "run" if level in image.result.levels else "skipped")
        meter.observe(metrics.STAGE_SECONDS, image.decode_ms / 1000, "decode")
        for stage in timing.keys() & {"preprocess", "postprocess"}:
            meter.observe(metrics.STAGE_SECONDS, timing[stage] / 1000, stage)
