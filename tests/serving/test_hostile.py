"""A real TorchServe under thousands of hostile requests, photographs among them: each gets its own documented answer.

The archive's limits are small here, so that the memory they bound is soon reached.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import socket
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from PIL import Image

from archive import properties
from archive.build import VERSION, Workspace
from archive.pack import Recipe, pack
from archive.server import Server
from clients.proto.inference_pb2 import PredictionResponse, PredictionsRequest
from handler.config import FILE, Limits, Settings
from handler.geometry import Canvas
from handler.image import COSTLIEST
from tests.hostile import corpus
from tests.hostile.corpus import Hostile
from tests.hostile.forms import Form, forms
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT, Start, worker_pids
from tests.support import saved

LIMITS = Limits(bytes=2_000_000, pixels=8_000_000, images=32, request_pixels=24_000_000, response_bytes=2_000_000)
#: Of the front end.
BODY = 8_000_000
BATCH = 8
SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"


@pytest.fixture(scope="module")
def small(
    start: Start, workspace: Workspace, centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One worker on CenterFace at a small canvas; JSON reaches the handler as it came."""
    folder = tmp_path_factory.mktemp("hostile")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    settings = dataclasses.replace(
        Settings.load(folder / FILE), canvases=(Canvas(160, 160),), long_side=160, decode_threads=4, limits=LIMITS
    )
    graphs = {"centerface.onnx": folder / "graphs" / "centerface.onnx"}
    pack(Recipe("hostile", VERSION, settings, graphs), workspace.store / "hostile.mar")
    entry = properties.models(properties.read(ROOT / "config.properties"))["centerface"]
    entry[VERSION] |= {"batchSize": BATCH, "maxBatchDelay": 20}
    changes = {
        "models": json.dumps({"hostile": entry}),
        "max_request_size": str(BODY),
        "max_response_size": str(BODY),
        "decode_input_request": "false",
    }
    server = start("hostile", changes=changes)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(small: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small.inference, headers=small.headers(), timeout=120) as opened:
        yield opened


Post = Callable[..., httpx.Response]


@pytest.fixture
def post(client: httpx.Client) -> Post:
    return lambda **body: client.post("/predictions/hostile", **body)


@pytest.fixture(autouse=True)
def _the_worker_lives(small: Server) -> Iterator[None]:
    before = worker_pids(small, "hostile")
    assert len(before) == 1
    yield
    assert worker_pids(small, "hostile") == before


@dataclasses.dataclass(frozen=True)
class Good:
    """A photograph that no other equals, and its faces as it is answered alone."""

    data: bytes
    size: tuple[int, int]
    faces: list[dict[str, Any]]


@pytest.fixture(scope="module")
def good(client: httpx.Client) -> list[Good]:
    made = []
    for number in range(12):
        size = (96 + number, 120 + number)
        with Image.open(HOPPER.path) as file:
            data = saved(file.crop((175, 131, 357, 336)).resize(size), "JPEG")
        answer = client.post("/predictions/hostile", content=data).json()
        assert answer["image"] == {"width": size[0], "height": size[1]}
        assert len(answer["faces"]) == 1
        made.append(Good(data, size, answer["faces"]))
    return made


def told(result: dict[str, Any]) -> tuple[int, tuple[int, int] | None]:
    """Status and size of one image's result."""
    if "error" in result:
        return result["error"]["code"], None
    return 200, (result["image"]["width"], result["image"]["height"])


def groups(images: Sequence[Hostile], size: int) -> Iterator[list[Hostile]]:
    """So that they fit into one request."""
    group: list[Hostile] = []
    bytes_ = pixels = 0
    for each in images:
        claimed = corpus.claimed(each.data)
        claimed = claimed if claimed <= LIMITS.pixels else 0
        full = bytes_ + len(each.data) > BODY // 2 or pixels + claimed > LIMITS.request_pixels - 1_000_000
        if group and (len(group) == size or full):
            yield group
            group, bytes_, pixels = [], 0, 0
        group.append(each)
        bytes_ += len(each.data)
        pixels += claimed
    yield group


