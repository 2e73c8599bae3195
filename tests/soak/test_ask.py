"""A reply counts as what it is; and a caller notices a server that is silent, wrong or gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.ask import Ask, Outcome, Reply, ending, grpc_status
from tests.soak.caller import opened
from tests.soak.good import told

FACES = {"faces": [{"box": [1.0, 2.0, 3.0, 4.0]}], "timing_ms": {"network": 35.0}, "batch_size": 1}
ASK = Ask("raw", "a photograph", 200, lambda body: told(body) == told(json.dumps(FACES).encode()))


def error(status: int, type: str, message: str = "") -> Reply:
    return Reply(status, json.dumps({"code": status, "type": type, "message": message}).encode())


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (Reply(200, json.dumps(FACES).encode()), "right"),
        (Reply(200, json.dumps(FACES | {"timing_ms": {}, "batch_size": 8}).encode()), "right"),
        (Reply(200, json.dumps(FACES | {"faces": []}).encode()), "wrong"),
        (Reply(200, b"{}"), "wrong"),
        (error(500, "InternalServerException", "Worker died."), "worker_died"),
        (error(503, "ServiceUnavailableException", "Model has no worker to serve inference request"), "queue_full"),
        (Reply(503, b'{"error": {"code": 503, "type": "deadline", "message": "late"}}'), "deadline"),
        (error(503, "InternalServerException", "Prediction failed"), "undocumented"),
        (Reply(500, b'{"error": {"code": 500, "type": "engine", "message": "no"}}'), "undocumented"),
        (Reply(413, b""), "undocumented"),
    ],
)
def test_how_a_reply_ends(reply: Reply, end: str) -> None:
    found, said = ending(ASK, reply)
    assert found == end
    assert bool(said) == (end != "right")


def test_a_body_of_another_form_is_a_wrong_answer() -> None:
    looking = Ask("hostile image", "a picture", 200, lambda body: bool(json.loads(body)["image"]["width"]))
    for body in (b"{}", b"[]", b"no JSON", b'{"image": 7}'):
        assert ending(looking, Reply(200, body))[0] == "wrong"


def test_status_over_grpc() -> None:
    assert grpc_status(json.dumps(FACES).encode()) == 200
    assert grpc_status(b'{"error": {"code": 413, "type": "too_large", "message": ""}}') == 413
    assert grpc_status(b"\xff\xd8\xff") == 200


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def outcome_of(
    answer: Answering, folder: Path, manner: str = "whole", timeout_s: float = 1.0, flood: bool = False
) -> Outcome:
    """Of one photograph, by a stand-in for the server."""
    (folder / "key_file.json").write_text('{"inference": {"key": "a"}, "API": {"key": "b"}}')
    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    server: Any = SimpleNamespace(
        inference=address, management=address, folder=folder, values={"grpc_inference_port": "1"}
    )
    ask = Ask(ASK.kind, ASK.name, 200, ASK.right, {"content": b"12345678"}, manner=manner, flood=flood)
    async with listening, opened(server, "centerface", timeout_s) as caller:
        return await caller.outcome(ask, 0.0)


async def read(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"authorization: bearer a" in head.lower()
    return await reader.readexactly(8)


async def right(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    assert await read(reader) == b"12345678"
    body = json.dumps(FACES).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read(reader)
    await asyncio.sleep(5)
    writer.close()


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read(reader)
    writer.close()


@pytest.mark.parametrize(("answer", "end"), [(right, "right"), (silent, "hung"), (closing, "unreachable")])
def test_a_caller_notices(answer: Answering, end: str, tmp_path: Path) -> None:
    assert asyncio.run(outcome_of(answer, tmp_path)).end == end


def test_a_flood_of_headers_may_be_hung_up_on(tmp_path: Path) -> None:
    assert asyncio.run(outcome_of(closing, tmp_path, flood=True)).end == "gone"
    assert asyncio.run(outcome_of(silent, tmp_path, flood=True)).end == "hung"


def test_a_slow_upload_is_answered(tmp_path: Path) -> None:
    found = asyncio.run(outcome_of(right, tmp_path, "slow", 60.0))
    assert found.end == "right", found.said


def test_a_slow_upload_whose_token_is_renewed_meanwhile_is_sent_again(tmp_path: Path) -> None:
    """The server hangs up over the old one before the upload is whole, as TorchServe does."""
    seen = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(b"Bearer new" in head)
        if not seen[-1]:
            (tmp_path / "key_file.json").write_text('{"inference": {"key": "new"}, "API": {"key": "b"}}')
            writer.transport.abort()
            return
        await reader.readexactly(8)
        body = json.dumps(FACES).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    found = asyncio.run(outcome_of(answer, tmp_path, "slow", 60.0))
    assert (found.end, seen) == ("right", [False, True]), found.said


def test_a_caller_that_leaves_sends_half(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            seen.append(await reader.readexactly(8))
        except (asyncio.IncompleteReadError, ConnectionResetError) as left:
            seen.append(getattr(left, "partial", b""))
        writer.close()

    assert asyncio.run(outcome_of(note, tmp_path, "gone")).end == "gone"
    assert all(len(each) < 8 for each in seen)
