"""Sends requests, over REST, gRPC or a bare connection, and says how each ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import grpc
import grpc.aio
import httpx

from archive.server import Server
from clients import ClientError, NotAuthorised
from clients.grpc import translated
from clients.proto.inference_pb2 import PredictionsRequest
from clients.proto.inference_pb2_grpc import InferenceAPIsServiceStub
from clients.token import Token, authorization, key_of
from tests.soak.ask import AWAY, HUNG, UNDOCUMENTED, Ask, Outcome, Reply, ending, error_type, grpc_status

#: Connections at once, more than the server's queue takes: further requests wait here.
CONNECTIONS = 200
_BYTES = 30_000_000
#: A slow upload's pieces, and the time between them.
_PIECES, _PAUSE_S = 6, 0.5
#: Within which TorchServe has written a renewed token down.
_WRITTEN_S = 0.5
#: Another renewal may come between this one and the next try.
_RENEWALS = 3


class Caller:
    """To be made by :func:`opened`, in the event loop that it is used in.

    Args:
        server: that is called.
        model: its name.
        timeout_s: without an answer for so long, a request hangs.
        http: connections over REST.
        channel: the one over gRPC.

    Attributes:
        under_way: requests that wait for their answer.
    """

    def __init__(
        self, server: Server, model: str, timeout_s: float, http: httpx.AsyncClient, channel: grpc.aio.Channel
    ) -> None:
        self._path = f"/predictions/{model}"
        self._model = model
        self._timeout_s = timeout_s
        self._http = http
        self._predict = InferenceAPIsServiceStub(channel).Predictions
        self._where = urlsplit(server.inference)
        self._keys = server.folder / "key_file.json"
        self._token = Token(self._keys, server.management)
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self.under_way = 0

    async def outcome(self, ask: Ask, due: float) -> Outcome:
        """Send one request; never raises.

        Args:
            ask: what to send.
            due: when it should have been sent, s on the monotonic clock.
        """
        async with self._slots:
            self.under_way += 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    end, said = await self._end(ask)
            except TimeoutError:
                end, said = HUNG, f"{ask.name}: no answer in {self._timeout_s:g} s"
            except ClientError as error:
                end, said = error.type if error.type in AWAY else UNDOCUMENTED, f"{ask.name}: {error!r}"
            except (httpx.HTTPError, OSError) as error:
                end, said = "gone" if ask.flood else "unreachable", f"{ask.name}: {error!r}"
            finally:
                self.under_way -= 1
        return Outcome(ask.kind, due, time.monotonic(), end, said)

    async def reply(self, ask: Ask) -> Reply:
        """The server's reply, asked again with a new token where the old one has been renewed.

        Raises:
            ClientError: over gRPC, where there is no reply; NotAuthorised where no token is taken.
        """
        send = self._crawl if ask.manner == "slow" else self._send
        for _ in range(_RENEWALS):
            token = self._token.value
            try:
                reply = await send(ask, token)
            except ConnectionError:
                # TorchServe refuses a token before the upload is whole, and hangs up on the rest of it; a renewed one
                # counts before it is in the file.
                await asyncio.sleep(_WRITTEN_S)
                if key_of(self._keys) == token:
                    raise
            else:
                if error_type(reply) != "not_authorised":
                    return reply
            await asyncio.to_thread(self._token.renew, token)
        raise NotAuthorised(f"{ask.name}: {_RENEWALS} tokens were refused, one after the other")

    async def _end(self, ask: Ask) -> tuple[str, str]:
        if ask.manner == "gone":
            await self._leave(ask)
            return "gone", ""
        return ending(ask, await self.reply(ask))

    async def _send(self, ask: Ask, token: str | None) -> Reply:
        if ask.fields is None:
            headers = dict(ask.headers) | authorization(token)
            answer = await self._http.post(self._path, headers=headers, **ask.body)
            return Reply(answer.status_code, answer.content)
        message = PredictionsRequest(model_name=self._model, input=ask.fields)
        try:
            predicted = await self._predict(message, metadata=tuple(_lower(authorization(token))))
        except grpc.aio.AioRpcError as error:
            told = translated(error, "gRPC")
            if not isinstance(told, NotAuthorised):
                raise told from error
            return Reply(400, json.dumps({"code": 400, "type": "InvalidKeyException", "message": ""}).encode())
        return Reply(grpc_status(predicted.prediction), predicted.prediction)

    def _head(self, ask: Ask, token: str | None) -> tuple[bytes, bytes]:
        content = ask.body["content"]
        lines = [f"POST {self._path} HTTP/1.1", "Host: soak", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in (authorization(token) | dict(ask.headers)).items()]
        return "\r\n".join([*lines, "", ""]).encode(), content

    async def _leave(self, ask: Ask) -> None:
        """Half of the upload, then the connection is cut."""
        head, content = self._head(ask, self._token.value)
        _, writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        writer.write(head + content[: len(content) // 2])
        await writer.drain()
        writer.transport.abort()

    async def _crawl(self, ask: Ask, token: str | None) -> Reply:
        """The upload in pieces."""
        head, content = self._head(ask, token)
        reader, writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        try:
            writer.write(head)
            size = -(-len(content) // _PIECES)
            for start in range(0, len(content), size):
                writer.write(content[start : start + size])
                await writer.drain()
                await asyncio.sleep(_PAUSE_S)
            return await _reply(reader)
        finally:
            writer.close()


@asynccontextmanager
async def opened(server: Server, model: str, timeout_s: float) -> AsyncIterator[Caller]:
    """A caller of a running server. Arguments as Caller's."""
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    sizes = [(f"grpc.max_{way}_message_length", _BYTES) for way in ("send", "receive")]
    target = f"127.0.0.1:{server.values['grpc_inference_port']}"
    async with (
        # The whole call has one deadline; httpx would time each read by itself.
        httpx.AsyncClient(base_url=server.inference, timeout=None, limits=limits) as http,
        grpc.aio.insecure_channel(target, sizes) as channel,
    ):
        yield Caller(server, model, timeout_s, http, channel)


def _lower(headers: dict[str, str]) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in headers.items()]


async def _reply(reader: asyncio.StreamReader) -> Reply:
    """One reply of HTTP/1.1, whose length TorchServe always says; it may leave the connection open."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        [length] = [line.partition(":")[2] for line in head if line.startswith("content-length:")]
        return Reply(int(head[0].split()[1]), await reader.readexactly(int(length)))
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the connection was closed in the midst of a reply") from error
