"""What a real worker makes of one batch: memory that is out, images it has answered before, reduced JPEGs.

The archive is CenterFace's at a small canvas, with a cache, drafts, and an engine that openly is a fake where memory is
concerned: it has none for more than two images, nor for one that is all of one colour.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from archive import properties
from archive.build import VERSION, Workspace
from archive.pack import ARTIFACTS, Recipe, pack
from archive.server import Server
from clients import Client
from clients.errors import ClientError
from clients.retry import Retry
from handler.config import FILE, Settings
from handler.geometry import Canvas
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT, Start
from tests.test_openapi import validator

HUGE = (10, 200, 30)
MEMBER = "handler/detectors/centerface.py"
#: Put at the end of that file, in the archive alone.
FAKE = f"""

_real_detect = CenterFace._detect


def _fake_detect(self, images):
    if len(images) > 2 or {HUGE} in {{tuple(map(int, image.array[0, 0])) for image in images}}:
        raise EngineError("ONNX Runtime failed: Failed to allocate memory for requested buffer of size 1 (a fake)")
    return _real_detect(self, images)


CenterFace._detect = _fake_detect
"""

Post = Callable[..., httpx.Response]


def portrait(number: int) -> bytes:
    """A face in a picture of a size of its own; a JPEG large enough for a draft."""
    data = io.BytesIO()
    with Image.open(HOPPER.path) as picture:
        face = picture.convert("RGB").crop((175, 131, 357, 336))
        face.resize((700 + 8 * number, 800), Image.Resampling.BICUBIC).save(data, "JPEG", quality=95)
    return data.getvalue()


def huge() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (160, 160), HUGE).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def greedy_mar(workspace: Workspace, centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("greedy")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    settings = dataclasses.replace(
        Settings.load(folder / FILE),
        canvases=(Canvas(160, 160),),
        long_side=160,
        engine_batch=8,
        cache_bytes=1_000_000,
        draft=True,
    )
    real, greedy = folder / "real.mar", workspace.store / "greedy.mar"
    pack(Recipe("greedy", VERSION, settings, {"centerface.onnx": folder / "graphs" / "centerface.onnx"}), real)
    with zipfile.ZipFile(real) as archive, zipfile.ZipFile(greedy, "w") as changed:
        content = {name: archive.read(name) for name in archive.namelist()}
        content[MEMBER] += FAKE.encode()
        listed = json.loads(content[ARTIFACTS])
        listed["files"][MEMBER] = hashlib.sha256(content[MEMBER]).hexdigest()
        content[ARTIFACTS] = json.dumps(listed).encode()
        for name, data in content.items():
            changed.writestr(name, data)
    return greedy


@pytest.fixture(scope="module")
def server(start: Start, greedy_mar: Path) -> Iterator[Server]:
    entry = properties.models(properties.read(ROOT / "config.properties"))["centerface"]
    server = start("greedy", changes={"models": json.dumps({"greedy": entry})})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ask(server: Server) -> Post:
    def send(*images: bytes, **options: Any) -> httpx.Response:
        texts = [base64.b64encode(image).decode() for image in images]
        body = {"images": texts, "score_threshold": 0.25} | options
        address = f"{server.inference}/predictions/greedy"
        return httpx.post(address, headers=server.headers(), json=body, timeout=120)

    return send


def results(response: httpx.Response) -> list[Any]:
    """Of a request of several images, as docs/openapi.yaml has them."""
    assert response.status_code == 200, response.text
    content = response.json()
    validator("Results").validate(content)
    listed: list[Any] = content["results"]
    return listed


def lines(server: Server, event: str) -> list[Any]:
    text = (server.folder / "logs" / "model_log.log").read_text(errors="replace")
    found = [line[line.index("{") :] for line in text.splitlines() if f'"event": "{event}"' in line]
    return [json.loads(line) for line in found]


@pytest.fixture(scope="module")
def first(ask: Post, server: Server) -> list[Any]:
    """Seven portraits and one image that memory never does for, in one request."""
    return results(ask(*map(portrait, range(3)), huge(), *map(portrait, range(3, 7))))


def test_a_batch_that_memory_does_not_do_for_runs_in_halves(first: list[Any], server: Server) -> None:
    failed = first[3]["error"]
    assert (failed["code"], failed["type"]) == (503, "out_of_memory")
    answers = first[:3] + first[4:]
    assert [len(answer["faces"]) for answer in answers] == [1] * 7
    assert [answer["image"]["width"] for answer in answers] == [700 + 8 * number for number in range(7)]
    # The same face in pictures of seven widths: its box grows with them.
    left, right = np.array([answer["faces"][0]["box"] for answer in answers])[:, [0, 2]].T
    share = (right - left) / [answer["image"]["width"] for answer in answers]
    assert share.std() / share.mean() < 0.05
    assert lines(server, "out_of_memory")[:4] == [{"event": "out_of_memory", "images": count} for count in (8, 4, 2, 1)]
    assert lines(server, "fault") == []


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_alone_it_is_told_by_its_own_error(server: Server, transport: str) -> None:
    port = server.values["grpc_inference_port"]
    address = server.inference if transport == "rest" else f"grpc://127.0.0.1:{port}"
    with (
        Client(address, "greedy", token=server.folder / "key_file.json", retry=Retry(attempts=1)) as client,
        pytest.raises(ClientError, match="memory was out over this image alone") as raised,
    ):
        client.detect(huge())
    assert (raised.value.type, raised.value.status) == ("out_of_memory", 503)


def test_the_second_time_answers_come_out_of_the_cache(first: list[Any], ask: Post, server: Server) -> None:
    images = [portrait(4), huge(), portrait(0), portrait(9), portrait(4)]
    listed = results(ask(*images))
    assert [each.get("cached") for each in listed] == [True, None, True, None, True]
    assert listed[1]["error"] == first[3]["error"]
    for answer, former in ((listed[0], first[5]), (listed[2], first[0]), (listed[4], first[5])):
        assert set(answer.pop("timing_ms").values()) == {0}
        assert answer.pop("cached")
        assert answer == {key: value for key, value in former.items() if key != "timing_ms"}
    shown = _scraped(server, "mogface_cache_lookups_total")
    assert shown["hit"] == 3
    # The huge one each time that it came, by whichever test.
    assert shown["miss"] >= 7 + 1 + 2


def test_a_request_of_one_comes_out_of_it_too(first: list[Any], ask: Post, server: Server) -> None:
    given = {"X-Face-Score-Threshold": "0.25"} | server.headers()
    answer = httpx.post(
        f"{server.inference}/predictions/greedy", headers=given, content=portrait(1), timeout=120
    ).json()
    validator("Answer").validate(answer)
    assert answer["cached"]
    assert answer["faces"] == first[1]["faces"]
    # Under another option it is another answer.
    other = httpx.post(f"{server.inference}/predictions/greedy", headers=server.headers(), content=portrait(1)).json()
    assert "cached" not in other


def test_drafts_lie_where_the_full_picture_has_the_face(first: list[Any], ask: Post) -> None:
    """With crops the full picture is decoded: the same face, a quarter of a canvas pixel apart at most."""
    [full] = results(ask(portrait(2), crops=True))
    assert full["image"] == first[2]["image"]
    apart = np.abs(np.subtract(full["faces"][0]["box"], first[2]["faces"][0]["box"])).max()
    assert 0 < apart * full["scale"] < 0.25


def _scraped(server: Server, name: str) -> dict[str, float]:
    """Values by their last label; a worker hands them over once a second."""
    time.sleep(2.5)
    text = httpx.get(f"{server.values['metrics_address']}/metrics", timeout=30).text
    found = {}
    for line in text.splitlines():
        if line.startswith(name + "{"):
            labels, _, value = line.rpartition(" ")
            found[labels.split('result="')[1].split('"')[0]] = float(value)
    return found
