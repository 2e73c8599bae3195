"""The model repository under the real Triton, asked by its own client over HTTP and gRPC."""

from __future__ import annotations

import json
import re
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from archive import triton
from archive.verify import PHOTOGRAPH
from handler.config import FILE, Settings
from handler.errors import EnvironmentFault
from handler.pipeline import Pipeline
from handler.request import Request
from load_tests.triton import ENVIRONMENT, Triton, require
from tests.photographs import HOPPER
from tests.requirements import lacking

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "triton.md"
CALLER = Path(__file__).with_name("triton_caller.py")
Ask = Callable[..., list[dict[str, Any]]]
PROTOCOLS = ("http", "grpc")


@pytest.fixture(scope="module")
def server(centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    try:
        require()
    except EnvironmentFault as error:
        lacking("triton", error.message)
    folder = tmp_path_factory.mktemp("triton")
    triton.write(centerface_mar, folder / "models", triton.Plan())
    with (folder / "console.log").open("wb") as console, Triton(folder / "models", console) as running:
        running.wait()
        yield running


@pytest.fixture(scope="module")
def ask(server: Triton, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Requests all at once -> their answers."""
    file = tmp_path_factory.mktemp("requests") / "requests.json"

    def call(*requests: dict[str, Any]) -> list[dict[str, Any]]:
        file.write_text(json.dumps(requests))
        ports = [str(server.ports[name]) for name in PROTOCOLS]
        command = [str(ENVIRONMENT / "bin" / "python"), str(CALLER), *ports, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout)
        assert len(answers) == len(requests)
        return list(answers)

    return call


@pytest.fixture(scope="module")
def pipeline(centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The same archive in this process."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    return Pipeline.load(folder, Settings.load(folder / FILE), "centerface", "1.0", torch.device("cpu"))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "text.jpg"
    path.write_bytes(b"no picture")
    return path


def _faces(body: str | bytes) -> bytes:
    """What does not depend on the moment, as bytes."""
    answer = json.loads(body)
    del answer["timing_ms"], answer["batch_size"]
    assert answer["faces"]
    return json.dumps(answer).encode()


def _request(over: str, *images: Path, **parameters: object) -> dict[str, Any]:
    return {"over": over, "model": "centerface", "images": list(map(str, images)), "parameters": parameters}


@pytest.mark.parametrize("over", PROTOCOLS)
@pytest.mark.parametrize("photograph", [PHOTOGRAPH, HOPPER.path], ids=["astronaut", "hopper"])
def test_faces_are_the_pipelines_byte_for_byte(ask: Ask, pipeline: Pipeline, over: str, photograph: Path) -> None:
    [expected] = pipeline.answer([Request({"image": photograph.read_bytes()}, {})])
    [answer] = ask(_request(over, photograph))
    assert _faces(answer["faces"][0]) == _faces(expected.body)
    assert (answer["status"], answer["count"]) == ([[200]], [[1]])
    [face] = json.loads(expected.body)["faces"]
    assert answer["boxes"] == [[pytest.approx(face["box"], abs=1e-4)]]
    assert answer["scores"] == [[pytest.approx(face["score"], abs=1e-6)]]
    assert answer["landmarks"] == [[[pytest.approx(point, abs=1e-4) for point in face["landmarks"].values()]]]


@pytest.mark.parametrize("over", PROTOCOLS)
def test_options_are_parameters(ask: Ask, over: str) -> None:
    none, without, unknown, image, picture = ask(
        _request(over, PHOTOGRAPH, score_threshold="0.99"),
        _request(over, PHOTOGRAPH, landmarks=False, max_faces=1),
        _request(over, PHOTOGRAPH, colour="red"),
        _request(over, PHOTOGRAPH, image2="AAAA"),
        _request(over, PHOTOGRAPH, output="image"),
    )
    assert (none["count"], none["boxes"]) == ([[0]], [[]])
    assert json.loads(without["faces"][0])["faces"][0]["landmarks"] is None
    assert without["landmarks"] == [[[[-1e9, -1e9]] * 5]]
    # A parameter that were taken as a further image would leave the row without faces.
    for wrong in (unknown, image):
        assert json.loads(wrong["error"])["error"]["type"] == "invalid_option"
    assert "output is 'json' here" in json.loads(picture["error"])["error"]["message"]


def test_requests_run_together_and_a_bad_image_fails_alone(ask: Ask, server: Triton, bad: Path) -> None:
    before = server.statistics("centerface")
    requests = [_request(PROTOCOLS[number % 2], bad if number % 6 == 5 else PHOTOGRAPH) for number in range(24)]
    answers = ask(*requests)
    after = server.statistics("centerface")
    for request, answer in zip(requests, answers, strict=True):
        if request["images"] == [str(bad)]:
            error = json.loads(answer["error"])["error"]
            assert (error["code"], error["type"]) == (400, "invalid_image")
            assert answer["status"] == ("400" if request["over"] == "http" else "StatusCode.INVALID_ARGUMENT")
        else:
            assert answer["count"] == [[1]]
    images, runs = (after[name] - before[name] for name in ("count", "exec_count"))
    # Triton does not count requests that failed.
    assert 20 <= images <= 24
    assert runs < images
    together = {json.loads(answer["faces"][0])["batch_size"] for answer in answers if "faces" in answer}
    assert max(together) > 1


@pytest.mark.parametrize("over", PROTOCOLS)
def test_of_several_images_each_row_says_how_it_ended(ask: Ask, bad: Path, over: str) -> None:
    [answer] = ask(_request(over, PHOTOGRAPH, bad, HOPPER.path))
    assert (answer["status"], answer["count"]) == ([[200], [400], [200]], [[1], [0], [1]])
    assert json.loads(answer["faces"][1])["error"]["type"] == "invalid_image"
    assert np.array(answer["boxes"]).shape == (3, 1, 4)
    assert np.array(answer["boxes"])[1].tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("over", PROTOCOLS)
def test_a_tensor_finds_what_the_photograph_has(ask: Ask, pipeline: Pipeline, tmp_path: Path, over: str) -> None:
    page = Image.new("RGB", (640, 640))
    with Image.open(PHOTOGRAPH) as file:
        page.paste(file, (100, 50))
    page.save(tmp_path / "page.png")
    # A tenth more or less is rounded away.
    pixels = np.asarray(page, np.float32).transpose(2, 0, 1) + np.float32(0.1)
    pixels = np.minimum(pixels, 255)
    np.save(tmp_path / "pixels.npy", pixels)
    tensor = {"over": over, "model": "centerface_tensor", "pixels": 0, "image": str(tmp_path / "pixels.npy")}
    [answer] = ask(tensor)
    [expected] = pipeline.answer([Request({"image": (tmp_path / "page.png").read_bytes()}, {})])
    told, same = json.loads(answer["faces"][0]), json.loads(expected.body)
    assert told["faces"] == same["faces"]
    assert answer["count"] == [[1]]
    assert told["model"] == {**same["model"], "name": "centerface_tensor"}


def test_the_handlers_metrics_are_beside_tritons(ask: Ask, server: Triton, bad: Path) -> None:
    def counted() -> dict[str, float]:
        text = httpx.get(f"http://127.0.0.1:{server.ports['metrics']}/metrics").text
        found = re.findall(r"^mogface_requests_total{(.*)} (\d+)$", text, re.MULTILINE)
        rows = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]
        return {row["outcome"]: value for row, value in rows if row["model"] == "centerface"}

    # What came before may be on its way: counts are handed over once a second.
    time.sleep(2)
    before = counted()
    ask(*[_request("http", PHOTOGRAPH)] * 3, _request("http", bad), _request("http", PHOTOGRAPH, bad))
    deadline = time.monotonic() + 30
    while sum(counted().values()) < sum(before.values()) + 6 and time.monotonic() < deadline:
        time.sleep(0.2)
    after = counted()
    assert {outcome: after[outcome] - before[outcome] for outcome in ("ok", "invalid_image")} == {
        "ok": 4, "invalid_image": 2,
    }  # fmt: skip


def test_the_guides_program(server: Triton, tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert "127.0.0.1:8000" in program
    (tmp_path / "program.py").write_text(program.replace("127.0.0.1:8000", server.address.removeprefix("http://")))
    command = [str(ENVIRONMENT / "bin" / "python"), str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[\[\[181\.\d+ +58\.\d+ +269\.\d+ 178\.\d+ *\]\]\] 640x640\n", done.stdout)


def test_nothing_but_loopback_listens(server: Triton) -> None:
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    listening = {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for process in family
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert listening == {("127.0.0.1", port) for port in server.ports.values()}


def test_a_tensor_that_was_normalised_is_refused(ask: Ask) -> None:
    tensors = [
        {"over": "http", "model": "centerface_tensor", "pixels": number} for number in (0.5, -1, 256, 1e30, 0, 7)
    ]
    *wrong, black, dark = ask(*tensors)
    for answer in wrong:
        error = json.loads(answer["error"])["error"]
        assert error["type"] == "invalid_image"
        assert "expected RGB of 0..255" in error["message"]
    assert black["count"] == dark["count"] == [[0]]
