"""``mogface watch`` on real videos, against a real TorchServe."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from archive.server import Server
from clients import Answer, AsyncClient
from clients.watch.follow import Seen, Sending, follow
from clients.watch.reader import Reading
from clients.watch.sources import sources
from clients.watch.tally import Tally
from tests.films import SIZE, Film, film, turned
from tests.photographs import iou
from tests.serving.conftest import ROOT

COMMAND = [sys.executable, "-m", "clients.cli", "watch"]


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Film:
    return film(tmp_path_factory.mktemp("films") / "door.mp4", count=20)


def by_grpc(server: Server) -> str:
    return f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"


def begin(server: Server, *arguments: str | Path, folder: Path) -> subprocess.Popen[str]:
    token = ["--token-file", str(server.folder / "key_file.json")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOGFACE_")}
    return subprocess.Popen(
        [*COMMAND, *token, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT), "MOGFACE_ADDRESS": by_grpc(server), "MOGFACE_MODEL": "centerface"},
    )


def watch(server: Server, *arguments: str | Path, folder: Path) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, lines and the error stream of a run."""
    process = begin(server, *arguments, folder=folder)
    out, errors = process.communicate(timeout=120)
    return process.returncode, [json.loads(line) for line in out.splitlines()], errors


def found(lines: list[dict[str, Any]], made: Film) -> int:
    """On how many of the frames the one face is where it is, and nothing else."""
    boxes = [(made.boxes[line["frame"]], [face["box"] for face in line["answer"]["faces"]]) for line in lines]
    return sum(len(faces) == 1 and iou(faces[0], box) > 0.5 for box, faces in boxes)


@pytest.mark.parametrize(("codec", "suffix"), [("mpeg4", "avi"), ("libvpx-vp9", "webm"), ("mjpeg", "mkv")])
def test_the_face_on_every_frame_of_a_file(server: Server, tmp_path: Path, codec: str, suffix: str) -> None:
    made = film(tmp_path / f"film.{suffix}", codec=codec, count=12)
    code, lines, errors = watch(server, made.path, folder=tmp_path)
    assert (code, [line["frame"] for line in lines]) == (0, list(range(12))), errors
    assert [line["seconds"] for line in lines] == pytest.approx(made.times, abs=2e-3)
    assert found(lines, made) >= 11
    assert "12 detected, 0 dropped" in errors


@pytest.mark.parametrize("degrees", [90, 270])
def test_a_phones_video(server: Server, moving: Film, tmp_path: Path, degrees: int) -> None:
    made = turned(moving, tmp_path / "phone.mp4", degrees)
    code, lines, _ = watch(server, made.path, "--every", "4", folder=tmp_path)
    assert (code, len(lines)) == (0, 5)
    assert {(line["answer"]["image"]["width"], line["answer"]["image"]["height"]) for line in lines} == {SIZE[::-1]}
    assert found(lines, made) >= 4


def test_all_that_is_written(server: Server, moving: Film, tmp_path: Path) -> None:
    written = ["--output", "faces.jsonl", "--video", "videos", "--crops", "crops"]
    code, lines, errors = watch(server, moving.path, moving.path, *written, "--fps", "5", folder=tmp_path)
    assert (code, lines) == (0, []), errors
    told = [json.loads(line) for line in (tmp_path / "faces.jsonl").read_text().splitlines()]
    frames = [0, 5, 10, 15]
    for name in {line["source"] for line in told}:
        assert [line["frame"] for line in told if line["source"] == name] == frames
    assert len(told) == 8
    assert all("crop" not in face for line in told for face in line["answer"]["faces"])
    faces = sum(len(line["answer"]["faces"]) for line in told)
    crops = list((tmp_path / "crops").rglob("*.jpg"))
    assert len(crops) == faces >= 7
    with Image.open(crops[0]) as crop:
        assert crop.size == (112, 112)
    videos = sorted((tmp_path / "videos").iterdir())
    assert len(videos) == 2
    for path in videos:
        with av.open(str(path)) as container:
            times = [frame.time for frame in container.decode(video=0)]
        assert times == pytest.approx([index / 25 for index in frames], abs=1e-3)
    code, _, errors = watch(server, moving.path, "--video", "hidden", "--blur", "--every", "10", folder=tmp_path)
    assert code == 0, errors
    [path] = (tmp_path / "hidden").iterdir()
    code, lines, _ = watch(server, path, folder=tmp_path)
    assert [line["answer"]["faces"] for line in lines] == [[], []], "nobody is to be found on a blurred video"


