"""One request -> its images, still encoded, and its options.

Forms, as TorchServe hands them over (a mapping of names to values, and the headers):
- a raw body: the image's bytes; options in headers, ``X-Face-Score-Threshold: 0.5``;
- multipart: image parts called ``image``, ``data``, ``body`` or ``file``, several with a number added
  (``image1``, ``image2``); every other part is an option;
- JSON: ``{"image": BASE64, ...options}`` or ``{"images": [BASE64, ...], ...options}``;
- gRPC: the input map, with the same names as multipart.

Headers give options to every form but gRPC; a field of the same name wins.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from handler.config import Settings
from handler.errors import InvalidImage, InvalidOption, InvalidRequest, MogFaceError, TooLarge
from handler.options import NAMES, Options

HEADER_PREFIX = "x-face-"
_NO_SPACES = dict.fromkeys(map(ord, " \t\r\n"))
#: Brackets, braces and commas of a JSON body; base64 has none of them. As objects, ``[],`` of three bytes takes
#: twenty times as many.
_JSON_VALUES = 10_000
_IMAGE_FIELD = re.compile(r"(image|images|data|body|file)[_-]?(\d{0,6})")


@dataclass(frozen=True)
class Request:
    """What came.

    Attributes:
        fields: part or key names to values; ``body`` or ``data`` for a raw or JSON body.
        headers: of the request, any case.
        id: under which it is logged.
    """

    fields: Mapping[str, object]
    headers: Mapping[str, str]
    id: str = ""


@dataclass(frozen=True)
class Parsed:
    """What was asked.

    Attributes:
        images: each the bytes of an encoded picture, or the error of one that has none.
        options: of all of them.
        several: whether the answer lists results, as it does whenever ``images`` came as a list.
    """

    images: tuple[bytes | bytearray | MogFaceError, ...]
    options: Options
    several: bool


def parse(request: Request, settings: Settings) -> Parsed:
    """Read a request.

    Raises:
        InvalidRequest, InvalidOption, TooLarge: what is wrong with its form.
    """
    content_type = _header(request, "content-type")
    fields = dict(request.fields)
    if set(fields) in ({"body"}, {"data"}):
        (body,) = fields.values()
        if isinstance(body, Mapping):
            fields = {str(name): value for name, value in body.items()}
        elif content_type.startswith("application/json"):
            fields = _json_object(body)
    values, named = _split(fields)
    given = _options_in_headers(request) | named
    options = settings.options.updated(given, settings.canvases) if given else settings.options
    if not values:
        raise InvalidRequest(
            'no image came: send its bytes as the body, {"image": BASE64} as JSON, or a multipart part "image"'
        )
    if len(values) > settings.limits.images:
        raise TooLarge(f"{len(values)} images came: at most {settings.limits.images} a request are taken")
    images = [_image(value) for value in values]
    several = len(images) > 1 or any(isinstance(value, list) for value in fields.values())
    if several and options.output == "image":
        raise InvalidOption("output is 'image', which takes one image a request, and more came")
    return Parsed(tuple(images), options, several)


def _split(fields: Mapping[str, object]) -> tuple[list[object], dict[str, object]]:
    """Values of images, by number and name, apart from options."""
    found: list[tuple[int, str, object]] = []
    named: dict[str, object] = {}
    for name, value in fields.items():
        match = _IMAGE_FIELD.fullmatch(name)
        if match:
            found.append((int(match[2] or 0), match[1], value))
        elif name in NAMES:
            named[name] = _text(name, value) if isinstance(value, bytes | bytearray) else value
        else:
            raise InvalidOption(
                f"unknown field {name[:60]!r}: images are called image, data, body or file (with a number for "
                f"several), options {', '.join(NAMES)}"
            )
    images: list[object] = []
    for _, name, value in sorted(found, key=lambda item: item[:2]):
        if isinstance(value, list):
            if name != "images":
                raise InvalidRequest(f"{name!r} is a list: several images go under 'images'")
            images += value
        else:
            images.append(value)
    return images, named


def _image(value: object) -> bytes | bytearray | MogFaceError:
    """Bytes as they are, text as base64; else an error that stays with this image."""
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, str):
        # A data URL is what browsers make of a file.
        text = value.partition(",")[2] if value[:5].lower() == "data:" else value
        try:
            # Lines of 76 characters are what the tool base64 writes.
            return base64.b64decode(text.translate(_NO_SPACES), validate=True)
        except (binascii.Error, ValueError) as error:
            return InvalidImage(f"an image in JSON must be base64 text: {error}")
    return InvalidImage(f"an image must be bytes or base64 text, got {type(value).__name__}")


def _text(name: str, value: bytes | bytearray) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{name} is not UTF-8 text: {error}") from error


def _json_object(body: object) -> dict[str, object]:
    """A JSON body that TorchServe could not parse, or parsed to something else than an object."""
    if isinstance(body, bytes | bytearray):
        values = sum(map(body.count, (b"[", b"{", b",")))
        if values > _JSON_VALUES:
            raise TooLarge(f"the JSON body has about {values:,} values: at most {_JSON_VALUES:,} are taken")
        try:
            body = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is declared as JSON but is not: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f'the JSON body is a {type(body).__name__}: expected {{"image": BASE64, ...}}')
    return body


def _options_in_headers(request: Request) -> dict[str, object]:
    options: dict[str, object] = {}
    for name, value in request.headers.items():
        if name.lower().startswith(HEADER_PREFIX):
            options[name.lower().removeprefix(HEADER_PREFIX).replace("-", "_")] = value
    return options


def _header(request: Request, name: str) -> str:
    for key, value in request.headers.items():
        if key.lower() == name and isinstance(value, str):
            return value.lower()
    return ""
