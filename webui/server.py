"""The detector's server: the one that runs already, or one that is started here and stopped again."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image

from clients import Client, ClientError, NotAuthorised, NotFound, Retry, Unavailable, UsageError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TINY = 32
_POLL_S = 0.3
#: For a started server to be ready, s, and to stop in order.
_START_S, _STOP_S = 180.0, 60.0


@dataclass(frozen=True)
class Address:
    """The server, as a client takes it.

    Attributes:
        address: of the inference API.
        management: of the management API, which renews tokens.
        model: its name.
        version: of the model; None is the default one.
        token: the ``key_file.json``; None is as AsyncClient's.
    """

    address: str
    management: str
    model: str
    version: str | None = None
    token: Path | None = None


@contextlib.contextmanager
def served(asked: Address, config: Path) -> Iterator[None]:
    """Within it a server answers, unless one that ran before does not: the page then says so, and asks again.

    Args:
        asked: the server.
        config: config.properties, by which one is started where nothing listens at the address.

    Raises:
        UsageError: nothing listens there, and none can be started for it.
        Unavailable: the started server did not become ready.
    """
    if _listens(asked.address):
        yield
        return
    _require_startable(asked, config)
    command = [str(Path(sys.executable).parent / "mogface-archive"), "serve", "--config", str(config), asked.model]
    print(f"Nothing listens at {asked.address}: starting a server by {config} ...", flush=True)
    # A session of its own: an interrupt at the terminal reaches this process, which then stops it in order.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        _wait(asked, process)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(address: str) -> bool:
    host, port = _parts(address)
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _parts(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as error:
        raise UsageError(f"address {address!r}: {error}") from error
    if not host or not port:
        raise UsageError(f"address is {address!r}: expected http://HOST:PORT, https:// or grpc://")
    return host, port


def _require_startable(asked: Address, config: Path) -> None:
    host, port = _parts(asked.address)
    if host not in _LOOPBACK:
        raise UsageError(f"nothing listens at {asked.address}, which is another machine: start the server there")
    try:
        listed = config.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"nothing listens at {asked.address}, and no server is started: {config} cannot be read ({error})"
        ) from error
    ports = re.findall(r"^\s*(?:inference_address|grpc_inference_port)\s*[=:].*?(\d+)/?\s*$", listed, re.MULTILINE)
    # TorchServe's own port where none is given.
    ports = ports or ["8080"]
    if str(port) not in ports:
        raise UsageError(
            f"nothing listens at {asked.address}, and {config} starts a server on port {', '.join(ports)}: give that "
            "address, or another --config"
        )


def _wait(asked: Address, process: subprocess.Popen[bytes]) -> None:
    """Until a detection is answered. What the server says of itself is on the console already."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with Client(
                asked.address,
                asked.model,
                version=asked.version,
                token=asked.token,
                management=asked.management,
                retry=Retry(attempts=1),
            ) as client:
                client.detect(Image.new("RGB", (_TINY, _TINY), "grey"))
            return
        except (Unavailable, NotAuthorised, NotFound, UsageError) as error:
            # Not yet: the port, the token's file and the model come one after the other.
            last: ClientError = error
        if process.poll() is not None:
            raise Unavailable(f"the server ended before it was ready, with exit code {process.returncode}: see above")
        if time.monotonic() > deadline:
            raise Unavailable(f"the server was not ready after {_START_S:g} s: {last.message}")
        time.sleep(_POLL_S)