def test_what_fails(server: Server, moving: Film, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(moving.path.read_bytes()[:2000])
    code, lines, errors = watch(server, broken, moving.path, "--every", "10", folder=tmp_path)
    assert (code, [line["frame"] for line in lines]) == (1, [0, 10]), "the other source is read"
    assert "broken.mp4: failed" in errors
    for arguments, told in (
        (["nothing.mp4"], "nothing.mp4: no such file"),
        ([moving.path, "--blur"], "--video"),
        ([moving.path, "--score-threshold", "2"], "score_threshold"),
        ([moving.path, "--model", "nobody"], "nobody"),
        ([moving.path, "--quality", "101"], "quality"),
        ([moving.path, "--output", tmp_path], "cannot be written"),
    ):
        code, lines, errors = watch(server, *arguments, folder=tmp_path)
        assert (code, lines) == (2, []), errors
        assert told in errors
        assert "Traceback" not in errors


def test_a_folder_of_frames_one_of_them_damaged(server: Server, tmp_path: Path, moving: Film) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    with av.open(str(moving.path)) as container:
        for index, frame in zip(range(4), container.decode(video=0), strict=False):
            Image.fromarray(frame.to_ndarray(format="rgb24")).save(folder / f"{index}.jpg", quality=90)
    (folder / "2.jpg").write_bytes(b"no picture")
    code, lines, _ = watch(server, folder, "--video", "videos", folder=tmp_path)
    assert code == 1
    assert [line.get("error", {}).get("type") for line in lines] == [None, None, "invalid_image", None]
    with av.open(str(tmp_path / "videos" / "frames.mp4")) as container:
        assert len(list(container.decode(video=0))) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_leaves_whole_files(server: Server, tmp_path: Path, number: signal.Signals) -> None:
    made = film(tmp_path / "long.mp4", count=500)
    process = begin(server, made.path, "--live", "--output", "out.jsonl", "--video", "videos", folder=tmp_path)
    output = tmp_path / "out.jsonl"
    deadline = time.monotonic() + 60
    while not output.exists() or output.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    [video] = (tmp_path / "videos").iterdir()
    assert video.name == "long.mp4"
    with av.open(str(video)) as container:
        assert len(list(container.decode(video=0))) == len(lines)
    assert lines[-1]["frame"] < 499


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """A network camera: HTTP, a transport stream at its own pace, from its beginning at each call; some are cut."""
    made = film(tmp_path / "camera.ts", count=75)
    data = made.path.read_bytes()
    calls = []

    class Camera(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "video/mp2t")
            self.end_headers()
            step = len(data) // 75
            try:
                for at in range(0, len(data) if len(calls) > 1 else len(data) // 2, step):
                    self.wfile.write(data[at : at + step])
                    time.sleep(0.04)
            except OSError:
                pass

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Camera)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield lambda: f"http://alice:secret@127.0.0.1:{server.server_address[1]}/door.ts"
    server.shutdown()
    server.server_close()


def test_a_camera_on_the_network_that_comes_back(server: Server, tmp_path: Path, door: Callable[[], str]) -> None:
    code, lines, errors = watch(server, door(), "--fps", "10", "--until", "4", folder=tmp_path)
    assert code == 0, errors
    assert "secret" not in errors
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(set(seconds))
    assert seconds[-1] > 2, "it was cut after 1.5 s"
    assert sum(len(line["answer"]["faces"]) == 1 for line in lines) > 0.8 * len(lines) > 8


def test_thirty_cameras_at_once(server: Server, moving: Film) -> None:
    """Far more than the server carries: what is sent is new, in order, and memory does not grow."""
    seen: dict[str, list[Seen]] = defaultdict(list)
    memory: list[int] = []
    found = sources([str(moving.path)] * 30, live=True)
    tallies = [Tally(source.name) for source in found]

    def deliver(result: Seen) -> None:
        seen[result.source].append(result)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    async def run() -> None:
        token = server.folder / "key_file.json"
        async with AsyncClient(by_grpc(server), "centerface", token=token, management=server.management) as client:
            await follow(client, found, tallies, Reading(), Sending({}, in_flight=8), deliver, asyncio.Event())

    started = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - started < 60
    assert set(seen) == {source.name for source in found}, "none is starved"
    for tally in tallies:
        results = seen[tally.name]
        order = [result.frame.index for result in results]
        assert order == sorted(set(order))
        assert all(isinstance(result.outcome, Answer) for result in results)
        assert (tally.read, tally.detected + tally.dropped, tally.failed) == (20, 20, 0)
        # A frame waits for the calls under way before it, at most twice 30 sources' worth, never in a growing queue.
        assert max(result.lag_s for result in results) < 6
    assert sum(tally.dropped for tally in tallies) > 0
    # kB; of the second half of the run.
    assert memory[-1] - memory[len(memory) // 2] < 50_000


def test_lags_do_not_grow(server: Server, tmp_path: Path) -> None:
    made = film(tmp_path / "film.mp4", count=150, fps=50.0)
    code, lines, errors = watch(server, made.path, made.path, made.path, "--live", folder=tmp_path)
    assert code == 0, errors
    early = sorted(line["lag_ms"] for line in lines if line["seconds"] < 1.5)
    late = sorted(line["lag_ms"] for line in lines if line["seconds"] >= 1.5)
    assert len(late) > 3
    assert late[len(late) // 2] < 2 * early[len(early) // 2] + 200
