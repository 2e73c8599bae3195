"""What Locust's command line and ``load_tests run`` share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def add_target(parser: argparse.ArgumentParser) -> None:
    """What is asked, and of which model."""
    parser.add_argument("--model", default="centerface")
    parser.add_argument(
        "--token-file", type=Path, metavar="key_file.json", help="of the server; by default no token is sent"
    )
    sent = parser.add_mutually_exclusive_group()
    sent.add_argument("--photographs", type=Path, metavar="FOLDER", help="to send; else the known one in six sizes")
    sent.add_argument("--sizes", type=_size, nargs="+", metavar="WIDTHxHEIGHT", help="of the known one")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of every request; repeats")
    parser.add_argument(
        "--any-answer", action="store_true", help="do not compare faces: weights that were never trained find none"
    )


def positive(text: str) -> float:
    """A number over 0 that is finite."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number over 0")
    return number


def share(text: str) -> float:
    """A number from 0 to 1."""
    number = _number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0 to 1")
    return number


def count(text: str) -> int:
    """A whole number from 1."""
    return _whole(text, 1)


def count_from_0(text: str) -> int:
    """A whole number from 0."""
    return _whole(text, 0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # Refused by every bound, with what was expected.
        return math.nan


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least}")
    return number


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected width x height in px, as 640x480")
    return int(width), int(height)