@pytest.mark.filterwarnings(r"ignore:::PIL\.")
def test_every_image_of_the_corpus_is_answered_as_documented(small: Server, post: Post, good: list[Good]) -> None:
    images = corpus.images(LIMITS)
    assert len(images) >= 3_000
    assert Counter(each.status for each in images)[200] > 500
    alone = [[each] for each in images[::9]]
    together = list(groups([each for number, each in enumerate(images) if number % 9], 12))
    peak = Peak(small)

    def send(job: tuple[int, list[Hostile]]) -> list[str]:
        number, group = job
        photograph = good[number % len(good)]
        if len(group) == 1:
            answer = post(content=group[0].data)
            results = [answer.json()]
            wrong = [] if answer.status_code == told(results[0])[0] else [f"status {answer.status_code}"]
            [again] = [post(content=photograph.data).json()] if number % 4 == 0 else [None]
        else:
            # The photograph comes in the midst of them.
            parts = [each.data for each in group]
            middle = len(parts) // 2
            parts.insert(middle, photograph.data)
            answer = post(files={f"image{index}": part for index, part in enumerate(parts)})
            results = answer.json()["results"] if answer.status_code == 200 else [{}] * 0
            wrong = [] if len(results) == len(parts) else [f"{answer.text[:200]} for {group[0].name} ..."]
            again = results.pop(middle) if results else None
        for each, result in zip(group, results, strict=False):
            if told(result) != (each.status, each.size):
                wrong.append(f"{each.name}: expected {each.status} {each.size}, got {json.dumps(result)[:200]}")
        if again is not None and again["faces"] != photograph.faces:
            wrong.append(f"a photograph beside {group[0].name}: {again}")
        return wrong

    with ThreadPoolExecutor(16) as pool:
        wrong = [line for lines in pool.map(send, enumerate(alone + together)) for line in lines]
    assert wrong == []
    peak.require_within_the_formula()


def test_every_form_is_answered_as_documented(small: Server, post: Post, good: list[Good]) -> None:
    cases = list(forms(LIMITS))
    assert len({each.name for each in cases}) == len(cases) > 150
    peak = Peak(small)

    def send(case: Form) -> list[str]:
        answer = post(**case.body, headers=dict(case.headers))
        error = answer.json().get("error", {}) if answer.content else {}
        found = (answer.status_code, error.get("type") if case.type else None)
        wrong = [] if found == (case.status, case.type) else [f"{case.name}: {found} {answer.text[:200]}"]
        if len(answer.content) > 2_000 and answer.status_code != 200:
            wrong.append(f"{case.name}: an error of {len(answer.content)} bytes")
        photograph = good[len(case.name) % len(good)]
        if post(content=photograph.data).json()["faces"] != photograph.faces:
            wrong.append(f"a photograph after {case.name}")
        return wrong

    with ThreadPoolExecutor(8) as pool:
        wrong = [line for lines in pool.map(send, cases) for line in lines]
    assert wrong == []
    peak.require_within_the_formula()


