"""Requests and answers as bytes, without sending any: what REST, gRPC and a load test share.

One image goes in one request, as it is: over REST as the raw body, options in headers; over gRPC in the input map.
"""

from __future__ import annotations

import io
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients import errors
from clients.answer import Answer
from clients.errors import BadAnswer, ClientError, UsageError, shown

Uint8 = npt.NDArray[np.uint8]
#: What is taken for an image: an encoded picture, a file of one, or pixels.
Picture = bytes | Path | Image.Image | Uint8
Option = bool | int | float | str

CONTENT_TYPE = "application/octet-stream"
_PREFIX = "X-Face-"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: What the server takes for images: over gRPC an option of such a name would be a second one.
_IMAGE_NAME = re.compile(r"(image|images|data|body|file)[_-]?\d*")
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_PNG_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
_SHOWN = 200

#: The server's own types, those of a proxy in front of it, and TorchServe's exceptions.
_BY_TYPE: dict[str, type[ClientError]] = {
    "invalid_request": errors.InvalidRequest,
    "invalid_option": errors.InvalidOption,
    "invalid_image": errors.InvalidImage,
    "too_large": errors.TooLarge,
    "unsupported_image": errors.UnsupportedImage,
    "deadline": errors.DeadlineMissed,
    "out_of_memory": errors.OutOfMemory,
    "engine": errors.ServerFault,
    "internal": errors.ServerFault,
    "not_authorised": errors.NotAuthorised,
    "not_found": errors.NotFound,
    "rate_limited": errors.QueueFull,
    "unavailable": errors.Unavailable,
    "InvalidKeyException": errors.NotAuthorised,
    "ModelNotFoundException": errors.NotFound,
    "ModelVersionNotFoundException": errors.NotFound,
}
#: Of TorchServe's messages, which tell more than their types.
_BY_TEXT: dict[str, type[ClientError]] = {
    "has no worker to serve": errors.QueueFull,
    "Worker died.": errors.WorkerDied,
}
#: Where no body says more: a proxy's answers.
_BY_STATUS: dict[int, type[ClientError]] = {
    400: errors.InvalidRequest,
    401: errors.NotAuthorised,
    403: errors.NotAuthorised,
    404: errors.NotFound,
    413: errors.TooLarge,
    415: errors.UnsupportedImage,
    429: errors.QueueFull,
    502: errors.Unreachable,
    503: errors.Unavailable,
    504: errors.Unreachable,
}


@dataclass(frozen=True)
class Request:
    """One image and its options, ready to be sent.

    Attributes:
        image: an encoded picture.
        options: names to values, as the server reads them.
    """

    image: bytes
    options: Mapping[str, str]

    @property
    def headers(self) -> dict[str, str]:
        """Of the REST request; its body is ``image``."""
        named = {_PREFIX + name.replace("_", "-").title(): value for name, value in self.options.items()}
        return {"Content-Type": CONTENT_TYPE, **named}

    @property
    def fields(self) -> dict[str, bytes]:
        """The input map of the gRPC request."""
        return {"image": self.image, **{name: value.encode() for name, value in self.options.items()}}


