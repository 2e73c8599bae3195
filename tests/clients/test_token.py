"""Where tokens come from. Their renewal, by a real server, is in tests/serving/test_client.py."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from clients.errors import Unreachable, UsageError
from clients.token import Token, authorization, key_of

#: Nothing listens there.
NOWHERE = "http://127.0.0.1:1"


def key_file(path: Path, inference: str = "aaa", management: str = "bbb") -> Path:
    keys = {"inference": inference, "management": management, "API": "ccc"}
    path.write_text(json.dumps({name: {"key": key, "expiration time": ""} for name, key in keys.items()}))
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MOGFACE_TOKEN", "MOGFACE_MANAGEMENT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_sources_in_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Token(None, NOWHERE).value is None
    key_file(folder / "key_file.json")
    assert Token(None, NOWHERE).value == "aaa"
    monkeypatch.setenv("MOGFACE_TOKEN", "from the environment")
    assert Token(None, NOWHERE).value == "from the environment"
    assert Token(key_file(folder / "other.json", "ddd"), NOWHERE).value == "ddd"
    assert Token("itself", NOWHERE).value == "itself"


def test_each_api_has_its_own(folder: Path) -> None:
    path = key_file(folder / "keys.json")
    assert Token(path, NOWHERE, "management").value == "bbb"
    assert [key_of(path, api) for api in ("inference", "management", "API")] == ["aaa", "bbb", "ccc"]


def test_each_api_has_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOGFACE_TOKEN", "one")
    assert Token(None, NOWHERE, "management").value is None
    monkeypatch.setenv("MOGFACE_MANAGEMENT_TOKEN", "two")
    assert Token(None, NOWHERE, "management").value == "two"


def test_headers() -> None:
    assert authorization("abc") == {"Authorization": "Bearer abc"}
    assert authorization(None) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", r"is no key_file\.json"),
        ("{}", "a key for inference"),
        ("3", "no"),
    ],
)
def test_files_that_hold_none(folder: Path, content: str | None, message: str) -> None:
    path = folder / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message):
        Token(path, NOWHERE)


@pytest.mark.parametrize("text", ["", "abc\r\nX-Face-Crops: true", "é"])
def test_text_that_no_header_can_hold(text: str) -> None:
    with pytest.raises(UsageError, match="the token is empty or holds other characters"):
        Token(text, NOWHERE)


def test_the_folder_may_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_file(folder / "key_file.json")
    token = Token(None, NOWHERE)
    key_file(folder / "key_file.json", "new")
    monkeypatch.chdir("/")
    assert token.renew("aaa") == "new"


def test_what_another_renewed_is_taken_from_the_file(folder: Path) -> None:
    token = Token(key_file(folder / "keys.json"), NOWHERE)
    key_file(folder / "keys.json", "new")
    assert (token.renew("aaa"), token.value) == ("new", "new")


def test_a_token_that_is_not_the_refused_one_is_kept(folder: Path) -> None:
    """Many calls are refused together; the first renews."""
    token = Token(key_file(folder / "keys.json"), NOWHERE)
    key_file(folder / "keys.json", "unread")
    assert token.renew("older") == "aaa"


def test_a_server_started_later_brings_the_file(folder: Path) -> None:
    token = Token(None, NOWHERE)
    assert token.renew(None) is None
    key_file(folder / "key_file.json")
    assert token.renew(None) == "aaa"


def test_text_cannot_be_renewed() -> None:
    assert Token("abc", NOWHERE).renew("abc") is None


def test_a_file_that_is_being_written_is_read_again(folder: Path) -> None:
    path = key_file(folder / "keys.json")
    token = Token(path, NOWHERE)
    path.write_text('{"infer')
    writer = threading.Timer(0.06, key_file, (path, "new"))
    writer.start()
    assert token.renew("aaa") == "new"
    writer.join()


def test_a_management_api_that_is_not_there(folder: Path) -> None:
    token = Token(key_file(folder / "keys.json"), NOWHERE)
    started = time.monotonic()
    with pytest.raises(Unreachable, match=r"the token was refused, and http://127\.0\.0\.1:1/token, which renews it"):
        token.renew("aaa")
    assert time.monotonic() - started < 5
