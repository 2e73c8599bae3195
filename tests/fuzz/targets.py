"""What is fuzzed: bytes in, and nothing but an answer or an error of the tree out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from handler.config import Limits, Settings
from handler.errors import RequestError
from handler.image import decode, read_header
from handler.options import NAMES, Options
from handler.request import Request, parse
from handler.response import encode_error
from tests.hostile import corpus, forms

#: Small, so that damage which claims a large picture costs little.
LIMITS = Limits(bytes=1_000_000, pixels=250_000, images=4, request_pixels=500_000)
SETTINGS = Settings("centerface", "none", Options(score_threshold=0.5, nms_threshold=0.3), limits=LIMITS)
_FORMS: tuple[dict[str, str], ...] = (
    {},
    {"Content-Type": "application/json"},
    {"Content-Type": "multipart/form-data; boundary=x"},
)


def image(data: bytes) -> None:
    """A body's bytes, decoded."""
    try:
        header = read_header(data, LIMITS)
        decoded = decode(data, LIMITS)
    except RequestError as error:
        _require_short(error)
        return
    assert decoded.array.dtype == np.uint8
    assert decoded.array.shape in ((header.height, header.width, 3), (header.width, header.height, 3))
    assert header.pixels <= LIMITS.pixels


def request(data: bytes) -> None:
    """The first byte chooses the form; each line of a multipart form is a part, its name before the first colon."""
    if not data:
        return
    headers, rest = _FORMS[data[0] % 3], data[1:]
    fields: dict[str, object] = {"body": rest}
    if data[0] % 3 == 2:
        parts = (line.partition(b":") for line in rest.split(b"\n"))
        fields = {name.decode("utf-8", "replace"): bytearray(value) for name, _, value in parts}
    try:
        parsed = parse(Request(fields, headers), SETTINGS)
    except RequestError as error:
        _require_short(error)
        return
    assert 0 < len(parsed.images) <= LIMITS.images
    _require_sound(parsed.options)


def options(data: bytes) -> None:
    """A JSON object's keys and values, as options."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict):
        return
    try:
        _require_sound(SETTINGS.options.updated(given, SETTINGS.canvases))
    except RequestError as error:
        _require_short(error)


def _require_sound(given: Options) -> None:
    assert 0 <= given.score_threshold <= 1
    assert 0 <= given.nms_threshold <= 1
    assert 1 <= given.max_faces <= 5000
    assert 0 <= given.min_face_size <= 100_000
    assert type(given.landmarks) is type(given.crops) is bool
    # Read again they are what they are.
    assert SETTINGS.options.updated({name: getattr(given, name) for name in NAMES}, SETTINGS.canvases) == given


def _require_short(error: RequestError) -> None:
    """An error is a short JSON answer, whatever the bytes were."""
    body = encode_error(error).body
    assert len(body) < 2_000
    assert json.loads(body)["error"]["code"] == error.status


def _image_seeds() -> Iterator[bytes]:
    yield from corpus.whole().values()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from (each.data for each in corpus.bombs(LIMITS) if len(each.data) < 20_000)


def _request_seeds() -> Iterator[bytes]:
    yield b"\0" + corpus.whole()["JPEG"]
    yield b"\x02image1:" + b"x\nimage2:y\nmax_faces:3\norder:size\nscore_threshold:0.5"
    for form in forms.forms(LIMITS):
        content = form.body.get("content")
        if isinstance(content, bytes) and len(content) < 20_000:
            yield bytes((1 if form.headers == forms.JSON else 0,)) + content


def _option_seeds() -> Iterator[bytes]:
    for name in NAMES:
        values: list[object] = [True, 0, 1.5, "auto", "1", None, [], "480x640"]
        for value in values:
            yield json.dumps({name: value}).encode()


Target = Callable[[bytes], None]
#: Names to what is called, and where it starts from.
TARGETS: dict[str, tuple[Target, Callable[[], Iterator[bytes]]]] = {
    "image": (image, _image_seeds),
    "request": (request, _request_seeds),
    "options": (options, _option_seeds),
}
