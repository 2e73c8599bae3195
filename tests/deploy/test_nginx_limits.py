"""The limits that nginx holds: sizes, times, rates."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from archive import properties
from archive.server import Server
from clients import (
    Client,
    QueueFull,
)
from tests.deploy.nginx import CONF, JPEG, LIMIT, ONCE, SERVICE, Launch, Nginx, error_of, faces, predict, refused
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT


def test_limits_are_those_of_the_configuration() -> None:
    text = CONF.read_text(encoding="utf-8")
    values = properties.read(ROOT / "config.properties")
    [body] = re.findall(r"client_max_body_size (\d+);", text)
    assert int(body) == int(values["max_request_size"]) == LIMIT
    assert f"{LIMIT:,} bytes" in text
    slowest = max(entry["responseTimeout"] for each in properties.models(values).values() for entry in each.values())
    for name in ("proxy_read_timeout", "grpc_read_timeout"):
        [seconds] = re.findall(rf"{name} (\d+)s;", text)
        assert int(seconds) > slowest
    [queue] = {values["job_queue_size"]}
    opened = {int(number) for number in re.findall(r"limit_conn \w+ (\d+);", text)}
    assert max(opened) < int(queue)


def test_a_body_of_the_limit_passes(nginx: Nginx) -> None:
    error = nginx.post(content=bytes(LIMIT)).json()["error"]
    assert (error["type"], "21,000,000" in error["message"]) == ("too_large", True), "the detector's own limit"


@pytest.mark.usefixtures("untouched")
def test_no_body_over_the_limit_reaches_torchserve(nginx: Nginx) -> None:
    assert error_of(nginx.post(content=bytes(LIMIT + 1))) == (413, "too_large")
    # Without a length nginx finds out while it reads.
    assert error_of(nginx.post(content=iter([bytes(10_000_000)] * 4))) == (413, "too_large")
    with nginx.channel() as channel:
        code, details = refused(lambda: predict(channel, nginx.token, bytes(LIMIT + 1)))
    assert (code, "over 30,000,000 bytes" in details) == ("UNAVAILABLE", True)


@pytest.mark.usefixtures("untouched")
def test_a_slow_upload_ends_at_nginx(nginx: Nginx) -> None:
    head = f"POST /predictions/centerface HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(JPEG)}\r\n"
    started = time.monotonic()
    with ExitStack() as stack:
        slow = [stack.enter_context(nginx.connect()) for _ in range(10)]
        for each in slow:
            each.sendall(f"{head}Authorization: Bearer {nginx.token}\r\n\r\n".encode() + JPEG[:1000])
        # Headers that do not end.
        unfinished = stack.enter_context(nginx.connect())
        unfinished.sendall(head.encode())
        for each in (*slow, unfinished):
            each.settimeout(30)
            try:
                received = each.recv(1000)
            except ConnectionError:
                received = b""
            assert not received or b" 408 " in received
    assert 1 < time.monotonic() - started < 30


def test_a_slow_grpc_call_holds_no_worker(nginx: Nginx, behind: Server) -> None:
    """nginx passes a message on as it comes; TorchServe has it whole before a worker does."""
    stop = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b""
        stop.wait(30)

    with nginx.channel() as channel:
        call = channel.stream_unary(f"{SERVICE}/Predictions", bytes, bytes)
        future = call.future(pieces(), metadata=[("authorization", f"Bearer {nginx.token}")], timeout=60)
        answers = [nginx.post() for _ in range(3)]
        assert [len(faces(answer.json())) for answer in answers] == [1, 1, 1]
        assert {answer.json()["batch_size"] for answer in answers} == {1}
        stop.set()
        with pytest.raises(grpc.RpcError):
            future.result(timeout=60)


@pytest.mark.usefixtures("untouched")
def test_floods_of_headers(nginx: Nginx) -> None:
    request = "POST /predictions/centerface HTTP/1.1\nHost: localhost\nContent-Length: 0\n"
    many = "\n".join(f"X-Face-{number}: {'x' * 1000}" for number in range(100))
    for lines, status in (
        (request + many, 431),
        (f"{request}X-Face-Canvas: {'x' * 9000}", 431),
        (request.replace("centerface", "c" * 9000).strip(), 414),
    ):
        found, headers, body = nginx.raw(lines)
        assert (found, headers["content-type"]) == (status, "application/json")
        assert json.loads(body)["error"] == {**json.loads(body)["error"], "code": status, "type": "invalid_request"}


@pytest.mark.usefixtures("untouched")
def test_a_body_of_text_fields_is_told_what_to_do(nginx: Nginx) -> None:
    """What curl says of ``--data-binary`` by itself."""
    answer = nginx.post(headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})
    assert error_of(answer) == (415, "invalid_request")
    assert "curl -T FILE" in answer.json()["error"]["message"]


def test_too_much_of_one_address_or_caller(launch: Launch, behind: Server) -> None:
    changes = {"rate=200r/s": "rate=1r/m", "burst=400": "burst=2", "_open 64": "_open 1"}
    narrow = launch(behind.inference.removeprefix("http://"), behind.values["grpc_inference_port"], changes)
    with narrow.connect() as slow:
        head = f"POST /predictions/centerface HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(JPEG)}\r\n"
        slow.sendall(f"{head}Authorization: Bearer {narrow.token}\r\n\r\n".encode())
        time.sleep(0.3)
        assert error_of(narrow.post()) == (429, "rate_limited"), "one is under way"
    deadline = time.monotonic() + 20
    statuses: list[int] = []
    while statuses.count(429) < 2 and time.monotonic() < deadline:
        statuses.append(narrow.post("/ping", method="GET", content=None).status_code)
    assert set(statuses) <= {200, 429}
    with narrow.channel() as channel:
        code, details = refused(lambda: predict(channel, narrow.token))
        assert (code, "too many requests" in details) == ("UNAVAILABLE", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(narrow.roots))
        with Client(narrow.address, token=narrow.token, retry=ONCE) as client, pytest.raises(QueueFull) as caught:
            client.detect(HOPPER.path)
    assert (caught.value.status, caught.value.type, caught.value.retryable) == (429, "rate_limited", True)
    kept = {(line["rate"], line["open"]) for line in narrow.lines() if line["status"] == 429}
    assert {("REJECTED", ""), ("PASSED", "REJECTED")} <= kept
