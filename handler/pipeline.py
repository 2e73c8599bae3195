"""Requests -> responses: the whole of the service, with no server in it.

Errors stay where they arise. A request that cannot be read, an image that cannot be decoded, an image the
engine fails on: each answers for itself, and the others of the batch never notice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from handler import detectors, metrics
from handler.config import Settings, cores
from handler.detectors import Detector, Prepared
from handler.errors import DeadlineExceeded, InternalError, MogFaceError, RequestError, ServiceError, TooLarge
from handler.geometry import NATIVE, Uint8
from handler.image import COSTLIEST, Header, decode, read_header
from handler.metrics import Meter
from handler.options import Options
from handler.request import Parsed, Request, parse
from handler.response import Answered, Budget, ModelInfo, Response, encode, encode_error

log = logging.getLogger("mogface")

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: How a request or an image can end, as the metrics say it.
_OUTCOMES = ("ok", *sorted({error.type for root in (RequestError, ServiceError) for error in root.__subclasses__()}))


@dataclass(frozen=True)
class _Loaded:
    """One image decoded and put on its canvas."""

    prepared: Prepared
    decode_ms: float
    format: str
    image: Uint8 | None


@dataclass(frozen=True)
class _Form:
    """One request, read as far as its images' headers.

    Attributes:
        request: as it came.
        parsed: what was asked, or why it is refused.
        headers: one an image, or the error of one that has none.
    """

    request: Request
    parsed: Parsed | MogFaceError
    headers: Sequence[Header | MogFaceError] = ()

    @property
    def pixels(self) -> int:
        """Of all its images."""
        return sum(header.pixels for header in self.headers if isinstance(header, Header))


class _Room:
    """Memory for images that are decoded side by side.

    Args:
        size: bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


