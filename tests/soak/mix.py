"""What is sent: an endless, seeded mix of good photographs, options, hostile images, and clients that leave."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from handler.config import Limits
from tests.hostile import corpus
from tests.hostile.forms import forms
from tests.soak.ask import Ask
from tests.soak.good import Photograph, told

#: Of a hundred requests. What fills the queue in bursts is not among them.
SHARES = {
    "raw": 18,
    "multipart": 10,
    "json": 8,
    "grpc": 14,
    "options": 10,
    "options, grpc": 4,
    "many images": 3,
    "hostile image": 25,
    "hostile form": 2,
    "client gone": 4,
    "slow upload": 2,
}
#: Kinds whose latency is shown: one good photograph, asked for plainly.
PLAIN = ("raw", "multipart", "json", "grpc")
#: Each changes the answer, or the way to it.
OPTIONS: tuple[dict[str, str], ...] = (
    {"score_threshold": "0.3"},
    {"nms_threshold": "0.1", "max_faces": "2"},
    {"max_faces": "1", "order": "size"},
    {"min_face_size": "60"},
    {"canvas": "480x640"},
    {"canvas": "native"},
    {"landmarks": "false"},
    {"crops": "true"},
    {"output": "modelscope"},
    {"output": "image"},
)
_MANY = 4
#: Bytes of headers over which TorchServe's front end answers 400 and hangs up.
_HEADERS = 8192


@dataclass(frozen=True)
class Known:
    """A photograph, the options it is sent with, and what the well server said when it was sent alone."""

    photograph: Photograph
    options: Mapping[str, str]
    answer: object

    @property
    def headers(self) -> dict[str, str]:
        """The options over REST."""
        return {f"X-Face-{name.replace('_', '-')}": value for name, value in self.options.items()}

    def right(self, body: bytes) -> bool:
        """Whether a body is that answer again."""
        return told(body) == self.answer


class Mix:
    """Requests without end, the same in every run of a seed.

    Args:
        known: photographs without options.
        chosen: with them.
        limits: of the server.
        seed: of the order.

    Attributes:
        hostile: images in the corpus, which are sent one after the other and then again.
    """

    def __init__(self, known: Sequence[Known], chosen: Sequence[Known], limits: Limits, seed: int = 0) -> None:
        self._known = known
        self._chosen = chosen
        self._random = random.Random(seed)
        with _quiet():
            images, odd = corpus.images(limits), list(forms(limits))
        self._random.shuffle(images)
        self._random.shuffle(odd)
        self.hostile = len(images)
        self._images, self._forms = itertools.cycle(images), itertools.cycle(odd)
        self._make: dict[str, Callable[[str], Ask]] = {
            "raw": self._raw,
            "multipart": self._multipart,
            "json": self._json,
            "grpc": lambda kind: over_grpc(kind, self._any(self._known)),
            "options": lambda kind: raw(kind, self._any(self._chosen)),
            "options, grpc": lambda kind: over_grpc(kind, self._any(self._chosen)),
            "many images": self._many,
            "hostile image": self._hostile,
            "hostile form": self._form,
            "client gone": lambda kind: raw(kind, self._any(self._known), "gone"),
            "slow upload": lambda kind: raw(kind, self._any(self._known), "slow"),
        }

    def __iter__(self) -> Iterator[Ask]:
        kinds, shares = list(SHARES), list(SHARES.values())
        while True:
            [kind] = self._random.choices(kinds, shares)
            yield self._make[kind](kind)

    def burst(self, count: int) -> list[Ask]:
        """So many photographs at once, more than the queue takes."""
        # One that takes the network least.
        [quick] = [each for each in self._known if each.photograph.name.startswith("640x384")]
        return [raw("burst", quick) for _ in range(count)]

    def _any(self, known: Sequence[Known]) -> Known:
        return self._random.choice(known)

    def _raw(self, kind: str) -> Ask:
        return raw(kind, self._any(self._known))

    def _multipart(self, kind: str) -> Ask:
        each = self._any(self._known)
        return Ask(kind, each.photograph.name, 200, each.right, {"files": {"image": each.photograph.data}})

    def _json(self, kind: str) -> Ask:
        each = self._any(self._known)
        body = {"image": base64.b64encode(each.photograph.data).decode()}
        return Ask(kind, each.photograph.name, 200, each.right, {"json": body})

    def _many(self, kind: str) -> Ask:
        chosen = [self._any(self._known) for _ in range(self._random.randint(2, _MANY))]

        def right(body: bytes) -> bool:
            return told(body) == {"results": [each.answer for each in chosen]}

        files = {f"image{number}": each.photograph.data for number, each in enumerate(chosen)}
        return Ask(kind, f"{len(chosen)} images", 200, right, {"files": files})

    def _hostile(self, kind: str) -> Ask:
        each = next(self._images)

        def right(body: bytes) -> bool:
            if each.size is None:
                return bool(json.loads(body)["error"]["code"] == each.status)
            size = json.loads(body)["image"]
            return (size["width"], size["height"]) == each.size

        return Ask(kind, each.name, each.status, right, {"content": each.data})

    def _form(self, kind: str) -> Ask:
        each = next(self._forms)

        def right(body: bytes) -> bool:
            return each.type is None or bool(json.loads(body)["error"]["type"] == each.type)

        headers = dict(each.headers)
        flood = sum(len(name) + len(value) for name, value in headers.items()) > _HEADERS
        return Ask(kind, each.name, each.status, right, each.body, headers, flood=flood)


def raw(kind: str, known: Known, manner: str = "whole") -> Ask:
    """The photograph as a body over REST."""
    body = {"content": known.photograph.data}
    return Ask(kind, known.photograph.name, 200, known.right, body, known.headers, manner=manner)


def over_grpc(kind: str, known: Known) -> Ask:
    """The photograph over gRPC."""
    fields = {"image": known.photograph.data} | {name: value.encode() for name, value in known.options.items()}
    return Ask(kind, known.photograph.name, 200, known.right, fields=fields)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what libraries of C write about files that are damaged on purpose."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
