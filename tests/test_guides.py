"""The commands and programs of docs/calling.md and docs/operating.md, run as they stand; only ports are others."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from archive.server import Server
from archive.verify import PHOTOGRAPH
from tests.serving.conftest import ROOT, Start, centerface_mar, start, workspace

__all__ = ["centerface_mar", "start", "workspace"]

DOCS = ROOT / "docs"
TEXTS = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("calling.md", "operating.md")}
BLOCKS = [
    (name, language, block)
    for name, text in TEXTS.items()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
]
Run = Callable[[str], str]


@pytest.fixture(scope="module")
def own(start: Start, centerface_mar: Path) -> Server:
    """A server with two photographs beside its keys: these commands scale it and end its tokens."""
    server = start("centerface")
    (server.folder / "photos").mkdir()
    for name in ("photo.jpg", "photos/a.jpg", "photos/b.jpg"):
        shutil.copy(PHOTOGRAPH, server.folder / name)
    shutil.copy(DOCS / "openapi.yaml", server.folder)
    return server


def ported(block: str, server: Server) -> str:
    for port, key in {"8080": "inference_address", "8081": "management_address", "8082": "metrics_address"}.items():
        block = block.replace(f"127.0.0.1:{port}", server.values[key].removeprefix("http://"))
    return block.replace("127.0.0.1:7070", f"127.0.0.1:{server.values['grpc_inference_port']}")


def environment(server: Server) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOGFACE_")}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MOGFACE_ADDRESS": server.inference,
        "MOGFACE_MANAGEMENT": server.management,
        "MOGFACE_METRICS": server.values["metrics_address"],
    }


@pytest.fixture
def run(own: Server) -> Run:
    """Run the one block that has these words."""

    def run(words: str) -> str:
        [(_, language, block)] = [each for each in BLOCKS if words in each[2]]
        shell = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[language]
        done = subprocess.run(
            [*shell, ported(block, own)],
            cwd=own.folder,
            env=environment(own),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def answers(text: str) -> list[dict[str, object]]:
    """JSON values that stand one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_every_block_is_run_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    words = [*re.findall(r'\brun\("([^"]+)"\)', here), "scale --auto"]
    for name, language, block in BLOCKS:
        assert language in ("sh", "python"), name
        assert len([each for each in words if each in block]) == 1, (name, block)
    assert len(BLOCKS) == len(words) == 13


def test_curl_one_image(run: Run) -> None:
    first, second = answers(run("X-Face-Max-Faces: 5"))
    assert len(first["faces"]) == len(second["faces"]) == 1  # type: ignore[arg-type]


def test_curl_several_images(run: Run) -> None:
    form, listed = answers(run("-F image1="))
    assert [len(each["faces"]) for each in form["results"]] == [1, 1]  # type: ignore[attr-defined]
    assert [len(each["faces"]) for each in listed["results"]] == [1]  # type: ignore[attr-defined]


def test_curl_a_picture(run: Run, own: Server) -> None:
    run("X-Face-Output: image")
    with Image.open(own.folder / "faces.jpg") as picture:
        assert (picture.format, picture.size) == ("JPEG", (512, 512))


def test_the_command_and_its_lines_by_the_contract(run: Run, own: Server) -> None:
    head, row, line = run("mogface detect photos").splitlines()
    assert head.split() == ["faces", "best", "size", "ms", "path"]
    assert row.split()[-1] == "photo.jpg"
    assert json.loads(line)["path"] == "-"
    lines = [json.loads(line) for line in (own.folder / "faces.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == ["photos/a.jpg", "photos/b.jpg"]
    for name in ("annotated/a.jpg", "annotated/b.jpg", "crops/a.jpg/0000.jpg", "crops/b.jpg/0000.jpg"):
        assert (own.folder / name).is_file(), name
    run("Draft202012Validator")


def test_python(run: Run) -> None:
    first, face, *rest = run("detect_each(paths)").splitlines()
    assert first == "512 512 (1, 4) (1, 5, 2)"
    assert face.startswith("0.92")
    assert rest == ["photos/a.jpg 1", "photos/b.jpg 1"]


def test_python_with_asyncio(run: Run) -> None:
    assert run("asyncio.gather") == "[1, 1, 1]\n"


def test_python_by_plain_grpc(run: Run) -> None:
    assert "'score': 0.92" in run("InferenceAPIsServiceStub")


def test_health(run: Run) -> None:
    deep, shallow, head, row = run("mogface health --shallow").splitlines()
    assert deep.startswith("ready: centerface: 1 of 1 workers ready, a detection took ")
    assert shallow == "ready: centerface: 1 of 1 workers ready"
    assert head.split()[:3] == ["model", "version", "workers"]
    assert row.split()[:3] == ["centerface", "1.0", "1"]


def test_workers(run: Run, own: Server) -> None:
    assert run("--workers 2 --wait").splitlines() == ["centerface: 2 workers", "centerface: 1 worker"]
    [version] = own.describe("centerface")
    assert len(version["workers"]) == 1


def test_workers_by_the_load(own: Server) -> None:
    [block] = [block for _, _, block in BLOCKS if "scale --auto" in block]
    process = subprocess.Popen(
        ["bash", "-c", f"exec {block}"],
        cwd=own.folder,
        env=environment(own),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    time.sleep(4)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, b"")


def test_tokens(run: Run, own: Server) -> None:
    before = json.loads((own.folder / "key_file.json").read_text())
    run("token?type=inference")
    after = json.loads((own.folder / "key_file.json").read_text())
    assert all(before[api]["key"] != after[api]["key"] for api in ("inference", "management"))
    assert before["API"] == after["API"]


def test_logs(run: Run) -> None:
    [line] = run("x-request-id").splitlines()
    assert '"status": 200, "images": 1, "faces": 1' in line


def test_links_lead_somewhere() -> None:
    links = [(name, link) for name, text in TEXTS.items() for link in re.findall(r"\]\(([^)#]+)", text)]
    assert len(links) >= 4
    for name, link in links:
        assert (DOCS / link).exists(), (name, link)


def test_every_exit_code_and_error_is_named() -> None:
    from clients import errors

    def leaves(kind: type[errors.ClientError]) -> set[str]:
        below = kind.__subclasses__()
        return set().union(*map(leaves, below)) if below else {kind.__name__}

    named = set(re.findall(r"`(\w+)`", TEXTS["calling.md"]))
    assert leaves(errors.ClientError) - {"UsageError"} <= named
