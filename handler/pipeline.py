"""Requests -> responses: the whole of the service, with no server in it.

Errors stay where they arise. A request that cannot be read, an image that cannot be decoded, an image the
engine fails on: each answers for itself, and the others of the batch never notice.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from handler import artifacts, counts, detectors
from handler.cache import Cache, again
from handler.config import Settings
from handler.counts import Counts
from handler.detectors import Detector, Prepared, Result
from handler.errors import MogFaceError
from handler.form import Encoded, Form, parts
from handler.guard import own
from handler.loader import Loaded, Loader
from handler.metrics import Meter
from handler.request import Request, parse
from handler.response import Answered, Budget, ModelInfo, Response, encode, encode_error

log = logging.getLogger("mogface")


class Pipeline:
    """A detector and what surrounds it. Not for two threads at once.

    Args:
        detector: that finds the faces.
        settings: the archive's own.
        model: what answers say of it.
        meter: takes the counts and times; one of nobody's where None.
        archive: the hash of what is in the archive, for the keys of the cache.
        overlap: whether the network runs on a batch's first images while others are decoded. It changes no answer.

    Attributes:
        model: what answers say of it.
    """

    def __init__(
        self,
        detector: Detector,
        settings: Settings,
        model: ModelInfo,
        meter: Meter | None = None,
        archive: bytes = b"",
        overlap: bool = False,
    ) -> None:
        self._detector = detector
        self._settings = settings
        self.model = model
        self._overlap = overlap
        self._cache = Cache(settings.cache_bytes, archive)
        self._loader = Loader(detector, settings, self._cache)
        self._counts = Counts(meter or Meter(), detector, settings)

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
        identity = artifacts.identity(folder) if settings.cache_bytes else b""
        # On a CPU the network takes the cores that decoding needs: measured on two of them, batches of large or small
        # images are no sooner done where both go on at once, and up to a tenth later (`python -m load_tests overhead`).
        # While a GPU runs the host has nothing else to do.
        return cls(detector, settings, info, meter, identity, overlap=device.type != "cpu")

    def answer(self, requests: Sequence[Request]) -> list[Response]:
        """One response a request, in their order; never raises.

        Args:
            requests: that came together.
        """
        started = time.monotonic()
        deadline = started + self._settings.deadline_s
        limits = self._settings.limits
        parsed = [own(request, parse, request, self._settings) for request in requests]
        forms = [form.within(limits) for form in self._loader.read(requests, parsed)]
        responses: list[Response] = []
        ended: list[Answered | MogFaceError] = []
        shared: dict[bytes, Answered | MogFaceError] = {}
        for part in parts(forms, limits):
            for form, answers in zip(part, self._answers(part, deadline, shared), strict=True):
                response = self._encode(form, answers, len(part), deadline)
                responses.append(response)
                # Counted without its picture, which the next part needs the memory of.
                ended += [_without_picture(answer) for answer in answers]
                self._log(form.request, response, len(answers), time.monotonic() - started, len(part))
        self._counts.batch(responses, ended, time.monotonic() - started)
        return responses

    def _answers(
        self, part: Sequence[Form], deadline: float, shared: dict[bytes, Answered | MogFaceError]
    ) -> list[list[Answered | MogFaceError]]:
        """For each form one answer an image.

        Args:
            part: of the batch.
            deadline: of ``time.monotonic()``.
            shared: by the keys of the cache, what came of the images of this batch; so each is run once.
        """
        first: dict[object, Encoded] = {}
        for form in part:
            for image in form.images:
                if isinstance(image, Encoded) and image.key not in shared:
                    first.setdefault(image.key or id(image), image)
        found = dict(zip(first, self._run(list(first.values()), deadline), strict=True))

        def answer(image: Encoded | Result | MogFaceError) -> Answered | MogFaceError:
            if isinstance(image, MogFaceError):
                return image
            if isinstance(image, Result):
                self._counts.looked_up(counts.HIT)
                return _cached(image)
            if image.key is None:
                return found[id(image)]
            if image.key in shared:
                self._counts.looked_up(counts.DUPLICATE)
                former = shared[image.key]
                return former if isinstance(former, MogFaceError) else _cached(again(former.result))
            self._counts.looked_up(counts.MISS)
            answered = shared[image.key] = found[image.key]
            if isinstance(answered, Answered):
                self._counts.evicted(self._cache.keep(image.key, answered.result))
            return answered

        return [[answer(image) for image in form.images] for form in part]

    def _run(self, images: Sequence[Encoded], deadline: float) -> list[Answered | MogFaceError]:
        """Decode images and find their faces."""
        ahead = self._loader.load(images, deadline)
        loaded: list[Loaded | MogFaceError] = []

        def prepared() -> Iterator[Prepared]:
            for each in ahead:
                loaded.append(each)
                if isinstance(each, Loaded):
                    yield each.prepared

        results: list[Result | MogFaceError] | None = None
        try:
            results = self._detector.detect(prepared() if self._overlap else list(prepared()), deadline)
        except Exception:
            log.exception(json.dumps({"event": "fault", "images": len(images), "then": "each image alone"}))
        if results is None:
            # Only here is the error gone, and with it the tensors that its traceback held.
            loaded += ahead
            results = [
                own(image.request, self._alone, each.prepared, deadline)
                for image, each in zip(images, loaded, strict=True)
                if isinstance(each, Loaded)
            ]
        found = iter(results)
        return [_answered(each, next(found)) if isinstance(each, Loaded) else each for each in loaded]

    def _alone(self, image: Prepared, deadline: float) -> Result | MogFaceError:
        (result,) = self._detector.detect([image], deadline)
        return result

    def _encode(
        self, form: Form, answers: Sequence[Answered | MogFaceError], batch_size: int, deadline: float
    ) -> Response:
        if isinstance(form.parsed, MogFaceError):
            return encode_error(form.parsed)
        # What was found in time is answered: only pictures, which can take minutes, are held to the deadline.
        budget = Budget(self._settings.limits.response_bytes, deadline)
        started = time.perf_counter()
        several, options = form.parsed.several, form.parsed.options
        response = own(form.request, encode, answers, several, options, self.model, batch_size, budget)
        self._counts.encoded(time.perf_counter() - started)
        return encode_error(response) if isinstance(response, MogFaceError) else response

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


def _answered(loaded: Loaded, result: Result | MogFaceError) -> Answered | MogFaceError:
    if isinstance(result, MogFaceError):
        return result
    return Answered(result, loaded.decode_ms, loaded.format, loaded.image)


def _cached(result: Result) -> Answered:
    # The format is for annotated pictures, which are not cached.
    return Answered(result, 0.0, "", cached=True)


def _without_picture(answer: Answered | MogFaceError) -> Answered | MogFaceError:
    if isinstance(answer, MogFaceError) or answer.image is None:
        return answer
    return dataclasses.replace(answer, image=None)
