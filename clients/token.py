"""Where the bearer token comes from, and what is done when the server refuses it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import httpx

from clients import http, wire
from clients.errors import NotAuthorised, Unreachable, UsageError

VARIABLES = {"inference": "MOGFACE_TOKEN", "management": "MOGFACE_MANAGEMENT_TOKEN"}
KEY_FILE = Path("key_file.json")
_TIMEOUT_S = 30.0
#: Of the management API's answer, which is empty where it renewed a token.
_LARGEST = 1_000_000
# TorchServe writes the file in place: one read in the middle of that sees half of it.
_READS = 5
_PAUSE_S = 0.05


class Token:
    """One API's bearer token. Threads share it: of many callers that are refused together one renews it.

    Args:
        source: the token itself; a Path to TorchServe's ``key_file.json``; or None: the API's variable of
            ``VARIABLES``, else ``./key_file.json`` where there is one, else none is sent.
        management: address of the management API, which renews tokens.
        api: ``inference`` or ``management``.

    Raises:
        UsageError: a file that cannot be read or holds no such token, or text that no header can hold.
    """

    def __init__(self, source: str | Path | None, management: str, api: str = "inference") -> None:
        self._management = management.rstrip("/")
        self._api = api
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._value = source if isinstance(source, str) else None
        if source is None:
            self._value = os.environ.get(VARIABLES[api]) or None
        if not isinstance(source, str) and self._value is None:
            # A program may change its folder before a token is renewed.
            self._path = (source or KEY_FILE).absolute()
            if source or self._path.exists():
                self._value = key_of(self._path, api)
        if self._value is not None and not (self._value.isascii() and self._value.isprintable() and self._value):
            raise UsageError("the token is empty or holds other characters than printable ASCII")

    @property
    def value(self) -> str | None:
        """The token; None sends none."""
        return self._value

    def renew(self, refused: str | None) -> str | None:
        """A token other than the one that was refused; it may block for seconds.

        The file is read again first: another program may have renewed the token, or the server started anew. If it
        still holds the refused one, the management API is asked for a new one with the file's API key.

        Returns:
            The new token; None where there is no file to take one from.

        Raises:
            NotAuthorised: the file's API key is refused too, or brings nothing new.
            UsageError: the file cannot be read.
            Unreachable: the management API does not answer.
            TooLarge, BadAnswer: something else answers there.
        """
        with self._lock:
            if self._value != refused:
                return self._value
            if self._path is None or not self._path.exists():
                return None
            self._value = self._read(self._api)
            if self._value == refused:
                self._ask()
                self._value = self._read(self._api)
            if self._value == refused:
                raise NotAuthorised(
                    f"{self._management} renewed a token, but not the one in {self._path}: give the key_file.json of "
                    "the server that is asked"
                )
            return self._value

    def _ask(self) -> None:
        address = f"{self._management}/token"
        headers = authorization(self._read("API"))
        http.require(address, "management address")
        with http.set_up():
            asked = httpx.Client(headers=http.HEADERS | headers, timeout=_TIMEOUT_S)
        try:
            with (
                asked,
                http.translated(address, _TIMEOUT_S),
                asked.stream("GET", address, params={"type": self._api}) as reply,
            ):
                status, body = reply.status_code, http.read(reply, _LARGEST)
        except Unreachable as error:
            raise Unreachable(f"the token was refused, and {address}, which renews it: {error.message}") from error
        if status != 200:
            wire.json_of(status, body)
            raise NotAuthorised(f"{address} renewed no token: it answered {status} {wire.excerpt(body)}")

    def _read(self, api: str) -> str:
        for _ in range(_READS - 1):
            try:
                return key_of(self._path or KEY_FILE, api)
            except UsageError:
                time.sleep(_PAUSE_S)
        return key_of(self._path or KEY_FILE, api)


def key_of(path: Path, api: str = "inference") -> str:
    """The token of an API in TorchServe's ``key_file.json``.

    Args:
        path: of the file.
        api: ``inference``, ``management``, or ``API``, which renews the others.

    Raises:
        UsageError: the file cannot be read or has no such token.
    """
    try:
        key = json.loads(path.read_bytes())[api]["key"]
    except OSError as error:
        raise UsageError(f"token file {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(
            f"token file {path} is no key_file.json of TorchServe with a key for {api}: {error!r}"
        ) from error
    return str(key)


def authorization(token: str | None) -> dict[str, str]:
    """The header that carries a token; none for None."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}