class Pipeline:
    """A detector and what surrounds it. Not for two threads at once.

    Args:
        detector: that finds the faces.
        settings: the archive's own.
        model: what answers say of it.
        meter: takes the counts and times; one of nobody's where None.

    Attributes:
        model: what answers say of it.
    """

    def __init__(self, detector: Detector, settings: Settings, model: ModelInfo, meter: Meter | None = None) -> None:
        self._detector = detector
        self._settings = settings
        self.model = model
        self._pool = ThreadPoolExecutor(settings.decode_threads or cores(), thread_name_prefix="decode")
        # Enough for any one image, so that each finds room in the end.
        self._room = _Room(COSTLIEST * settings.limits.pixels)
        self._meter = meter or Meter()
        self._open_series()

    @classmethod
    def load(
        cls,
        folder: Path,
        settings: Settings,
        name: str,
        version: str,
        device: torch.device,
        meter: Meter | None = None,
    ) -> Pipeline:
        """Out of an unpacked archive, warmed up.

        Args:
            folder: with the graphs.
            settings: the archive's own.
            name: of the model, as answers say it.
            version: of the archive.
            device: to run on.
            meter: see Pipeline.

        Raises:
            SetupError: what is wrong with the archive or the machine.
        """
        detector = detectors.load(folder, settings, device)
        detector.warm_up(device)
        info = ModelInfo(name, version, settings.weights, settings.engine, settings.precision)
        return cls(detector, settings, info, meter)

    def answer(self, requests: Sequence[Request]) -> list[Response]:
        """One response a request, in their order; never raises.

        Args:
            requests: that came together.
        """
        started = time.monotonic()
        deadline = started + self._settings.deadline_s
        responses: list[Response] = []
        ended: list[Answered | MogFaceError] = []
        for part in self._parts(self._read(requests)):
            loaded = self._load(part, deadline)
            good = [
                (form.request, image.prepared)
                for form, images in zip(part, loaded, strict=True)
                for image in images
                if isinstance(image, _Loaded)
            ]
            found = iter(self._detect(good, deadline))
            for form, images in zip(part, loaded, strict=True):
                answers = [
                    self._answered(image, next(found)) if isinstance(image, _Loaded) else image for image in images
                ]
                response = self._encode(form, answers, len(part), deadline)
                responses.append(response)
                # Counted without its picture, which the next part needs the memory of.
                ended += [_without_picture(answer) for answer in answers]
                self._log(form.request, response, len(images), time.monotonic() - started, len(part))
        self._count(responses, ended, time.monotonic() - started)
        return responses

    def _read(self, requests: Sequence[Request]) -> list[_Form]:
        """Requests and the headers of their images; a request of too many pixels is refused whole."""
        parsed = [self._own(request, parse, request, self._settings) for request in requests]
        futures = [
            [self._pool.submit(self._own, request, self._header, image) for image in form.images]
            if isinstance(form, Parsed)
            else []
            for request, form in zip(requests, parsed, strict=True)
        ]
        forms = [
            _Form(request, form, [future.result() for future in headers])
            for request, form, headers in zip(requests, parsed, futures, strict=True)
        ]
        return [self._within(form) for form in forms]

    def _header(self, data: bytes | bytearray | MogFaceError) -> Header | MogFaceError:
        return data if isinstance(data, MogFaceError) else read_header(data, self._settings.limits)

    def _within(self, form: _Form) -> _Form:
        most = self._settings.limits.request_pixels
        if form.pixels <= most:
            return form
        return _Form(
            form.request,
            TooLarge(
                f"the {len(form.headers)} images have {form.pixels:,} pixels: at most {most:,} a request are taken"
            ),
        )

    def _parts(self, forms: Sequence[_Form]) -> Iterator[list[_Form]]:
        """The batch in parts that hold no more than one request may: a worker's memory has to do for one part."""
        most_images = max(self._settings.limits.images, len(forms))
        part: list[_Form] = []
        images = pixels = 0
        for form in forms:
            images += len(form.headers)
            pixels += form.pixels
            if part and (images > most_images or pixels > self._settings.limits.request_pixels):
                yield part
                part, images, pixels = [], len(form.headers), form.pixels
            part.append(form)
        if part:
            yield part

    def _load(self, forms: Sequence[_Form], deadline: float) -> list[list[_Loaded | MogFaceError]]:
        """Decode every image side by side; Pillow releases the interpreter's lock."""
        futures = [
            [
                self._pool.submit(self._own, form.request, self._image, image, header, form.parsed.options, deadline)
                for image, header in zip(form.parsed.images, form.headers, strict=True)
            ]
            if isinstance(form.parsed, Parsed)
            else []
            for form in forms
        ]
        return [[future.result() for future in images] for images in futures]

    def _image(
        self,
        data: bytes | bytearray | MogFaceError,
        header: Header | MogFaceError,
        options: Options,
        deadline: float,
    ) -> _Loaded | MogFaceError:
        if isinstance(header, MogFaceError):
            return header
        assert not isinstance(data, MogFaceError)
        if time.monotonic() > deadline:
            return DeadlineExceeded(
                f"not decoded within {self._settings.deadline_s:g} s; send fewer images, or it again"
            )
        with self._room.taken(header.memory):
            started = time.perf_counter()
            decoded = decode(data, self._settings.limits)
            milliseconds = (time.perf_counter() - started) * 1000
        prepared = self._detector.prepare(decoded.array, options)
        # The full picture is kept only where the answer shows it: it can be far larger than the canvas.
        shown = decoded.array if options.crops or options.output == "image" else None
        return _Loaded(prepared, milliseconds, decoded.format, shown)

    def _detect(
        self, images: Sequence[tuple[Request, Prepared]], deadline: float
    ) -> list[detectors.Result | MogFaceError]:
        try:
            return self._detector.detect([image for _, image in images], deadline)
        except Exception:
            log.exception(json.dumps({"event": "fault", "images": len(images), "then": "each image alone"}))
            return [self._own(request, self._detect_alone, image, deadline) for request, image in images]

    def _detect_alone(self, image: Prepared, deadline: float) -> detectors.Result | MogFaceError:
        (result,) = self._detector.detect([image], deadline)
        return result

    @staticmethod
    def _answered(loaded: _Loaded, result: detectors.Result | MogFaceError) -> Answered | MogFaceError:
        if isinstance(result, MogFaceError):
            return result
        return Answered(result, loaded.decode_ms, loaded.format, loaded.image)

    def _encode(
        self, form: _Form, answers: Sequence[Answered | MogFaceError], batch_size: int, deadline: float
    ) -> Response:
        if isinstance(form.parsed, MogFaceError):
            return encode_error(form.parsed)
        # What was found in time is answered: only pictures, which can take minutes, are held to the deadline.
        budget = Budget(self._settings.limits.response_bytes, deadline)
        started = time.perf_counter()
        several, options = form.parsed.several, form.parsed.options
        response = self._own(form.request, encode, answers, several, options, self.model, batch_size, budget)
        self._meter.observe(metrics.STAGE_SECONDS, time.perf_counter() - started, "encode")
        return encode_error(response) if isinstance(response, MogFaceError) else response

    @staticmethod
    def _own(
        request: Request, step: Callable[_P, _T | MogFaceError], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T | MogFaceError:
        """A step's value, or the error that belongs to this request alone."""
        try:
            return step(*args, **kwargs)
        except MogFaceError as error:
            return error
        except Exception:
            # Whatever it is, it must not cost the other requests of the batch their answers.
            log.exception(json.dumps({"event": "fault", "request": request.id}))
            return InternalError(f"a fault of the server, logged under request {request.id or '(no id)'}")

    def _open_series(self) -> None:
        for outcome in _OUTCOMES:
            self._meter.open(metrics.REQUESTS, outcome)
            self._meter.open(metrics.IMAGES, outcome)
        for stage in ("decode", "preprocess", *self._detector.stages, "postprocess", "encode"):
            self._meter.open(metrics.STAGE_SECONDS, stage)
        for canvas in (*map(str, self._settings.canvases), NATIVE):
            self._meter.open(metrics.CANVASES, canvas)
        for level in self._detector.levels:
            for box_head in ("run", "skipped"):
                self._meter.open(metrics.LEVELS, str(level), box_head)
        for histogram in (metrics.BATCH_REQUESTS, metrics.BATCH_SECONDS, metrics.RUN_IMAGES):
            self._meter.open(histogram)

    def _count(self, responses: Sequence[Response], images: Sequence[Answered | MogFaceError], seconds: float) -> None:
        """Count one batch.

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
        for image in images:
            meter.add(metrics.IMAGES, 1, image.type if isinstance(image, MogFaceError) else "ok")
        answered = [image for image in images if isinstance(image, Answered)]
        for image in answered:
            canvas, timing = image.result.placement.canvas, image.result.timing_ms
            # A native canvas has the size of a caller's picture, of which there are too many for a label.
            meter.add(metrics.CANVASES, 1, str(canvas) if canvas in self._settings.canvases else NATIVE)
            for level in self._detector.levels:
                meter.add(metrics.LEVELS, 1, str(level), "run" if level in image.result.levels else "skipped")
            meter.observe(metrics.STAGE_SECONDS, image.decode_ms / 1000, "decode")
            for stage in timing.keys() & {"preprocess", "postprocess"}:
                meter.observe(metrics.STAGE_SECONDS, timing[stage] / 1000, stage)
        for run in dict.fromkeys(run for image in answered for run in image.result.runs):
            if "network" in run.seconds:
                meter.observe(metrics.RUN_IMAGES, run.images)
            for stage, taken in run.seconds.items():
                meter.observe(metrics.STAGE_SECONDS, taken, stage)

    def _log(self, request: Request, response: Response, images: int, seconds: float, batch_size: int) -> None:
        if not self._settings.log_requests:
            return
        line = {
            "event": "request",
            "request": request.id,
            "status": response.status,
            "images": images,
            "faces": response.faces,
            "bytes": len(response.body),
            "batch_size": batch_size,
            "ms": round(seconds * 1000, 2),
        }
        log.info(json.dumps(line | ({"error": response.error} if response.error else {})))


def _without_picture(answer: Answered | MogFaceError) -> Answered | MogFaceError:
    return answer if isinstance(answer, MogFaceError) else dataclasses.replace(answer, image=None)
