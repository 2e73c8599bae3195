"""The error tree: what callers catch, ask and send between processes."""

from __future__ import annotations

import pickle

import pytest

from clients import errors

#: Name to base, status, type, retryable, as README and the docstring draw them.
TREE = {
    "UsageError": ("ClientError", None, "usage", False),
    "Refused": ("ClientError", None, "refused", False),
    "InvalidRequest": ("Refused", 400, "invalid_request", False),
    "InvalidOption": ("Refused", 400, "invalid_option", False),
    "InvalidImage": ("Refused", 400, "invalid_image", False),
    "TooLarge": ("Refused", 413, "too_large", False),
    "UnsupportedImage": ("Refused", 415, "unsupported_image", False),
    "NotAuthorised": ("Refused", 400, "not_authorised", False),
    "NotFound": ("Refused", 404, "not_found", False),
    "Unavailable": ("ClientError", 503, "unavailable", True),
    "QueueFull": ("Unavailable", 503, "queue_full", True),
    "DeadlineMissed": ("Unavailable", 503, "deadline", True),
    "OutOfMemory": ("Unavailable", 503, "out_of_memory", True),
    "WorkerDied": ("Unavailable", 500, "worker_died", True),
    "Unreachable": ("Unavailable", None, "unreachable", True),
    "ServerFault": ("ClientError", 500, "internal", False),
    "BadAnswer": ("ClientError", None, "bad_answer", False),
    "ClientFault": ("ClientError", None, "client_fault", False),
}


@pytest.mark.parametrize("name", TREE)
def test_the_tree(name: str) -> None:
    base, status, type, retryable = TREE[name]
    kind = getattr(errors, name)
    error = kind("why")
    assert kind.__base__.__name__ == base
    assert (error.message, str(error)) == ("why", "why")
    assert (error.status, error.type, error.retryable) == (status, type, retryable)


def test_nothing_is_missing_from_it() -> None:
    defined = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert defined == {*TREE, "ClientError"}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_any_value_is_shown() -> None:
    assert errors.shown("a") == "'a'"
    assert errors.shown([1] * 1000, 5) == "[1, 1..."
    assert errors.shown(10**5000).startswith("a int that cannot be shown (Exceeds the limit")
    assert errors.shown([10**5000]).startswith("a list that cannot be shown")
    assert errors.shown(Unprintable()) == "a Unprintable that cannot be shown (no)"


def test_another_process_gets_the_whole_error() -> None:
    error = pickle.loads(pickle.dumps(errors.ServerFault("why", status=507, type="OutOfMemory")))
    assert type(error) is errors.ServerFault
    assert (error.message, error.status, error.type) == ("why", 507, "OutOfMemory")
