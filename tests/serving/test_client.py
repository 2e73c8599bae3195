"""The client on a real TorchServe: REST and gRPC say the same, of answers and of errors."""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from archive.server import Server
from clients import (
    Answer,
    AsyncClient,
    Client,
    ClientError,
    InvalidImage,
    InvalidOption,
    Management,
    NotAuthorised,
    NotFound,
    QueueFull,
    Refused,
    Retry,
    TooLarge,
    UnsupportedImage,
)
from clients.wire import Picture
from tests.photographs import ASTRONAUT, HOPPER, NO_FACES, iou
from tests.serving.conftest import Start, worker_pids

TRANSPORTS = ("rest", "grpc")
ONCE = Retry(attempts=1)
#: Of a client that has the time to see everything through.
PATIENT = Retry(attempts=1000, cap_s=1.0, budget_s=300.0)


def address(server: Server, transport: str) -> str:
    return server.inference if transport == "rest" else f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"


def keys(server: Server) -> Path:
    return server.folder / "key_file.json"


def arguments(server: Server, **given: Any) -> dict[str, Any]:
    return {"token": keys(server), "management": server.management, **given}


@pytest.fixture(scope="module")
def clients(server: Server) -> Iterator[dict[str, Client]]:
    made = {transport: Client(address(server, transport), **arguments(server)) for transport in TRANSPORTS}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture(scope="module")
def management(server: Server) -> Iterator[Management]:
    with Management(server.management, keys(server)) as made:
        yield made


