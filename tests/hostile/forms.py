"""Requests that are wrong, odd or too large in their form, each with what is documented for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from handler.config import Limits
from handler.options import NAMES
from tests.hostile.corpus import photograph
from tests.support import saved

JSON = {"Content-Type": "application/json"}
FACE = saved(photograph(), "JPEG")
TEXT = base64.b64encode(FACE).decode()


@dataclass(frozen=True)
class Form:
    """One request.

    Attributes:
        name: for messages.
        body: keyword arguments as httpx takes them.
        status: of HTTP.
        type: of the error in the body; None where there is none, or TorchServe itself answers.
        headers: of the request.
    """

    name: str
    body: Mapping[str, Any]
    status: int
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def _json(name: str, body: bytes | object, status: int, type: str | None = None) -> Form:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Form(f"JSON, {name}", {"content": content}, status, type, JSON)


def forms(limits: Limits) -> Iterator[Form]:
    """All of them.

    Args:
        limits: of the server.
    """
    yield from _json_forms(limits)
    yield from _options()
    yield from _parts(limits)
    yield from _headers()


def _json_forms(limits: Limits) -> Iterator[Form]:
    wrong = (400, "invalid_request")
    yield _json("sound", {"image": TEXT}, 200)
    yield _json("deep", b'{"image":' * 9_000, *wrong)
    yield _json("deep arrays", b"[" * 9_000 + b"]" * 9_000, *wrong)
    yield _json("deeper", b'{"image":' * 200_000, 413, "too_large")
    yield _json("huge", b'{"images": [' + b"[]," * 1_500_000 + b"[]]}", 413, "too_large")
    yield _json("huge options", b'{"image": "", "a": [' + b"{}," * 1_000_000 + b"{}]}", 413, "too_large")
    yield _json("10,000 images", {"images": ["aGk="] * 10_000}, 413, "too_large")
    yield _json("5,000 images", {"images": ["aGk="] * 5_000}, 413, "too_large")
    yield _json("33 images", {"images": [TEXT] * 33}, 413, "too_large")
    yield _json("no UTF-8", b'{"image": "\xff\xfe"}', *wrong)
    yield _json("UTF-16", json.dumps({"image": "aGk="}).encode("utf-16"), 400, "invalid_image")
    yield _json("nothing", b"", *wrong)
    yield _json("cut", b'{"image": "aGk', *wrong)
    yield _json("two of them", b"{}{}", *wrong)
    yield _json("a digit too many", b'{"image": "", "max_faces": ' + b"9" * 100_000 + b"}", *wrong)
    yield _json("a photograph", FACE, *wrong)
    values: dict[str, object] = {"a list": [TEXT], "a text": TEXT, "null": None, "a number": 7, "true": True}
    for name, value in values.items():
        yield _json(name, value, *wrong)
    yield _json("nothing in it", {}, *wrong)
    yield _json("no images", {"images": []}, *wrong)
    yield _json("a list under image", {"image": [TEXT]}, *wrong)
    for name, value in dict[str, object](
        {
            "an address": "http://127.0.0.1:8081/models",
            "a file": "file:///etc/passwd",
            "a number": 7,
            "nothing": None,
            "an object": {"b64": TEXT},
            "base64 for addresses": "_-_-",
            "cut base64": TEXT[:-1],
            "spaces": " " * 2_000_000,
            "a null byte": "\0",
            "half a character": "\ud800",
            "as much as is taken, of zeros": base64.b64encode(bytes(limits.bytes)).decode(),
        }
    ).items():
        yield _json(f"image is {name}", {"image": value}, 400, "invalid_image")
    yield _json("image is larger", {"image": base64.b64encode(bytes(limits.bytes + 3)).decode()}, 413, "too_large")
    yield _json("spaces within base64", {"image": " \n".join(TEXT)}, 200)
    yield _json("the same key twice", b'{"image": "!", "image": "' + TEXT.encode() + b'"}', 200)
    yield _json("a list in the list", {"images": [[TEXT], TEXT]}, 200)
    yield _json("one image thirty-two times", {"images": [TEXT] * 32}, 200)


def _options() -> Iterator[Form]:
    wrong = (400, "invalid_option")
    literal = TEXT.encode()
    for text in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"[0.5]", b"{}", b"null", b"true", b'"NaN"', b'"1_0"'):
        body = b'{"image": "' + literal + b'", "score_threshold": ' + text + b"}"
        yield _json(f"score_threshold is {text.decode()}", body, *wrong)
    for name in NAMES:
        values: list[object] = [None, [], {}, "", "?" * 100_000, -1e308, 10**4000, "\ud800", {"a": [{}]}]
        for number, value in enumerate(values):
            yield _json(f"{name} is wrong, {number}", {"image": TEXT, name: value}, *wrong)
    for name in ("__class__", "score-threshold", "SCORE_THRESHOLD", "x" * 100_000, "\u202e", "", "image8000000"):
        yield _json(f"an option called {ascii(name)[:40]}", {"image": TEXT, name: 1}, *wrong)


def _parts(limits: Limits) -> Iterator[Form]:
    wrong = (400, "invalid_option")
    yield Form("10,000 parts", {"files": {f"image{number}": b"x" for number in range(10_000)}}, 413, "too_large")
    yield Form("10,000 options", {"files": {"image": FACE} | {f"o{n}": b"1" for n in range(10_000)}}, *wrong)
    yield Form("the same part twice", {"files": [("image", b"none"), ("image", FACE)]}, 200)
    yield Form("body and fields", {"files": {"body": FACE, "image1": FACE, "data": FACE, "max_faces": b"1"}}, 200)
    yield Form("an option that is no text", {"files": {"image": FACE, "order": b"\xff\xfe"}}, *wrong)
    yield Form("an option of 1 MB", {"files": {"image": FACE, "order": b"size" * 250_000}}, *wrong)
    yield Form("no image", {"files": {"max_faces": b"1"}}, 400, "invalid_request")
    multipart = {"Content-Type": "multipart/form-data; boundary=x"}
    yield Form("multipart that is none", {"content": b"hello"}, 400, "invalid_request", multipart)
    cut = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + FACE
    yield Form("multipart that is cut", {"content": cut}, 400, "invalid_request", multipart)
    yield Form("multipart without a boundary", {"content": FACE}, 200, None, {"Content-Type": "multipart/form-data"})
    yield Form("a form", {"data": {"image": "hello"}}, 400, "invalid_image")
    yield Form("text", {"content": b"hello"}, 400, "invalid_image", {"Content-Type": "text/plain; charset=none"})
    yield Form("an odd type", {"content": FACE}, 200, None, {"Content-Type": "///"})
    yield Form("compressed, it says", {"content": FACE}, 200, None, {"Content-Encoding": "gzip"})
    yield Form("zeros, more than are taken", {"content": bytes(limits.bytes + 1)}, 413, "too_large")


def _headers() -> Iterator[Form]:
    wrong = (400, "invalid_option")
    face = {"content": FACE}
    yield Form("500 headers", face, 200, None, {f"A{number}": "y" for number in range(500)})
    # TorchServe's own limit, 8 kB in all.
    yield Form("2,000 headers", face, 400, None, {f"X-Header-{number}": "y" * 20 for number in range(2_000)})
    yield Form("a header of 20 kB", face, 400, None, {"X-A": "y" * 20_000})
    yield Form("an option of 7 kB in a header", face, *wrong, {"X-Face-Order": "y" * 7_000})
    yield Form("an unknown option in a header", face, *wrong, {"X-Face-": "1"})
    yield Form("a header that looks like TorchServe's own", face, 200, None, {"ts_stream_next": "true"})
