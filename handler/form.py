"""Requests as far as their images' headers: what has to be run, in parts that a worker has the memory for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from handler.config import Limits
from handler.detectors import Result
from handler.errors import MogFaceError, TooLarge
from handler.image import Header
from handler.options import Options
from handler.request import Parsed, Request


@dataclass(frozen=True)
class Encoded:
    """One image that has to be decoded and run.

    Attributes:
        request: that it came in.
        options: of the request.
        data: the file's bytes.
        header: what they say of themselves.
        key: in the cache, where its result is to be kept.
    """

    request: Request
    options: Options
    data: bytes | bytearray
    header: Header
    key: bytes | None = None


@dataclass(frozen=True)
class Form:
    """One request.

    Attributes:
        request: as it came.
        parsed: what was asked, or why it is refused.
        images: each to be run, out of the cache, or the error of one that is none.
    """

    request: Request
    parsed: Parsed | MogFaceError
    images: Sequence[Encoded | Result | MogFaceError] = ()

    @property
    def pixels(self) -> int:
        """Of all its images, whether they have to be decoded or not."""
        return sum(map(_pixels, self.images))

    def within(self, limits: Limits) -> Form:
        """Itself, or the same refused whole where its images have too many pixels."""
        most = limits.request_pixels
        if self.pixels <= most:
            return self
        return Form(
            self.request,
            TooLarge(
                f"the {len(self.images)} images have {self.pixels:,} pixels: at most {most:,} a request are taken"
            ),
        )


def parts(forms: Sequence[Form], limits: Limits) -> Iterator[list[Form]]:
    """A batch in parts that hold no more than one request may: a worker's memory has to do for one part.

    What comes out of the cache counts as if it were decoded: so an answer's ``batch_size`` does not show it.
    """
    most_images = max(limits.images, len(forms))
    part: list[Form] = []
    images = pixels = 0
    for form in forms:
        images += len(form.images)
        pixels += form.pixels
        if part and (images > most_images or pixels > limits.request_pixels):
            yield part
            part, images, pixels = [], len(form.images), form.pixels
        part.append(form)
    if part:
        yield part


def _pixels(image: Encoded | Result | MogFaceError) -> int:
    if isinstance(image, Encoded):
        return image.header.pixels
    return image.detections.height * image.detections.width if isinstance(image, Result) else 0
