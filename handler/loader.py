"""Images of requests, looked up, read, decoded and put on their canvases side by side."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from handler.cache import Cache
from handler.config import Settings, cores
from handler.detectors import Detector, Prepared, Result
from handler.errors import DeadlineExceeded, MogFaceError
from handler.form import Encoded, Form
from handler.geometry import Uint8
from handler.guard import own
from handler.image import COSTLIEST, Least, decode, read_header
from handler.options import Options
from handler.request import Parsed, Request

#: Pixels a side of a reduced picture for each of what the canvas shows of it, at least: shrinking the rest of the way
#: then averages two or more of them, as it does with those of the full picture.
DRAFT = 2

_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True)
class Loaded:
    """One image decoded and put on its canvas.

    Attributes:
        prepared: for the detector.
        decode_ms: what decoding took.
        format: it came in.
        image: [H, W, 3] uint8 RGB, upright, where a picture goes into the answer.
    """

    prepared: Prepared
    decode_ms: float
    format: str
    image: Uint8 | None


class Loader:
    """Threads that decode; Pillow releases the interpreter's lock.

    Args:
        detector: whose canvases they are.
        settings: the archive's own.
        cache: where images are looked for first.
    """

    def __init__(self, detector: Detector, settings: Settings, cache: Cache) -> None:
        self._detector = detector
        self._settings = settings
        self._cache = cache
        self._pool = ThreadPoolExecutor(settings.decode_threads or cores(), thread_name_prefix="decode")
        # Enough for any one image, so that each finds room in the end.
        self._room = _Room(COSTLIEST * settings.limits.pixels)

    def read(self, requests: Sequence[Request], parsed: Sequence[Parsed | MogFaceError]) -> list[Form]:
        """Requests and, of their images, the headers or what the cache has.

        Args:
            requests: as they came.
            parsed: what each asks.
        """
        images = [
            (request, form.options, image)
            for request, form in zip(requests, parsed, strict=True)
            if isinstance(form, Parsed)
            for image in form.images
        ]
        read: Iterator[Encoded | Result | MogFaceError]
        read = self._ahead(lambda image: own(image[0], self._look, *image), images)
        return [
            Form(request, form, [next(read) for _ in form.images] if isinstance(form, Parsed) else ())
            for request, form in zip(requests, parsed, strict=True)
        ]

    def load(self, images: Sequence[Encoded], deadline: float) -> Iterator[Loaded | MogFaceError]:
        """Decode images and put them on their canvases, ahead of whoever takes them.

        Args:
            images: of any requests.
            deadline: of ``time.monotonic()``; what is not begun by then is not decoded.

        Returns:
            In their order, each as it is ready, or the error that belongs to it alone.
        """
        return self._ahead(lambda image: own(image.request, self._load, image, deadline), images)

    def _ahead(self, step: Callable[[_U], _T], items: Sequence[_U]) -> Iterator[_T]:
        if len(items) == 1:
            # Nobody else to wait for: two changes of thread would cost a tenth of a millisecond.
            return map(step, items)
        return self._pool.map(step, items)

    def _look(
        self, request: Request, options: Options, data: bytes | bytearray | MogFaceError
    ) -> Encoded | Result | MogFaceError:
        if isinstance(data, MogFaceError):
            return data
        key = self._cache.key(data, options)
        kept = self._cache.find(key) if key else None
        return kept or Encoded(request, options, data, read_header(data, self._settings.limits), key)

    def _load(self, image: Encoded, deadline: float) -> Loaded | MogFaceError:
        if time.monotonic() > deadline:
            return DeadlineExceeded(
                f"not decoded within {self._settings.deadline_s:g} s; send fewer images, or it again"
            )
        options = image.options
        with self._room.taken(image.header.memory):
            started = time.perf_counter()
            decoded = decode(image.data, self._settings.limits, self._least(options))
            milliseconds = (time.perf_counter() - started) * 1000
            prepared = self._detector.prepare(decoded.picture, options, decoded.reduced)
            # The full picture is kept only where the answer shows it: it can be far larger than the canvas.
            return Loaded(prepared, milliseconds, decoded.format, decoded.array if _shows(options) else None)

    def _least(self, options: Options) -> Least | None:
        """How small a JPEG may be decoded; None where it may not be smaller than it is."""
        if not self._settings.draft or _shows(options) or self._detector.looks_at_source(options):
            return None

        def least(height: int, width: int) -> tuple[int, int]:
            rows, columns = self._detector.place(height, width, options).content
            return DRAFT * rows, DRAFT * columns

        return least


def _shows(options: Options) -> bool:
    return options.crops or options.output == "image"


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
