"""The parts of ``mogface detect`` that ask no server; tests/serving/test_command.py has the rest."""

from __future__ import annotations

import os
import signal

import pytest

from clients.detect import Stop, _row
from clients.errors import InvalidImage
from clients.results import Result
from tests.clients.test_draw import answer


def test_rows_stay_one_line_whatever_the_name_is() -> None:
    assert _row(Result.of("a\nb\udcff.jpg", answer(100, 80, (1, 2, 3, 4)))).splitlines() == [
        rb"     1   0.900      100x80       0.0  a\nb\udcff.jpg"
    ]
    row = _row(Result.of("a.jpg", InvalidImage("no picture")))
    assert row.strip().endswith(b"a.jpg: invalid_image: no picture")


def test_the_first_signal_asks_for_an_end_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
