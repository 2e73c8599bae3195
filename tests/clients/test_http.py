"""httpx in the tree's words: addresses, the environment, and answers of more bytes than are taken."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from clients import BadAnswer, Client, Management, Retry, TooLarge, UsageError, http
from clients.errors import ClientError
from clients.token import Token
from tests.clients.fakes import fake_rest
from tests.clients.test_answer import TEXT
from tests.clients.test_token import key_file

ONCE = Retry(attempts=1)
#: What looks like an address, and no name can be looked up of.
NO_NAMES = [
    "http://xn--:80",
    "http://xn--a:80",
    "http://☃.x:1",
    "http://a..b:1",
    "http://.:1",
    f"http://{'a' * 64}:1",
    "http://a\x00b:1",
    "https://xn--",
]


@pytest.mark.parametrize("address", NO_NAMES)
def test_addresses_whose_names_are_none(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="address"):
        Client(address)
    with pytest.raises(UsageError, match="management address"):
        Management(address)
    # Of a token it is asked only when one is renewed.
    token = Token(key_file(tmp_path / "keys.json"), address)
    with pytest.raises(UsageError, match="management address"):
        token.renew("aaa")


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://[::1]:1", "http://a_b:1", "https://bücher.example"])
def test_addresses_that_are_some(address: str) -> None:
    http.require(address)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "foo://127.0.0.1:1"),
        ("HTTP_PROXY", "http://☃.x:1"),
        ("SSL_CERT_FILE", "/nowhere/roots.pem"),
        ("SSL_CERT_FILE", "/etc/hostname"),
    ],
)
@pytest.mark.parametrize("make", [lambda: detect_at("http://127.0.0.1:1"), lambda: Management("http://127.0.0.1:1")])
def test_an_environment_that_httpx_does_not_take(
    make: Callable[[], object], variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=rf"HTTP cannot be set up as .*{variable}.* say: "):
        make()


def test_a_proxy_whose_package_is_missing() -> None:
    """It may be installed here, so it is hidden."""
    program = (
        "import sys; sys.modules['socksio'] = None\n"
        "from clients import Client, UsageError\n"
        "try: Client('http://127.0.0.1:1').detect(b'image')\n"
        "except UsageError as error: print(error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ALL_PROXY": "socks5://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "'socksio' package is not installed" in done.stdout


def detect_at(address: str, limit: int = 30_000_000) -> object:
    with Client(address, retry=ONCE, max_message_bytes=limit) as client:
        return client.detect(b"image")


def packed(coding: str) -> dict[str, str]:
    return {"Content-Encoding": coding}


def test_an_answer_may_be_packed() -> None:
    with fake_rest((200, packed("gzip"), gzip.compress(TEXT.encode())), (200, {}, TEXT.encode())) as address:
        assert detect_at(address) == detect_at(address, len(TEXT.encode()))


def test_an_answer_over_the_limit_is_not_read_on() -> None:
    size = len(TEXT.encode())
    for body, headers in ((TEXT.encode(), {}), (gzip.compress(TEXT.encode()), packed("gzip"))):
        with fake_rest((200, headers, body)) as address:
            with pytest.raises(TooLarge, match=f"the answer has more than {size - 1} bytes"):
                detect_at(address, size - 1)
            assert detect_at(address, size)


def test_a_bomb_takes_no_memory() -> None:
    """A gigabyte of zeros is a megabyte on the way."""
    bomb = gzip.compress(bytes(1 << 30), 1)
    with fake_rest((200, packed("gzip"), bomb)) as address:
        tracemalloc.start()
        try:
            with pytest.raises(TooLarge):
                detect_at(address, 10_000_000)
            assert tracemalloc.get_traced_memory()[1] < 50_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("coding", "body", "words"),
    [
        ("br", b"any", "packed by 'br'"),
        ("gzip, gzip", gzip.compress(gzip.compress(TEXT.encode())), "packed by 'gzip, gzip'"),
        ("gzip", TEXT.encode(), "no gzip"),
        ("gzip", gzip.compress(TEXT.encode())[:-9], "cut off"),
    ],
)
def test_packings_that_were_not_asked_for(coding: str, body: bytes, words: str) -> None:
    with fake_rest((200, packed(coding), body)) as address, pytest.raises(BadAnswer, match=words):
        detect_at(address)


def test_the_management_api_has_a_limit_too(tmp_path: Path) -> None:
    bomb = (200, packed("gzip"), gzip.compress(bytes(100_000_000), 1))
    with fake_rest(bomb) as address:
        with Management(address) as management, pytest.raises(TooLarge):
            management.models()
        with pytest.raises(TooLarge):
            Token(key_file(tmp_path / "keys.json"), address).renew("aaa")


def test_what_a_request_raises_is_of_the_tree() -> None:
    for error in (httpx.ReadError("-"), httpx.DecodingError("-"), UnicodeError("-"), httpx.InvalidURL("-")):
        with pytest.raises(ClientError), http.translated("a", 1.0):
            raise error
