"""One photograph through every door: the same faces, as bytes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import grpc
import httpx
import pytest
import torch

from archive import triton
from archive.server import Server
from clients import Client
from clients.proto import inference_pb2, inference_pb2_grpc
from handler.config import FILE, Settings
from handler.errors import EnvironmentFault
from handler.pipeline import Pipeline
from handler.request import Request
from load_tests.triton import ENVIRONMENT, Triton, require
from tests.bulk.conftest import environment
from tests.checkout import ROOT
from tests.photographs import ASTRONAUT, HOPPER
from tests.requirements import lacking

CALLER = Path(__file__).with_name("triton_caller.py")


def faces(body: bytes) -> bytes:
    """The field as it stands in an answer's bytes."""
    found: list[bytes] = re.findall(rb'"faces":(\[.*\]),"timing_ms"', body)
    [field] = found
    assert b'"score"' in field
    return field


def told(body: bytes) -> bytes:
    """The field as the server writes JSON, out of a line that another has written."""
    return json.dumps(json.loads(body)["answer"]["faces"], separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photographs")
    return [Path(shutil.copy(each.path, folder)) for each in (ASTRONAUT, HOPPER)]


@pytest.fixture(scope="module")
def expected(photographs: list[Path], centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """In this process."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(centerface_mar) as archive:
        archive.extractall(folder)
    pipeline = Pipeline.load(folder, Settings.load(folder / FILE), "centerface", "1.0", torch.device("cpu"))
    answers = [pipeline.answer([Request({"image": path.read_bytes()}, {})])[0] for path in photographs]
    return [faces(answer.body) for answer in answers]


def test_rest(server: Server, photographs: list[Path], expected: list[bytes]) -> None:
    address = f"{server.inference}/predictions/centerface"
    answers = [
        httpx.post(address, headers=server.headers(), content=path.read_bytes(), timeout=120) for path in photographs
    ]
    assert [faces(answer.content) for answer in answers] == expected


def test_grpc(server: Server, photographs: list[Path], expected: list[bytes]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.values['grpc_inference_port']}") as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
        found = []
        for path in photographs:
            message = inference_pb2.PredictionsRequest(model_name="centerface", input={"image": path.read_bytes()})
            metadata = [(name.lower(), value) for name, value in server.headers().items()]
            found.append(faces(stub.Predictions(message, metadata=metadata, timeout=120).prediction))
    assert found == expected


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_the_client(server: Server, photographs: list[Path], expected: list[bytes], over: str) -> None:
    address = {"http": server.inference, "grpc": f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"}[over]
    with Client(address, token=server.folder / "key_file.json", management=server.management) as client:
        answers = [client.detect(path) for path in photographs]
    lines = [json.dumps({"answer": answer.to_json()}).encode() for answer in answers]
    assert [told(line) for line in lines] == expected


def test_bulk(photographs: list[Path], expected: list[bytes], centerface_mar: Path, tmp_path: Path) -> None:
    given = [str(photographs[0].parent), str(tmp_path / "out"), "--format", "jsonl", "--archive", str(centerface_mar)]
    done = subprocess.run(
        [sys.executable, "-m", "bulk.cli", *given],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for file in sorted((tmp_path / "out" / "faces").iterdir()) for line in file.read_bytes().splitlines()]
    by_name = {Path(json.loads(line)["path"]).name: told(line) for line in lines}
    assert [by_name[path.name] for path in photographs] == expected


def test_triton(photographs: list[Path], expected: list[bytes], centerface_mar: Path, tmp_path: Path) -> None:
    try:
        require()
    except EnvironmentFault as error:
        lacking("triton", error.message)
    triton.write(centerface_mar, tmp_path / "models", triton.Plan())
    requests = [
        {"over": over, "model": "centerface", "images": [str(path)]}
        for over in ("http", "grpc")
        for path in photographs
    ]
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    with (tmp_path / "console.log").open("wb") as console, Triton(tmp_path / "models", console) as running:
        running.wait()
        ports = [str(running.ports[over]) for over in ("http", "grpc")]
        done = subprocess.run(
            [str(ENVIRONMENT / "bin" / "python"), str(CALLER), *ports, str(tmp_path / "requests.json")],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    found = [faces(answer["faces"][0].encode()) for answer in json.loads(done.stdout)]
    assert found == expected * 2
