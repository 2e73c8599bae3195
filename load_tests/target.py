"""What a load run asks, of whom."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clients.answer import Answer
from clients.errors import UsageError
from clients.token import Token
from load_tests import pictures
from load_tests.pictures import Picture


@dataclass(frozen=True)
class Target:
    """A server and what is sent to it.

    Attributes:
        address: ``http://host:port`` or ``grpc://host:port``.
        model: that answers.
        token: bearer token; empty where the server wants none.
        pictures: sent in turn.
        options: of every request.
        any_answer: whether answers are not compared: weights that were never trained find nothing.
        rate: requests a second of open arrival.
        timeout_s: after which a request has failed.
    """

    address: str
    model: str
    token: str
    pictures: Sequence[Picture]
    options: Mapping[str, str] = field(default_factory=dict)
    any_answer: bool = False
    rate: float = 1.0
    timeout_s: float = 130.0

    @classmethod
    def of(cls, given: argparse.Namespace, address: str) -> Target:
        """By the command line's arguments.

        Raises:
            UsageError: a token file or pictures that cannot be read, an option that is no name=value.
        """
        options = {}
        for text in given.option:
            name, equals, value = text.partition("=")
            if not equals:
                raise UsageError(f"--option {text}: expected name=value, as score_threshold=0.6")
            options[name] = value
        sent = (
            pictures.folder(given.photographs) if given.photographs else pictures.carried(given.sizes or pictures.SIZES)
        )
        token = (Token(given.token_file, "").value or "") if given.token_file else ""
        return cls(address, given.model, token, sent, options, given.any_answer)

    def referred(self, detect: Callable[[bytes], Answer]) -> Target:
        """With what the server answers to each picture alone, that answers under load are compared with.

        Args:
            detect: one request.

        Raises:
            ClientError: the server does not answer.
            UsageError: it does not find the carried photographs' faces.
        """
        if self.any_answer:
            detect(self.pictures[0].data)
            return self
        return replace(self, pictures=[picture.referred(detect(picture.data)) for picture in self.pictures])