def encode(image: Picture, limit: int | None = None) -> bytes:
    """An image as the bytes of an encoded picture.

    Args:
        image: bytes go as they are; a Path's file is read; pixels become a PNG, which loses nothing: a PIL image (its
            EXIF orientation goes along, as it would with its file) or an array [H, W, 3] uint8 RGB.

    Raises:
        UsageError: a file that cannot be read, or something that is no image.
        TooLarge: a file of more than ``limit`` bytes, which is not read then.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, Path):
        return _file(image, limit)
    if isinstance(image, Image.Image):
        return _png(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise UsageError(f"image is {image.dtype} {list(image.shape)}: an array must be uint8 [H, W, 3], RGB")
        return _png(Image.fromarray(np.ascontiguousarray(image)))
    raise UsageError(
        f"image is a {type(image).__name__}: expected bytes, a pathlib.Path, a PIL image or a uint8 array [H, W, 3]"
    )


def _file(path: Path, limit: int | None) -> bytes:
    try:
        said = path.stat()
        # A pipe is waited for without end, a device read without end.
        if not stat.S_ISREG(said.st_mode):
            raise UsageError(f"image {path} is no regular file")
        if limit is not None and said.st_size > limit:
            raise errors.TooLarge(f"image {path} has {said.st_size:,} bytes: at most {limit:,} are sent in one request")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"image {path} cannot be read: {getattr(error, 'strerror', '') or error}") from error


def _png(image: Image.Image) -> bytes:
    if image.mode not in _PNG_MODES:
        raise UsageError(
            f"image has the mode {image.mode}, which PNG cannot hold: send its file's bytes, or image.convert('RGB')"
        )
    data = io.BytesIO()
    # Most of the time that compression takes gains little: level 1 is some 5 times as fast as 6.
    try:
        image.save(data, "PNG", compress_level=1, exif=image.getexif())
    except Exception as error:  # an image that was opened is decoded here, and damaged files raise nearly anything
        raise UsageError(f"image cannot be written as PNG: {type(error).__name__}: {str(error)[:_SHOWN]}") from error
    return data.getvalue()


def options(given: Mapping[str, object]) -> dict[str, str]:
    """Options as text; which there are, and their ranges, the server knows.

    Raises:
        UsageError: a name or a value that cannot be sent.
    """
    return {_name(name): _value(name, value) for name, value in given.items()}


def _name(name: str) -> str:
    if not _NAME.fullmatch(name) or _IMAGE_NAME.fullmatch(name):
        raise UsageError(f"option {name!r}: expected a name such as score_threshold, and none that images have")
    return name


def _value(name: str, value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, Real):
        try:
            value = str(value)
        except ValueError as error:  # Python prints no integer of more than 4300 digits
            raise UsageError(f"option {name} cannot be sent: {error}") from error
    # Headers hold no other characters; no option needs any.
    if isinstance(value, str) and value.isascii() and value.isprintable():
        return value
    raise UsageError(f"option {name} is {shown(value)}: expected true or false, a number or ASCII text")


def path(*names: str) -> str:
    """The path of a model, or of whatever has these names.

    Raises:
        UsageError: a name that UTF-8 does not hold, such as a command line's odd bytes.
    """
    try:
        return "/" + "/".join(quote(name, safe="") for name in names)
    except UnicodeEncodeError as error:
        raise UsageError(f"{'/'.join(names)!r} cannot be sent: {error.reason}") from error


def answer(status: int, body: bytes) -> Answer:
    """The answer in a reply.

    Args:
        status: of HTTP; 200 for a gRPC call that succeeded, whose body alone says how it ended.
        body: of the reply.

    Raises:
        ClientError: what the reply says; BadAnswer where it says nothing known.
    """
    value = json_of(status, body)
    if status != 200:
        raise failure(status, "", excerpt(body))
    return Answer.parse(value)


def picture(status: int, body: bytes) -> bytes:
    """The PNG or JPEG in a reply. Arguments and errors as for :func:`answer`."""
    if status == 200 and body.startswith(_PICTURES):
        return body
    json_of(status, body)
    if status != 200:
        raise failure(status, "", excerpt(body))
    raise BadAnswer(f"the server answered with neither PNG nor JPEG but {excerpt(body)!r}")


def json_of(status: int, body: bytes) -> Any:
    """A reply's JSON, unless it tells of an error; None where it is of no JSON and no success.

    Raises:
        ClientError: what the JSON tells.
        BadAnswer: no JSON in a reply of success.
    """
    try:
        value = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if 200 <= status < 300:
            raise BadAnswer(f"the server's answer is not JSON: {error}; it begins {excerpt(body)!r}") from error
        return None
    told = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(told, dict) and {"code", "type", "message"} <= told.keys():
        raise failure(
            told["code"] if isinstance(told["code"], int) else status, str(told["type"]), str(told["message"])
        )
    return value


def failure(status: int | None, type: str, message: str) -> ClientError:
    """The exception for what a server said.

    Args:
        status: of HTTP; None where the transport loses it.
        type: the server's own, or the name of TorchServe's exception; empty where only the status is known.
        message: may be empty.
    """
    text = message or f"the server answered with status {status} and nothing else"
    if type in _BY_TYPE:
        # TorchServe's exceptions go by this tree's names, the server's own types by theirs.
        return _BY_TYPE[type](text, status=status, type="" if type.endswith("Exception") else type)
    for words, kind in _BY_TEXT.items():
        if words in message:
            return kind(text, status=status)
    if status is None or (type and status >= 500):
        # TorchServe's other failures: of the handler, of the connection to a worker.
        return errors.ServerFault(text, status=status, type=type)
    return _BY_STATUS.get(status, errors.Refused if status < 500 else errors.ServerFault)(text, status=status)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def excerpt(body: bytes) -> str:
    """How a body begins, for a message."""
    return body[:_SHOWN].decode("utf-8", errors="replace")
