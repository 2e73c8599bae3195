"""httpx in the words of this package's errors, with answers of a bounded size: REST, management and tokens share it."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator

import httpx

from clients.errors import BadAnswer, TooLarge, Unreachable, UsageError

#: Of every request: what :func:`read` can unpack within a limit.
HEADERS = {"Accept-Encoding": "gzip"}
_GZIP = 16 + zlib.MAX_WBITS


def require(address: str, what: str = "address") -> None:
    """Raise unless an address is one that httpx and the system's names can be asked for.

    Args:
        address: ``http://HOST:PORT`` or ``https://HOST``.
        what: it is, for the message.

    Raises:
        UsageError: it is not.
    """
    try:
        url = httpx.URL(address)
        # httpx refuses some names only when it reads them back, and others only whoever looks them up: an empty
        # label, one of over 63 bytes.
        usable = bool(url.host) and bool(url.raw_host.decode("ascii").encode("idna"))
    except (httpx.InvalidURL, ValueError) as error:  # errors of IDNA are ValueErrors
        raise UsageError(f"{what} {address!r}: {error}") from error
    if not usable or url.scheme not in ("http", "https"):
        raise UsageError(f"{what} {address!r}: expected http://HOST:PORT")


@contextlib.contextmanager
def set_up() -> Iterator[None]:
    """Translates what the making of an httpx client raises, which takes proxies and certificates of the environment.

    Raises:
        UsageError: they are not usable.
    """
    try:
        yield
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise UsageError(
            f"HTTP cannot be set up as HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE say: {error}"
        ) from error


@contextlib.contextmanager
def translated(address: str, timeout_s: float) -> Iterator[None]:
    """Translates what a request raises.

    Args:
        address: that is asked, for the message.
        timeout_s: that it may take, for the message.

    Raises:
        Unreachable: no connection, or none that lasted until the reply, or no reply in time.
        UsageError: the request cannot be written as HTTP.
    """
    try:
        yield
    except (TimeoutError, httpx.TimeoutException) as error:
        raise Unreachable(f"{address} gave no answer within {timeout_s:g} s") from error
    except (httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError) as error:
        raise UsageError(f"the request cannot be sent over HTTP: {error}") from error
    except httpx.HTTPError as error:
        raise Unreachable(
            f"{address} cannot be reached: {type(error).__name__} {error}: is the server running there?"
        ) from error


def read(reply: httpx.Response, limit: int) -> bytes:
    """The body of a streamed reply, unpacked.

    Args:
        reply: whose body was not read yet.
        limit: of bytes, on the way and unpacked.

    Raises:
        TooLarge: the body has more.
        BadAnswer: it is packed otherwise than by gzip, or damaged.
    """
    body = _Body(limit)
    for part in reply.iter_raw():
        body.add(part)
    return body.unpacked(reply.headers)


async def aread(reply: httpx.Response, limit: int) -> bytes:
    """As :func:`read`, of an asynchronous client's reply."""
    body = _Body(limit)
    async for part in reply.aiter_raw():
        body.add(part)
    return body.unpacked(reply.headers)


class _Body:
    """A body as it arrives. httpx would keep all of one without end, and unpack 1 kB to 1 MB."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()

    def add(self, part: bytes) -> None:
        self._data += part
        self._within(len(self._data))

    def unpacked(self, headers: httpx.Headers) -> bytes:
        coding = headers.get("Content-Encoding", "identity").strip().lower()
        if coding == "identity" or not self._data:
            return bytes(self._data)
        if coding != "gzip":
            raise BadAnswer(f"the answer is packed by {coding!r}: expected gzip or none, as was asked for")
        unpacker = zlib.decompressobj(_GZIP)
        try:
            data = unpacker.decompress(self._data, self._limit + 1)
        except zlib.error as error:
            raise BadAnswer(f"the answer is no gzip, which its Content-Encoding says: {error}") from error
        self._within(len(data))
        if not unpacker.eof:
            raise BadAnswer("the answer's gzip is cut off")
        return data

    def _within(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(f"the answer has more than {self._limit:,} bytes, at most as many are taken")
