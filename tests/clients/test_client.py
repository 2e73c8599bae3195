"""The client without a server that answers: arguments, addresses, deadlines, endings."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import pydoc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

import pytest

from clients import Answer, AsyncClient, Client, ClientError, ClientFault, Retry, TooLarge, Unreachable, UsageError
from clients.rest import Rest
from handler.options import Options
from tests.clients.test_answer import TEXT

ONCE = Retry(attempts=1)
#: Nothing listens there.
NOWHERE = ["http://127.0.0.1:1", "grpc://127.0.0.1:1"]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8080", "localhost:8080", "ftp://a:1", "http://", "grpc://a", "grpc://a:1/b", "http://a:b", ""],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        Client(address)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("concurrency", 0),
        ("timeout_s", 0.0),
        ("timeout_s", float("inf")),
        ("max_message_bytes", 0),
        ("model", ""),
        ("model", "\udcff"),
        ("version", "\udcff"),
    ],
)
def test_arguments_are_checked(argument: str, value: Any) -> None:
    for address in NOWHERE:
        with pytest.raises(UsageError, match=argument if value != "\udcff" else "surrogates not allowed"):
            Client(address, **{argument: value})


@pytest.mark.parametrize("address", NOWHERE)
def test_nobody_there(address: str) -> None:
    with Client(address, retry=Retry(attempts=3, base_s=0.01)) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached: .*: is the server running there\?"):
            client.detect(b"image")
        assert client.retries == 2


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_says_nothing(scheme: str, silent: int) -> None:
    with Client(f"{scheme}://127.0.0.1:{silent}", timeout_s=0.3, retry=ONCE) as client:
        started = time.monotonic()
        with pytest.raises(Unreachable, match=r"no answer (in time|within 0\.3 s)"):
            client.detect(b"image")
        assert 0.25 < time.monotonic() - started < 10


@pytest.mark.parametrize("address", NOWHERE)
def test_what_is_refused_before_anything_is_sent(address: str) -> None:
    with Client(address, max_message_bytes=4) as client:
        with pytest.raises(TooLarge, match="the image has 5 bytes: at most 4 are sent in one request"):
            client.detect(b"image")
        with pytest.raises(UsageError, match="cannot be read"):
            client.detect(Path("/nowhere/a.jpg"))
        with pytest.raises(UsageError, match="output is 'image': faces come as json"):
            client.detect(b"img", output="image")
        with pytest.raises(UsageError, match=r"picture\(\) sets it itself"):
            client.picture(b"img", output="json")
        with pytest.raises(UsageError, match="option 'image2'"):
            client.detect_each([b"img"], image2="x")
        assert client.retries == 0


def test_an_images_own_error_takes_its_answers_place() -> None:
    with Client(NOWHERE[0], retry=ONCE, max_message_bytes=4) as client:
        outcomes = list(client.detect_each([b"image", Path("/nowhere/a.jpg"), b"img"]))
    assert [type(outcome) for outcome in outcomes] == [TooLarge, UsageError, Unreachable]


class Odd(PosixPath):
    """An image that raises what no image should."""

    error: Exception

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("odd"), MemoryError(), OverflowError("large")])
def test_an_exception_that_is_not_expected_is_its_images_own(error: Exception) -> None:
    odd = Odd("odd.jpg")
    odd.error = error

    def check(outcomes: list[Any]) -> None:
        assert [type(each) for each in outcomes] == [Unreachable, ClientFault, Unreachable]
        assert outcomes[1].__cause__ is error
        assert type(error).__name__ in outcomes[1].message

    async def run() -> list[Any]:
        async with AsyncClient(NOWHERE[0], retry=ONCE) as client:
            with pytest.raises(ClientFault):
                await client.detect(odd)
            return [outcome async for outcome in client.detect_each([b"a", odd, b"b"])]

    check(asyncio.run(run()))
    with Client(NOWHERE[0], retry=ONCE) as client:
        for call in (client.detect, client.picture):
            with pytest.raises(ClientFault):
                call(odd)
        check(list(client.detect_each([b"a", odd, b"b"])))


def test_a_transport_that_raises_anything_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library raises one day: the kind, not the cases that are known."""

    async def send(self: Rest, request: Any, token: Any) -> tuple[int, bytes]:
        if request.image == b"odd":
            raise ZeroDivisionError
        return 200, TEXT.encode()

    monkeypatch.setattr(Rest, "send", send)
    with Client(NOWHERE[0], retry=ONCE) as client:
        outcomes = list(client.detect_each([b"a", b"odd"] * 20))
    assert [type(each) for each in outcomes] == [Answer, ClientFault] * 20


