"""``mogface`` as a person or a container calls it, against a real TorchServe."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from archive.build import Build, Wanted
from archive.server import Server
from clients import Management, UsageError
from tests.photographs import ASTRONAUT, HOPPER, NO_FACES, iou
from tests.serving.conftest import ROOT, Start
from tests.serving.test_faces import encoded

COMMAND = [sys.executable, "-m", "clients.cli"]
Mogface = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.usefixtures("server")


def environment(server: Server) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOGFACE_")}
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "MOGFACE_ADDRESS": server.inference,
        "MOGFACE_MANAGEMENT": server.management,
    }


@pytest.fixture
def mogface(server: Server, tmp_path: Path) -> Mogface:
    """Run a verb in ``tmp_path``, with the server's token, and get what it said."""

    def run(verb: str, *arguments: str, token: bool = True) -> subprocess.CompletedProcess[str]:
        given = ["--token-file", str(server.folder / "key_file.json")] if token else []
        return subprocess.run(
            [*COMMAND, verb, *given, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=tmp_path,
            env=environment(server),
        )

    return run


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def asked(server: Server) -> int:
    """Predictions that the server was asked for, by its access log."""
    log = (server.folder / "logs" / "access_log.log").read_text(encoding="utf-8")
    return len(re.findall(r"POST /predictions/", log))


@pytest.fixture(scope="session")
def small() -> bytes:
    """A face in a picture that is quick to find it in."""
    return encoded(Image.open(HOPPER.path).convert("RGB").resize((256, 300)), "JPEG")


@pytest.fixture
def two_hundred(tmp_path: Path, small: bytes) -> Path:
    """180 pictures and 20 that are damaged, in some folders, under names that sort."""
    folder = tmp_path / "photos"
    for index in range(200):
        path = folder / f"{index // 50}" / f"{index:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of two kinds: no picture at all, and one cut off.
        path.write_bytes(small if index % 10 != 7 else b"no picture" if index % 20 == 7 else small[: len(small) // 2])
    return folder


def check_two_hundred(output: Path, folder: Path) -> None:
    results = lines(output.read_text(encoding="ascii"))
    assert [result["path"] for result in results] == [
        str(folder / f"{index // 50}" / f"{index:03}.jpg") for index in range(200)
    ]
    for index, result in enumerate(results):
        assert set(result) == {"path", "error" if index % 10 == 7 else "answer"}
    assert [len(result["answer"]["faces"]) for result in results if "answer" in result] == [1] * 180
    errors = [result["error"] for result in results if "error" in result]
    assert [(error["code"], error["type"]) for error in errors] == [(400, "invalid_image")] * 20


def test_two_hundred_files_twenty_of_them_damaged(
    mogface: Mogface, server: Server, two_hundred: Path, tmp_path: Path
) -> None:
    before = asked(server)
    done = mogface("detect", str(two_hundred), "--output", "faces.jsonl")
    assert done.returncode == 1
    assert done.stdout == ""
    *named, last = done.stderr.splitlines()
    assert len(named) == 10, "no bar where there is no terminal, and the first failures by name"
    assert all(re.fullmatch(r"mogface detect: \S+: \w+: .+", line) for line in named)
    assert "200 images, 20 failed" in last or last == "mogface detect: 20 of 200 images failed"
    check_two_hundred(tmp_path / "faces.jsonl", two_hundred)
    assert asked(server) - before == 200
    again = mogface("detect", str(two_hundred), "--output", "faces.jsonl")
    assert again.returncode == 1
    assert asked(server) - before == 200, "a whole file asks for nothing"


def test_stopped_in_the_middle_it_goes_on_where_it_was(
    mogface: Mogface, server: Server, two_hundred: Path, tmp_path: Path
) -> None:
    before = asked(server)
    output = tmp_path / "faces.jsonl"
    arguments = ["detect", str(two_hundred), "--output", "faces.jsonl"]
    arguments += ["--token-file", str(server.folder / "key_file.json"), "--concurrency", "4"]
    interruptions = 0
    for enough in (20, 90):
        with subprocess.Popen(
            [*COMMAND, *arguments], cwd=tmp_path, env=environment(server), stderr=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 90
            while not output.exists() or output.read_bytes().count(b"\n") < enough:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 130, told
        assert "faces.jsonl is whole: the same command goes on from there." in told
        # Whole lines, each of another image, in order, and some are missing.
        found = [line["path"] for line in lines(output.read_text(encoding="ascii"))]
        assert enough <= len(found) < 200
        assert found == sorted(set(found))
        interruptions += 1
    assert interruptions == 2
    # A line that was being written when a machine went off.
    with output.open("ab") as file:
        file.write(b'{"path":"photos/3/199.jpg","answer":{"mod')
    done = mogface("detect", str(two_hundred), "--output", "faces.jsonl")
    assert done.returncode == 1
    check_two_hundred(output, two_hundred)
    assert asked(server) - before == 200, "no image is asked twice"


def test_killed_at_any_moment_nothing_is_lost_but_what_was_under_way(
    mogface: Mogface, server: Server, two_hundred: Path, tmp_path: Path
) -> None:
    before = asked(server)
    output = tmp_path / "faces.jsonl"
    arguments = ["detect", str(two_hundred), "--output", "faces.jsonl", "--concurrency", "4"]
    arguments += ["--token-file", str(server.folder / "key_file.json")]
    with subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, env=environment(server)) as process:
        deadline = time.monotonic() + 90
        while not output.exists() or output.read_bytes().count(b"\n") < 30:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    done = mogface("detect", str(two_hundred), "--output", "faces.jsonl")
    assert done.returncode == 1
    check_two_hundred(output, two_hundred)
    # Twice the concurrency is on its way or held for its turn.
    assert 200 <= asked(server) - before <= 200 + 2 * 4


def test_what_may_be_asked_again_is_and_takes_its_place(
    mogface: Mogface, server: Server, small: bytes, tmp_path: Path
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(small)
    (tmp_path / "d.jpg").write_bytes(b"no picture")
    assert mogface("detect", *(f"{name}.jpg" for name in "abcd"), "--output", "o").returncode == 1
    first = lines((tmp_path / "o").read_text())
    first[1] = {"path": "b.jpg", "error": {"code": 503, "type": "queue_full", "message": "-"}}
    (tmp_path / "o").write_text("".join(json.dumps(line) + "\n" for line in first))
    before = asked(server)
    done = mogface("detect", *(f"{name}.jpg" for name in "abcd"), "--output", "o")
    assert done.returncode == 1
    assert asked(server) - before == 1
    results = lines((tmp_path / "o").read_text())
    assert [result["path"] for result in results] == [f"{name}.jpg" for name in "abcd"]
    assert [len(result["answer"]["faces"]) for result in results[:3]] == [1, 1, 1]
    assert results[3] == first[3]


def test_answers_of_another_model_are_not_mixed_in(mogface: Mogface, small: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(small)
    assert mogface("detect", "a.jpg", "--output", "o").returncode == 0
    content = (tmp_path / "o").read_text()
    done = mogface("detect", "a.jpg", "--output", "o", "--model", "mogface")
    assert (done.returncode, (tmp_path / "o").read_text()) == (2, content)
    assert "has answers of centerface, and mogface is asked now: choose another file" in done.stderr


def test_a_run_goes_on_under_the_name_that_a_model_was_registered_by(
    start: Start, mogface: Mogface, small: bytes, tmp_path: Path
) -> None:
    """Its answers have that name, not the archive's, which another model may have."""
    server = start("centerface", changes={"enable_model_api": "true"}, entries={"minWorkers": 1, "maxWorkers": 1})
    where = ["--management", server.management, "--token-file", str(server.folder / "key_file.json")]
    with Management(server.management, server.folder / "key_file.json") as management:
        management.register("centerface.mar", model="alias")
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(small)
    asks = ["--output", "o", "--model", "alias", "--address", server.inference, *where]
    assert mogface("detect", "a.jpg", *asks, token=False).returncode == 0
    done = mogface("detect", "a.jpg", "b.jpg", *asks, token=False)
    assert done.returncode == 0, done.stderr
    assert "had 1 of them from an earlier run" in done.stderr
    assert asked(server) == 2
    answers = [line["answer"] for line in lines((tmp_path / "o").read_text())]
    assert [answer["model"]["name"] for answer in answers] == ["alias", "alias"]
    done = mogface("detect", "a.jpg", "--output", "o", "--address", server.inference, *where, token=False)
    assert done.returncode == 2
    assert "o has answers of alias, and centerface is asked now" in done.stderr


def test_one_version_of_several_is_scaled(start: Start, mogface: Mogface, workspace: Any) -> None:
    """``all`` is TorchServe's word for every one."""
    second, _ = Build(Wanted("centerface"), workspace).archive()
    other = second.with_name("centerface-2.mar")
    with zipfile.ZipFile(second) as read, zipfile.ZipFile(other, "w") as written:
        for entry in read.infolist():
            data = read.read(entry)
            if entry.filename == "MAR-INF/MANIFEST.json":
                told = json.loads(data)
                told["model"]["modelVersion"] = "2.0"
                data = json.dumps(told).encode()
            written.writestr(entry.filename, data)
    server = start("centerface", changes={"enable_model_api": "true"}, entries={"minWorkers": 1, "maxWorkers": 1})
    where = ["--management", server.management, "--token-file", str(server.folder / "key_file.json")]
    assert mogface("register", other.name, "--workers", "0", *where, token=False).returncode == 0
    for how in (["--workers", "2"], ["--auto", "--max", "2"]):
        done = mogface("scale", *how, "--model-version", "all", *where, token=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("mogface scale: --model-version all is every one of centerface")
        assert done.stderr.count("\n") == 1
    with Management(server.management, server.folder / "key_file.json") as management:
        assert [each.version for each in management.describe("centerface", "all")] == ["1.0", "2.0"]
        with pytest.raises(UsageError, match="'all' is every one of centerface"):
            management.version("centerface", "all")
        assert management.version("centerface").version == "1.0"
        assert management.version("centerface", "2.0").workers == ()


def test_every_option_reaches_the_server(mogface: Mogface, tmp_path: Path) -> None:
    page = Image.new("RGB", (600, 300), "grey")
    head = Image.open(HOPPER.path).convert("RGB")
    page.paste(head.resize((256, 300)), (0, 0))
    page.paste(head.resize((64, 75)), (300, 100))
    page.save(tmp_path / "a.png")

    def faces(*options: str) -> Any:
        done = mogface("detect", "a.png", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["answer"]

    plain = faces()
    assert len(plain["faces"]) == 2
    assert plain["faces"][0]["landmarks"]
    assert len(faces("--max-faces", "1")["faces"]) == 1
    assert len(faces("--min-face-size", "50")["faces"]) == 1
    assert faces("--score-threshold", "1")["faces"] == []
    assert not any(face["landmarks"] for face in faces("--no-landmarks")["faces"])
    assert faces("--landmarks")["faces"] == plain["faces"]
    assert faces("--canvas", "640x480")["canvas"] == "640x480"
    scores = [face["score"] for face in faces("--order", "score")["faces"]]
    assert scores == sorted(scores, reverse=True)
    widths = [face["box"][2] - face["box"][0] for face in faces("--order", "size")["faces"]]
    assert widths == sorted(widths, reverse=True)
    assert len(faces("--nms-threshold", "0.9")["faces"]) >= 2


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_both_ways_to_the_server_say_the_same(
    mogface: Mogface, server: Server, small: bytes, tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "a.jpg").write_bytes(small)
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    grpc = f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"
    done = mogface("detect", "a.jpg", "b.jpg", "--address", {"http": server.inference, "grpc": grpc}[scheme])
    assert done.returncode == 1
    found, refused = lines(done.stdout)
    assert len(found["answer"]["faces"]) == 1
    assert (refused["error"]["code"], refused["error"]["type"]) == (400, "invalid_image")


def test_an_image_from_the_standard_input(server: Server) -> None:
    done = subprocess.run(
        [*COMMAND, "detect", "-", "--token-file", str(server.folder / "key_file.json")],
        input=HOPPER.path.read_bytes(),
        capture_output=True,
        check=True,
        env=environment(server),
    )
    result = json.loads(done.stdout)
    assert result["path"] == "-"
    assert iou(result["answer"]["faces"][0]["box"], HOPPER.box) > 0.8


def test_names_that_are_no_text_and_files_that_cannot_be_read(mogface: Mogface, small: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    names = [b"a\nb.jpg", b"\xff.jpg", "ü.jpg".encode()]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(small)
    (folder / "gone.jpg").symlink_to("nothing")
    os.mkfifo(folder / "pipe.jpg")
    done = mogface("detect", "odd", "--output", "o")
    assert done.returncode == 1
    results = lines((tmp_path / "o").read_text(encoding="ascii"))
    answered = [os.fsencode(Path(result["path"]).name) for result in results if "answer" in result]
    assert answered == sorted(names)
    failed = {Path(result["path"]).name: result["error"] for result in results if "error" in result}
    assert {name: error["type"] for name, error in failed.items()} == {"gone.jpg": "usage", "pipe.jpg": "usage"}
    assert mogface("detect", "odd", "--format", "table").stdout.count("\n") == 6


def test_pictures_upright_with_the_faces_drawn_in_and_crops(mogface: Mogface, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.open(HOPPER.path).convert("RGB").transpose(Image.Transpose.ROTATE_90)
    (folder / "below" / "lying.jpg").write_bytes(encoded(lying, "JPEG", exif=exif, quality=95))
    shutil.copy(NO_FACES[0], folder / "nobody.png")
    done = mogface("detect", "photos", "--pictures", "out", "--crops", "cut", "--output", "o")
    assert done.returncode == 0, done.stderr
    drawn = np.asarray(Image.open(tmp_path / "out" / "below" / "lying.jpg"), int)
    plain = np.asarray(Image.open(HOPPER.path).convert("RGB"), int)
    assert drawn.shape == plain.shape
    rows, columns = np.nonzero(np.abs(drawn - plain).sum(axis=2) > 150)
    found = (columns.min(), columns.max(), rows.max())
    assert np.abs(np.subtract(found, np.array(HOPPER.box)[[0, 2, 3]])).max() < 8
    nobody = np.asarray(Image.open(tmp_path / "out" / "nobody.png"))
    assert np.array_equal(nobody, np.asarray(Image.open(NO_FACES[0])))
    [crop] = (tmp_path / "cut").rglob("*.jpg*/*")
    assert crop == tmp_path / "cut" / "below" / "lying.jpg" / "0000.jpg"
    assert Image.open(crop).size == (112, 112)
    assert '"crop"' not in (tmp_path / "o").read_text()


def test_pictures_and_crops_that_are_gone_come_back(mogface: Mogface, server: Server, tmp_path: Path) -> None:
    shutil.copy(HOPPER.path, tmp_path / "a.jpg")
    assert mogface("detect", "a.jpg", "--output", "o").returncode == 0
    before = asked(server)
    assert mogface("detect", "a.jpg", "--output", "o", "--pictures", "out").returncode == 0
    assert (tmp_path / "out" / "a.jpg").is_file()
    assert asked(server) == before, "a picture is drawn from the answer that is there"
    assert mogface("detect", "a.jpg", "--output", "o", "--crops", "cut").returncode == 0
    assert asked(server) == before + 1, "crops are the server's"
    assert (tmp_path / "cut" / "a.jpg" / "0000.jpg").is_file()
    assert len(lines((tmp_path / "o").read_text())) == 1


def test_what_one_picture_meets_ends_no_other(mogface: Mogface, small: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (66_000, 8)).save(folder / "a wide one.jpg", "PNG")
    long, longest = "b" * 251 + ".jpg", "c" * 251 + ".gif"
    for name in (long, longest, "d.jpg"):
        (folder / name).write_bytes(small)
    done = mogface("detect", "photos", "--pictures", "out", "--crops", "cut", "--output", "o")
    assert done.returncode == 1
    results = [line.get("error", {"type": None})["type"] for line in lines((tmp_path / "o").read_text())]
    assert results == ["usage", None, "usage", None]
    first, second, last = done.stderr.splitlines()
    assert first.startswith("mogface detect: photos/a wide one.jpg: usage: 66000x8 px cannot be written as JPEG")
    assert second.endswith(f"out/{longest}.png cannot be written: File name too long")
    assert "4 images, 2 failed" in last
    assert {path.name for path in (tmp_path / "out").iterdir()} == {long, "d.jpg"}
    assert len(list((tmp_path / "cut" / long).iterdir())) == 1


def test_crops_of_an_earlier_run_that_are_none_of_this_one_go(mogface: Mogface, tmp_path: Path) -> None:
    page = Image.new("RGB", (600, 300), "grey")
    head = Image.open(HOPPER.path).convert("RGB").resize((256, 300))
    page.paste(head, (0, 0))
    page.paste(head.resize((128, 150)), (300, 100))
    page.save(tmp_path / "a.png")

    def crops(*options: str) -> list[str]:
        assert mogface("detect", "a.png", "--crops", "cut", *options).returncode == 0
        return sorted(path.name for path in (tmp_path / "cut" / "a.png").iterdir())

    assert crops() == ["0000.jpg", "0001.jpg"]
    assert crops("--max-faces", "1") == ["0000.jpg"]
    assert crops("--score-threshold", "1") == []


def test_an_output_that_is_a_link_stays_one(mogface: Mogface, small: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(small)
    (tmp_path / "b.jpg").write_bytes(small)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "o").symlink_to("elsewhere/o")
    assert mogface("detect", "b.jpg", "--output", "o").returncode == 0
    # Their order is another now, so the file is written anew.
    assert mogface("detect", "a.jpg", "b.jpg", "--output", "o").returncode == 0
    assert (tmp_path / "o").is_symlink()
    results = lines((tmp_path / "elsewhere" / "o").read_text())
    assert [result["path"] for result in results] == ["a.jpg", "b.jpg"]


def test_a_table_for_people(mogface: Mogface, tmp_path: Path) -> None:
    shutil.copy(ASTRONAUT.path, tmp_path / "a.png")
    shutil.copy(NO_FACES[0], tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes(b"no picture")
    done = mogface("detect", "a.png", "b.png", "c.png", "--format", "table")
    head, first, second, third = done.stdout.splitlines()
    assert head.split() == ["faces", "best", "size", "ms", "path"]
    assert re.fullmatch(r" +1 +0\.9\d\d +512x512 +[\d.]+  a\.png", first)
    assert re.fullmatch(r" +0 +- +600x400 +[\d.]+  b\.png", second)
    assert "c.png: invalid_image: " in third


def test_a_bar_on_a_terminal(server: Server, small: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(small)
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (24, 80))
    try:
        done = subprocess.run(
            [*COMMAND, "detect", "a.jpg", "--token-file", str(server.folder / "key_file.json")],
            cwd=tmp_path,
            env=environment(server),
            stdout=subprocess.PIPE,
            stderr=end,
            check=True,
        )
        shown = os.read(terminal, 10_000)
    finally:
        os.close(end)
        os.close(terminal)
    assert b"1/1" in shown
    assert json.loads(done.stdout)["path"] == "a.jpg"


def test_a_reader_that_has_enough_ends_it(server: Server, small: bytes, tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"{index:02}.jpg").write_bytes(small)
    key = server.folder / "key_file.json"
    script = f"{' '.join(COMMAND)} detect . --token-file {key} | head -1 > first; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(server), capture_output=True, text=True, check=True
    )
    assert done.stdout == "141\n"
    assert done.stderr == ""
    assert json.loads((tmp_path / "first").read_text())["path"] == "00.jpg"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--score-threshold", "3"], 2, "score_threshold is '3.0'"),
        (["--canvas", "1x1"], 2, "this archive has auto, native, 640x640"),
        (["--model", "nobody"], 2, "Model not found: nobody"),
        (["--model-version", "9"], 2, "9"),
        (["--address", "http://127.0.0.1:1"], 3, "cannot be reached"),
    ],
)
def test_what_every_image_would_meet_ends_the_run(
    mogface: Mogface, small: bytes, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "a.jpg").write_bytes(small)
    done = mogface("detect", "a.jpg", "a.jpg", *arguments, "--output", "o")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "o").read_bytes() == b""


def test_a_server_that_ends_in_the_middle(start: Start, mogface: Mogface, two_hundred: Path, tmp_path: Path) -> None:
    server = start("centerface")
    output = tmp_path / "faces.jsonl"
    command = [*COMMAND, "detect", str(two_hundred), "--output", "faces.jsonl"]
    command += ["--token-file", str(server.folder / "key_file.json")]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(server), stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 90
        while not output.exists() or output.read_bytes().count(b"\n") < 20:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.stop()
        _, told = process.communicate(timeout=120)
    assert process.returncode == 3, told
    assert "faces.jsonl is whole: the same command goes on from there." in told
    assert len(lines(output.read_text())) >= 20
    assert mogface("detect", str(two_hundred), "--output", "faces.jsonl").returncode == 1
    check_two_hundred(output, two_hundred)


def test_no_token_is_3_and_a_file_goes_on_with_one(mogface: Mogface, small: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(small)
    done = mogface("detect", "a.jpg", "--output", "o", token=False)
    assert done.returncode == 3
    assert "Token" in done.stderr
    assert mogface("models", token=False).returncode == 3
    assert mogface("health", token=False).returncode == 3
    assert mogface("detect", "a.jpg", "--output", "o").returncode == 0


def test_models(mogface: Mogface) -> None:
    done = mogface("models")
    head, row = done.stdout.splitlines()
    assert head.split() == ["model", "version", "workers", "ready", "batch", "queue"]
    assert row.split() == ["centerface", "1.0", "1", "1", "8", "0"]
    expected = {"model": "centerface", "version": "1.0", "workers": 1, "ready": 1, "batch_size": 8, "queue_length": 0}
    assert json.loads(mogface("models", "--json").stdout) == [expected]


def test_health(mogface: Mogface, server: Server) -> None:
    before = asked(server)
    done = mogface("health")
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(r"ready: centerface: 1 of 1 workers ready, a detection took \d+ ms\n", done.stdout)
    assert done.stderr == ""
    assert asked(server) == before + 1
    done = mogface("health", "--shallow")
    assert (done.returncode, done.stdout) == (0, "ready: centerface: 1 of 1 workers ready\n")
    assert asked(server) == before + 1
    done = mogface("health", "--model", "nobody")
    assert (done.returncode, done.stdout) == (2, "not ready: nobody: Model not found: nobody\n")


def test_health_is_quick_enough_for_a_probe(mogface: Mogface) -> None:
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert mogface("health").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # Of a processor's time, of which what else the machine does takes less than of the clock's: half a second.
    assert min(took) < 1.0, took


def test_registering_says_what_the_server_needs(mogface: Mogface) -> None:
    for arguments in (["register", "centerface.mar"], ["unregister", "centerface"]):
        done = mogface(*arguments)
        assert done.returncode == 2
        assert "enable_model_api=true" in done.stderr


def test_a_worker_that_is_not_ready_is_no_health(start: Start, mogface: Mogface, workspace: Any) -> None:
    """``/ping`` says Healthy here; and where the server allows it, models are registered and go again."""
    server = start("centerface", changes={"enable_model_api": "true"}, entries={"minWorkers": 1, "maxWorkers": 1})
    where = ["--management", server.management, "--token-file", str(server.folder / "key_file.json")]
    address = ["--address", server.inference]
    assert mogface("health", *where, *address, token=False).returncode == 0
    assert mogface("scale", "--workers", "0", "--wait", *where, token=False).returncode == 0
    done = mogface("health", *where, *address, token=False)
    assert (done.returncode, done.stdout) == (1, "not ready: centerface: 0 of 0 workers ready\n")
    assert mogface("scale", "--workers", "2", *where, token=False).stdout.splitlines() == [
        "centerface: 1 worker",
        "centerface: 2 workers",
    ]
    # The last one is not waited for.
    done = mogface("health", "--shallow", *where, *address, token=False)
    assert (done.returncode, done.stdout) == (1, "not ready: centerface: 1 of 2 workers ready\n")
    done = mogface("scale", "--workers", "2", "--wait", *where, token=False)
    assert done.stdout == "centerface: 2 workers, as there were\n"
    assert mogface("health", "--shallow", *where, *address, token=False).returncode == 0
    assert mogface("unregister", "centerface", *where, token=False).stdout == "centerface: unregistered\n"
    assert mogface("models", *where, token=False).stdout.count("\n") == 1
    done = mogface("register", "centerface.mar", "--batch-size", "2", *where, token=False)
    assert (done.returncode, done.stdout) == (0, "centerface.mar: registered\n"), done.stderr
    assert mogface("models", *where, token=False).stdout.splitlines()[1].split() == [
        "centerface",
        "1.0",
        "1",
        "1",
        "2",
        "0",
    ]
    server.stop()