class Peak:
    """The worker's largest memory from here on, as Linux counts it."""

    def __init__(self, server: Server) -> None:
        [pid] = worker_pids(server, "hostile")
        self._folder = Path("/proc") / str(pid)
        if sys.platform == "linux":
            (self._folder / "clear_refs").write_text("5")

    @property
    def bytes(self) -> int:
        status = (self._folder / "status").read_text().splitlines()
        [line] = [line for line in status if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def require_within_the_formula(self) -> None:
        """That of handler.config.Limits; 400 MB are CenterFace's worker after load, as README.md has it."""
        if sys.platform != "linux":
            return
        formula = {
            "loaded": 400_000_000,
            "decoding": COSTLIEST * LIMITS.pixels,
            "pictures": 3 * LIMITS.request_pixels,
            "canvases": 1_200_000 * LIMITS.images,
            "bodies and answers": BATCH * 2 * (BODY + LIMITS.response_bytes),
        }
        assert self.bytes < sum(formula.values()), f"{self.bytes:,} of {formula}"


def test_memory_stays_within_the_formula_under_the_costliest_requests(
    small: Server, post: Post, good: list[Good]
) -> None:
    """Batches whose pictures all stay for crops would take 1.8 GB at once: 8 requests of 24 megapixels of WebP."""
    large = saved(Image.new("RGBA", (2_800, 2_800), (10, 200, 30, 128)), "WEBP", lossless=True, quality=0, method=0)
    text = base64.b64encode(large).decode()
    peak = Peak(small)

    def send(number: int) -> int:
        if number % 4 == 3:
            photograph = good[number % len(good)]
            assert post(content=photograph.data).json()["faces"] == photograph.faces
            return 0
        answer = post(json={"images": [text] * 3, "crops": True})
        assert answer.status_code == 200, answer.text[:300]
        sizes = [told(result) for result in answer.json()["results"]]
        assert sizes == [(200, (2_800, 2_800))] * 3
        return 1

    with ThreadPoolExecutor(24) as pool:
        assert sum(pool.map(send, range(32))) == 24
    refused = post(json={"images": [text] * 4})
    assert refused.status_code == 413
    assert "31,360,000 pixels: at most 24,000,000 a request" in refused.json()["error"]["message"]
    peak.require_within_the_formula()


def test_streams_of_grpc_end_after_one_answer_whatever_they_share_their_batch_with(
    small: Server, post: Post, good: list[Good]
) -> None:
    """TorchServe ends the worker over a StreamPredictions call whose answer does not say that it is the last.

    StreamPredictions2 is not called: its answers to streams that have ended stop the model for good, whatever the
    handler says, which docs/operating.md tells.
    """
    metadata = [("authorization", f"Bearer {small.key()}")]
    kinds = {"request_serializer": PredictionsRequest.SerializeToString}
    kinds["response_deserializer"] = PredictionResponse.FromString
    with grpc.insecure_channel(f"127.0.0.1:{small.values['grpc_inference_port']}") as channel:
        unary = channel.unary_unary(f"{SERVICE}/Predictions", **kinds)
        stream = channel.unary_stream(f"{SERVICE}/StreamPredictions", **kinds)

        def request(**fields: bytes) -> Any:
            return PredictionsRequest(model_name="hostile", input=fields)

        def ask(number: int) -> None:
            photograph = good[number % len(good)]
            match number % 4:
                case 0:
                    answers = [post(content=photograph.data).content]
                case 1:
                    answers = [unary(request(image=photograph.data), timeout=60, metadata=metadata).prediction]
                case 2:
                    given = request(image=photograph.data)
                    answers = [each.prediction for each in stream(given, timeout=60, metadata=metadata)]
                case _:
                    # An empty entry, one called as a header is, no entry at all.
                    for fields in ({"body": b""}, {"Content-Length": b"5"}, {}):
                        [refused] = stream(request(**fields), timeout=60, metadata=metadata)
                        assert json.loads(refused.prediction)["error"]["code"] == 400
                    return
            [answer] = answers
            assert json.loads(answer)["faces"] == photograph.faces

        with ThreadPoolExecutor(24) as pool:
            list(pool.map(ask, range(200)))


RAW: dict[str, tuple[bytes, bytes]] = {
    "HTTP/1.0 without headers": (b"POST /predictions/hostile HTTP/1.0\r\n%TOKEN\r\n\r\n", b"400"),
    "HTTP/1.1 without a host": (b"GET /predictions/hostile HTTP/1.1\r\n%TOKEN\r\n\r\n", b"400"),
    "chunked": (
        b"POST /predictions/hostile HTTP/1.1\r\n%TOKEN\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"400",
    ),
    "a chunk without a size": (
        b"POST /predictions/hostile HTTP/1.1\r\n%TOKEN\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"400",
    ),
    "two lengths": (
        b"POST /predictions/hostile HTTP/1.1\r\n%TOKEN\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"400",
    ),
    "an address of 10 kB": (b"POST /predictions/hostile" + b"/x" * 5_000 + b" HTTP/1.1\r\n%TOKEN\r\n\r\n", b"400"),
    "bytes beyond ASCII in an option": (
        b"POST /predictions/hostile HTTP/1.1\r\n%TOKEN\r\nX-Face-Order: \xff\xfe\r\nContent-Length: 5\r\n\r\nhello",
        b"400",
    ),
    "another method": (b"DELETE /predictions/hostile HTTP/1.1\r\n%TOKEN\r\n\r\n", b"400"),
}


@pytest.mark.parametrize("kind", RAW)
def test_http_that_no_library_writes_is_answered(small: Server, post: Post, good: list[Good], kind: str) -> None:
    sent, status = RAW[kind]
    token = f"Authorization: Bearer {small.key()}".encode()
    with socket.create_connection(("127.0.0.1", int(small.inference.rsplit(":", 1)[1])), timeout=10) as connection:
        connection.sendall(sent.replace(b"%TOKEN", token))
        assert connection.recv(1000).startswith(b"HTTP/1.1 " + status)
    assert post(content=good[0].data).json()["faces"] == good[0].faces


def test_a_caller_that_hangs_up_harms_nobody(small: Server, post: Post, good: list[Good]) -> None:
    token = f"Authorization: Bearer {small.key()}".encode()
    head = b"POST /predictions/hostile HTTP/1.1\r\n" + token + b"\r\nContent-Length: %d\r\n\r\n" % len(good[0].data)
    for end in (len(good[0].data) // 2, len(good[0].data)):
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", int(small.inference.rsplit(":", 1)[1])), timeout=60) as opened:
                opened.sendall(head + good[0].data[:end])
    time.sleep(0.1)
    for photograph in good:
        assert post(content=photograph.data).json()["faces"] == photograph.faces