def test_help_says_every_option() -> None:
    """Those that the server knows, but for ``output``, which the methods set."""
    for method in (Client.detect, AsyncClient.detect):
        text = pydoc.render_doc(method)
        for option in dataclasses.fields(Options):
            assert (f"{option.name}: " in text) == (option.name != "output"), option.name


def test_images_are_taken_as_they_are_needed(silent: int) -> None:
    taken = itertools.count()
    images = (b"%d" % next(taken) for _ in itertools.repeat(None))
    with Client(f"http://127.0.0.1:{silent}", concurrency=3, timeout_s=0.2, retry=ONCE) as client:
        outcomes = client.detect_each(images)
        assert next(taken) == 0
        assert isinstance(next(outcomes), ClientError)
        assert next(taken) <= 8
        outcomes.close()  # type: ignore[attr-defined]


def test_images_may_come_from_an_asynchronous_iterator() -> None:
    async def images() -> Any:
        for image in (b"image", b"images"):
            await asyncio.sleep(0)
            yield image

    async def run() -> list[object]:
        async with AsyncClient(NOWHERE[0], max_message_bytes=4) as client:
            return [outcome async for outcome in client.detect_each(images())]

    assert [str(outcome)[:21] for outcome in asyncio.run(run())] == ["the image has 5 bytes", "the image has 6 bytes"]


@pytest.mark.parametrize("address", NOWHERE)
def test_a_closed_client_says_so(address: str) -> None:
    client = Client(address)
    client.close()
    client.close()
    for call in (lambda: client.detect(b"image"), lambda: list(client.detect_each([b"image"]))):
        with pytest.raises(UsageError, match="the client is closed"):
            call()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_closing_ends_calls_that_are_under_way(scheme: str, silent: int) -> None:
    client = Client(f"{scheme}://127.0.0.1:{silent}", retry=ONCE)
    ended: list[BaseException] = []

    def call() -> None:
        try:
            client.detect(b"image")
        except BaseException as error:  # noqa: BLE001 - the test looks at whatever it is
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.3)
    client.close()
    thread.join(timeout=10)
    assert len(ended) == 1
    assert isinstance(ended[0], UsageError)
    assert str(ended[0]) == "the client is closed"


def test_a_client_that_nobody_closes_does_not_keep_the_program() -> None:
    program = "from clients import Client, Retry\nc = Client('http://127.0.0.1:1', retry=Retry(attempts=1))\n"
    program += "try: c.detect(b'image')\nexcept Exception as error: print(type(error).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "Unreachable\n"


def test_users_of_rest_do_not_import_grpc() -> None:
    program = (
        "import sys; from clients import Client; Client('http://127.0.0.1:1').close(); print('grpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "False\n"


def test_a_forked_process_has_clients_of_its_own() -> None:
    program = """
import os
from clients import Client, Retry, Unreachable
def ask():
    with Client('http://127.0.0.1:1', retry=Retry(attempts=1)) as client:
        try: client.detect(b'image')
        except Unreachable: os.write(1, b'asked\\n')
ask()
child = os.fork()
ask()
if child: os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "asked\n" * 3


def test_a_client_from_before_a_fork_says_so() -> None:
    program = """
import os
from clients import Client, UsageError
client = Client('http://127.0.0.1:1')
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    try: client.detect(b'image')
    except UsageError as error: os.write(1, error.message.encode())
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert "before the process forked" in done.stdout