def error_of(call: Callable[[], object]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value


def tiff() -> bytes:
    data = io.BytesIO()
    # Float samples: there is no rule by which they would be colours.
    Image.new("F", (64, 48)).save(data, "TIFF")
    return data.getvalue()


@pytest.mark.parametrize(
    "options", [{}, {"score_threshold": 0.3, "max_faces": 2}, {"crops": True}, {"landmarks": False, "order": "size"}]
)
def test_both_transports_give_the_servers_bytes(
    clients: dict[str, Client], post: Callable[..., httpx.Response], options: dict[str, Any]
) -> None:
    """But for times, and how many requests happened to run together."""
    headers = {f"X-Face-{name.replace('_', '-')}": json.dumps(value).strip('"') for name, value in options.items()}
    texts = []
    for photograph in (HOPPER.path, NO_FACES[0]):
        raw = post(content=photograph.read_bytes(), headers=headers).json()
        answers = [clients[transport].detect(photograph, **options).to_json() for transport in TRANSPORTS]
        for value in (raw, *answers):
            assert value["timing_ms"]["network"] > 0
            value["timing_ms"], value["batch_size"] = None, None
        texts.append({json.dumps(value) for value in (raw, *answers)})
        assert len(raw["faces"]) == (photograph == HOPPER.path)
    assert [len(each) for each in texts] == [1, 1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_kind_of_image(clients: dict[str, Client], transport: str) -> None:
    with Image.open(ASTRONAUT.path) as file:
        pixels = np.asarray(file.convert("RGB"))
    images: list[Picture] = [ASTRONAUT.path, ASTRONAUT.path.read_bytes(), pixels, Image.fromarray(pixels)]
    answers = [clients[transport].detect(image) for image in images]
    assert [answer.faces for answer in answers] == [answers[0].faces] * 4
    assert (answers[0].width, answers[0].height) == (512, 512)
    assert iou(answers[0].boxes[0], ASTRONAUT.box) > 0.7
    np.testing.assert_allclose(answers[0].landmarks[0, :3], ASTRONAUT.points, atol=12)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_annotated_picture(clients: dict[str, Client], transport: str) -> None:
    data = clients[transport].picture(HOPPER.path, score_threshold=0.3)
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (512, 600))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stream_in_its_order_each_with_its_own_error(clients: dict[str, Client], transport: str) -> None:
    images: list[Picture] = [ASTRONAUT.path, b"no picture", NO_FACES[0], Path("/nowhere"), HOPPER.path] * 4
    outcomes = list(clients[transport].detect_each(images))
    kinds = [(len(each.faces), each.width) if isinstance(each, Answer) else each.type for each in outcomes]
    assert kinds == [(1, 512), "invalid_image", (0, 600), "usage", (1, 512)] * 4


@pytest.mark.parametrize(
    ("image", "options", "kind", "expected"),
    [
        (b"no picture", {}, InvalidImage, (400, "invalid_image")),
        (b"", {}, InvalidImage, (400, "invalid_image")),
        (HOPPER.path.read_bytes()[:5000], {}, InvalidImage, (400, "invalid_image")),
        (HOPPER.path, {"max_faces": 0}, InvalidOption, (400, "invalid_option")),
        (HOPPER.path, {"threshold": 0.5}, InvalidOption, (400, "invalid_option")),
        (HOPPER.path, {"canvas": "7x7"}, InvalidOption, (400, "invalid_option")),
        (bytes(21_000_001), {}, TooLarge, (413, "too_large")),
        (tiff(), {}, UnsupportedImage, (415, "unsupported_image")),
    ],
    ids=["no picture", "empty", "cut off", "out of range", "unknown", "no canvas", "too large", "tiff"],
)
def test_the_handlers_errors_are_the_same_over_both(
    clients: dict[str, Client], image: bytes | Path, options: dict[str, Any], kind: type, expected: tuple[int, str]
) -> None:
    for transport in TRANSPORTS:
        for call in (clients[transport].detect, clients[transport].picture):
            error = error_of(lambda call=call: call(image, **options))  # type: ignore[misc]
            assert type(error) is kind, transport
            assert (error.status, error.type) == expected
            assert error.message


@pytest.mark.parametrize(
    ("given", "image", "kind", "status"),
    [
        ({"model": "nobody"}, b"image", NotFound, 404),
        ({"version": "9.0"}, b"image", NotFound, 404),
        ({"token": "wrong"}, b"image", NotAuthorised, 400),
        ({"max_message_bytes": 40_000_000}, bytes(31_000_000), TooLarge, 413),
    ],
    ids=["model", "version", "token", "over the server's own limit"],
)
def test_torchserves_errors_are_the_same_over_both(
    server: Server, given: dict[str, Any], image: bytes, kind: type, status: int
) -> None:
    for transport in TRANSPORTS:
        with Client(address(server, transport), **arguments(server, retry=ONCE, **given)) as client:
            error = error_of(lambda client=client: client.detect(image))  # type: ignore[misc]
        assert type(error) is kind, transport
        assert error.status == status


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_version_may_be_named(server: Server, transport: str) -> None:
    with Client(address(server, transport), version="1.0", **arguments(server)) as client:
        assert client.detect(HOPPER.path).model.version == "1.0"


def test_grpc_on_another_port_says_so(server: Server) -> None:
    with Client(f"grpc://127.0.0.1:{server.values['grpc_management_port']}", **arguments(server, retry=ONCE)) as client:
        assert "is the port right?" in error_of(lambda: client.detect(b"image")).message


def renewals(server: Server) -> int:
    return (server.folder / "logs" / "access_log.log").read_text().count('"GET /token?type=inference')


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_token_renewed_by_another_while_in_use(server: Server, transport: str) -> None:
    before = renewals(server)

    async def run() -> list[Answer]:
        async with AsyncClient(address(server, transport), **arguments(server, concurrency=8)) as client:
            await client.detect(HOPPER.path)
            calls = [asyncio.create_task(client.detect(HOPPER.path)) for _ in range(24)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(
                httpx.get, f"{server.management}/token?type=inference", headers=server.headers("API")
            )
            return await asyncio.gather(*calls)

    old = server.key()
    answers = asyncio.run(run())
    assert [len(answer.faces) for answer in answers] == [1] * 24
    assert server.key() != old
    assert _settled(lambda: renewals(server)) == before + 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_refusals_together_renew_the_token_once(server: Server, transport: str) -> None:
    content = json.loads(keys(server).read_text())
    content["inference"]["key"] = "at its end"
    keys(server).write_text(json.dumps(content))
    before = renewals(server)

    async def run() -> list[Answer]:
        async with AsyncClient(address(server, transport), **arguments(server, concurrency=16)) as client:
            return await asyncio.gather(*(client.detect(HOPPER.path) for _ in range(16)))

    assert [len(answer.faces) for answer in asyncio.run(run())] == [1] * 16
    assert server.key() != "at its end"
    assert _settled(lambda: renewals(server)) == before + 1


def test_a_key_file_of_another_server(server: Server, tmp_path: Path) -> None:
    content = json.loads(keys(server).read_text())
    for key in content.values():
        key["key"] = "another"
    (tmp_path / "keys.json").write_text(json.dumps(content))
    with Client(server.inference, **arguments(server, token=tmp_path / "keys.json")) as client:
        assert type(error_of(lambda: client.detect(b"image"))) is NotAuthorised


def _settled(count: Callable[[], int]) -> int:
    """A number out of a log, which is written a little later."""
    found = -1
    while found != (found := count()):
        time.sleep(0.3)
    return found


def test_management_describes_what_is_served(server: Server, management: Management) -> None:
    assert management.models() == ["centerface"]
    [version] = management.describe("centerface")
    assert (version.name, version.version, version.batch_size, version.max_batch_delay_ms) == (
        "centerface",
        "1.0",
        8,
        1,
    )
    assert (version.min_workers, version.max_workers, version.queue_length) == (1, 1, 0)
    assert [(worker.status, worker.ready, worker.gpu) for worker in version.workers] == [("READY", True, False)]
    assert [worker.pid for worker in version.workers] == worker_pids(server)
    assert management.describe("centerface", "1.0") == management.describe("centerface", "all") == [version]
    assert management.ready("centerface")
    assert management.wait("centerface", 5) < 5
    with pytest.raises(NotFound):
        management.describe("nobody")


def test_management_renews_its_own_token(server: Server) -> None:
    with Management(server.management, keys(server)) as management:
        httpx.get(f"{server.management}/token?type=management", headers=server.headers("API"))
        assert management.models() == ["centerface"]
    with Management(server.management, "wrong") as management, pytest.raises(NotAuthorised):
        management.models()


def test_models_are_not_registered_where_the_server_does_not_allow_it(management: Management) -> None:
    for call in (lambda: management.register("centerface.mar"), lambda: management.unregister("centerface")):
        error = error_of(call)
        assert (type(error), error.status) == (Refused, 405)
        assert "enable_model_api=true" in error.message


@pytest.fixture(scope="module")
def narrow(start: Start, centerface_mar: Path) -> Iterator[Server]:
    """A server of which two requests may wait, each runs alone, and models may be registered."""
    changes = {"job_queue_size": "2", "enable_model_api": "true"}
    server = start("centerface", changes=changes, entries={"batchSize": 1})
    yield server
    server.stop()


def test_models_are_registered_scaled_and_unregistered(narrow: Server) -> None:
    with Management(narrow.management, keys(narrow)) as management:
        management.register("centerface.mar", model="second", workers=1, batch_size=3, max_batch_delay_ms=2)
        assert management.models() == ["centerface", "second"]
        [version] = management.describe("second")
        assert (version.batch_size, version.max_batch_delay_ms, len(version.workers)) == (3, 2, 1)
        assert management.ready("second")
        with Client(narrow.inference, "second", **arguments(narrow)) as client:
            assert len(client.detect(HOPPER.path).faces) == 1
        assert error_of(lambda: management.register("centerface.mar", model="second")).status == 409
        management.scale("second", 0)
        assert not management.ready("second")
        with Client(narrow.inference, "second", **arguments(narrow, retry=ONCE)) as client:
            assert type(error_of(lambda: client.detect(HOPPER.path))) is QueueFull
        management.unregister("second")
        assert management.models() == ["centerface"]
        assert type(error_of(lambda: management.register("nothing.mar"))) is NotFound


def test_a_full_queue_refuses_fast_and_clients_back_off(narrow: Server) -> None:
    """Twenty clients at once, of which one is served and two wait; half of them over gRPC."""
    photograph = NO_FACES[0].read_bytes()

    def each(retry: Retry) -> list[tuple[Answer | ClientError, float, int]]:
        barrier = threading.Barrier(20)

        def ask(number: int) -> tuple[Answer | ClientError, float, int]:
            transport = TRANSPORTS[number % 2]
            with Client(address(narrow, transport), **arguments(narrow, retry=retry)) as client:
                barrier.wait()
                started = time.monotonic()
                [outcome] = client.detect_each([photograph], canvas="960x1280")
                return outcome, time.monotonic() - started, client.retries

        with ThreadPoolExecutor(20) as pool:
            return list(pool.map(ask, range(20)))

    once = each(ONCE)
    refused = [(error, taken) for error, taken, _ in once if isinstance(error, ClientError)]
    answered = [taken for outcome, taken, _ in once if isinstance(outcome, Answer)]
    assert {type(error) for error, _ in refused} == {QueueFull}
    assert {(error.status, error.retryable) for error, _ in refused} == {(503, True)}
    assert answered
    # Nobody is kept waiting for a refusal.
    assert statistics.median(taken for _, taken in refused) < max(answered)
    patient = each(PATIENT)
    assert [isinstance(outcome, Answer) for outcome, _, _ in patient] == [True] * 20
    assert sum(retries for _, _, retries in patient) > 0
