from __future__ import annotations

import re

import pytest

from handler import errors
from handler.errors import MogFaceError

CLASSES = {
    value.__name__: value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, MogFaceError)
}
#: A line of the tree that has a status, as the module's docstring draws it.
DRAWN = {name: (int(status), kind) for name, status, kind in re.findall(r"(\w+) +(\d{3}) (\w+) ", errors.__doc__ or "")}


def test_the_docstring_draws_the_whole_tree() -> None:
    assert set(re.findall(r"─ (\w+)|^(MogFaceError)", errors.__doc__ or "", re.MULTILINE)) == {
        ("", name) if name == "MogFaceError" else (name, "") for name in CLASSES
    }


@pytest.mark.parametrize("name", DRAWN)
def test_each_error_has_the_status_and_type_that_are_drawn(name: str) -> None:
    assert (CLASSES[name].status, CLASSES[name].type) == DRAWN[name]


def test_statuses_are_what_callers_rely_on() -> None:
    assert DRAWN == {
        "InvalidRequest": (400, "invalid_request"),
        "InvalidOption": (400, "invalid_option"),
        "InvalidImage": (400, "invalid_image"),
        "TooLarge": (413, "too_large"),
        "UnsupportedImage": (415, "unsupported_image"),
        "EngineError": (500, "engine"),
        "DeviceLost": (500, "engine"),
        "OutOfMemory": (503, "out_of_memory"),
        "InternalError": (500, "internal"),
        "DeadlineExceeded": (503, "deadline"),
    }
