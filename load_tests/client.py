"""What the Python client costs a request, beside a bare call of the library under it.

The server is a stand-in, in a process of its own, that answers at once with one fixed answer: what is measured is the
client's side. Contenders take turns, so that a change of the machine's speed meets all of them alike.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio
import httpx

from archive.files import progress
from clients import AsyncClient, Client, Retry
from clients.proto.inference_pb2 import PredictionResponse, PredictionsRequest
from clients.proto.inference_pb2_grpc import InferenceAPIsServiceStub
from load_tests import machine
from load_tests.overhead import photograph

_ANSWER = json.dumps(
    {
        "model": {"name": "centerface", "version": "1.0", "weights": "none", "engine": "none", "precision": "fp32"},
        "image": {"width": 640, "height": 480},
        "canvas": "480x640",
        "scale": 1.0,
        "faces": [
            {
                "box": [181.457, 58.04, 269.928, 178.001],
                "score": 0.928771,
                "landmarks": {
                    "right_eye": [203.162, 101.497],
                    "left_eye": [247.16, 104.557],
                    "nose": [223.223, 125.166],
                    "mouth_right": [203.385, 142.624],
                    "mouth_left": [241.276, 144.929],
                },
            }
        ],
        "timing_ms": {"decode": 3.42, "preprocess": 0.4, "network": 41.9, "postprocess": 0.6, "landmarks": 0.0},
        "batch_size": 1,
    },
    separators=(",", ":"),
).encode()
_SERVICE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
_WARM_UP = 20
_TOKEN = "token"  # noqa: S105
#: The client beside the library it is built on, for asyncio and for threads.
_PAIRS = {
    "REST, AsyncClient": "httpx.AsyncClient",
    "REST, Client": "httpx.Client",
    "gRPC, AsyncClient": "grpc.aio",
    "gRPC, Client": "grpc",
}


def run(rounds: int) -> None:
    """Print the medians of one request at a time. Arguments as for :func:`measure`."""
    taken = {name: statistics.median(each) * 1000 for name, each in measure(rounds).items()}
    print(machine.describe())
    print(f"one 640x480 JPEG of {len(photograph(640, 480)):,} bytes a request, medians of {rounds} interleaved rounds")
    print(f"{'client':18}  {'ms':>6}  {'bare call':17}  {'ms':>6}  {'overhead ms':>11}")
    for name, bare in _PAIRS.items():
        print(f"{name:18}  {taken[name]:6.2f}  {bare:17}  {taken[bare]:6.2f}  {taken[name] - taken[bare]:11.2f}")


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of every request, by contender.

    Args:
        rounds: requests of each contender, after some to warm up.
    """
    # Forking a process that has used gRPC is not allowed.
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        http, rpc = mine.recv()
        return asyncio.run(_measured(f"http://127.0.0.1:{http}", f"127.0.0.1:{rpc}", rounds))
    finally:
        server.terminate()
        server.join()


async def _measured(http: str, rpc: str, rounds: int) -> dict[str, list[float]]:
    image = photograph(640, 480)
    path, authorization = "/predictions/centerface", f"Bearer {_TOKEN}"
    headers = {"Authorization": authorization, "Content-Type": "application/octet-stream"}
    metadata = (("authorization", authorization),)
    given: dict[str, Any] = {"token": _TOKEN, "retry": Retry(attempts=1)}

    def message() -> Any:
        return PredictionsRequest(model_name="centerface", input={"image": image})

    with (
        httpx.Client(base_url=http) as sync_http,
        grpc.insecure_channel(rpc) as sync_channel,
        Client(http, **given) as sync_rest,
        Client(f"grpc://{rpc}", **given) as sync_grpc,
    ):
        async with (
            httpx.AsyncClient(base_url=http) as async_http,
            grpc.aio.insecure_channel(rpc) as async_channel,
            AsyncClient(http, **given) as async_rest,
            AsyncClient(f"grpc://{rpc}", **given) as async_grpc,
        ):
            sync_stub, async_stub = InferenceAPIsServiceStub(sync_channel), InferenceAPIsServiceStub(async_channel)

            async def bare_http() -> object:
                return json.loads((await async_http.post(path, content=image, headers=headers)).content)

            async def bare_grpc() -> object:
                return json.loads((await async_stub.Predictions(message(), metadata=metadata)).prediction)

            waited: dict[str, Callable[[], Awaitable[object]]] = {
                "httpx.AsyncClient": bare_http,
                "REST, AsyncClient": lambda: async_rest.detect(image),
                "grpc.aio": bare_grpc,
                "gRPC, AsyncClient": lambda: async_grpc.detect(image),
            }
            blocking: dict[str, Callable[[], object]] = {
                "httpx.Client": lambda: json.loads(sync_http.post(path, content=image, headers=headers).content),
                "REST, Client": lambda: sync_rest.detect(image),
                "grpc": lambda: json.loads(sync_stub.Predictions(message(), metadata=metadata).prediction),
                "gRPC, Client": lambda: sync_grpc.detect(image),
            }
            seconds: dict[str, list[float]] = {name: [] for name in (*waited, *blocking)}
            with progress("rounds", rounds + _WARM_UP, "round") as bar:
                for number in range(rounds + _WARM_UP):
                    for name in seconds:
                        started = time.perf_counter()
                        answer = await waited[name]() if name in waited else blocking[name]()
                        if number >= _WARM_UP:
                            seconds[name].append(time.perf_counter() - started)
                        if not answer:
                            raise RuntimeError(f"{name} gave no answer: the figures would mean nothing")
                    bar.update(1)
    return seconds


def _serve(port: Connection) -> None:
    asyncio.run(_served(port))


async def _served(port: Connection) -> None:
    """Both protocols on free ports, which are told through the pipe; until the process is ended."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                [length] = [line.split(b":")[1] for line in lines if line.startswith(b"content-length:")]
                await reader.readexactly(int(length))
                writer.write(head + _ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    async def predict(request: Any, context: Any) -> Any:
        return PredictionResponse(prediction=_ANSWER)

    http = await asyncio.start_server(converse, "127.0.0.1", 0)
    rpc = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        predict,
        request_deserializer=PredictionsRequest.FromString,
        response_serializer=PredictionResponse.SerializeToString,
    )
    rpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Predictions": handler}),))
    rpc_port = rpc.add_insecure_port("127.0.0.1:0")
    await rpc.start()
    port.send((http.sockets[0].getsockname()[1], rpc_port))
    await rpc.wait_for_termination()
