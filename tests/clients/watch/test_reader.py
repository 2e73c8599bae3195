"""Frames out of real files, folders and streams."""

from __future__ import annotations

import asyncio
import http.server
import itertools
import threading
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clients.errors import UsageError
from clients.watch.frame import Frame
from clients.watch.reader import Reader, Reading
from clients.watch.slot import Slot
from clients.watch.sources import sources
from clients.watch.tally import Tally
from tests.films import Film, film, scenes, turned

ALL = Reading()


def read(
    word: str, reading: Reading = ALL, *, live: bool = False, enough: Callable[[Tally], bool] = lambda tally: False
) -> tuple[list[Frame], Tally]:
    """All frames that come out of a source, and what was counted."""

    async def run() -> tuple[list[Frame], Tally]:
        [source] = sources([word], live)
        slot = Slot(asyncio.get_running_loop(), source.live, 1 if source.live else 3)
        tally = Tally(source.name)
        reader = Reader(source, slot, tally, reading)
        reader.start()
        frames = []
        async with asyncio.timeout(60):
            while await slot.filled():
                frames.append(slot.take())
                if enough(tally):
                    reader.stop()
        assert await asyncio.to_thread(reader.join, 30)
        return frames, tally

    return asyncio.run(run())


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Film:
    return film(tmp_path_factory.mktemp("film") / "short.mp4")


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [("libx264", "mp4"), ("libx264", "ts"), ("mpeg4", "avi"), ("libvpx-vp9", "webm"), ("mjpeg", "mkv")],
)
def test_every_frame_of_a_file_at_its_time(tmp_path: Path, codec: str, suffix: str) -> None:
    made = film(tmp_path / f"film.{suffix}", codec=codec)
    frames, tally = read(str(made.path))
    assert [frame.index for frame in frames] == list(range(20))
    # A transport stream begins at a time of its own.
    assert np.allclose([frame.seconds for frame in frames], made.times, atol=2e-3)
    assert (tally.read, tally.asked, tally.dropped, tally.damaged, tally.error) == (20, 20, 0, 0, None)
    assert tally.state == "ended"
    for frame, (picture, _) in zip(frames, scenes(20), strict=True):
        assert np.abs(np.asarray(frame.image(), int) - picture).mean() < 12


def test_times_of_a_variable_rate(tmp_path: Path) -> None:
    times = [0.0, 0.1, 0.15, 0.5, 0.9, 2.0]
    frames, _ = read(str(film(tmp_path / "film.mp4", times=times).path))
    assert np.allclose([frame.seconds for frame in frames], times, atol=1e-3)
    frames, tally = read(str(tmp_path / "film.mp4"), Reading(fps=4))
    assert [frame.index for frame in frames] == [0, 3, 4, 5]
    assert (tally.read, tally.asked) == (6, 4)


def test_a_gap_is_a_gap_where_clocks_are_not_set_anew(tmp_path: Path) -> None:
    times = [0.0, 20.0, 40.0, 40.04]
    frames, _ = read(str(film(tmp_path / "film.mp4", times=times).path))
    assert np.allclose([frame.seconds for frame in frames], times, atol=1e-3)
    frames, _ = read(str(film(tmp_path / "film.ts", times=times).path))
    seconds = [frame.seconds for frame in frames]
    assert max(np.diff(seconds)) < 5
    assert seconds == sorted(set(seconds))


@pytest.mark.parametrize("fps", [25.0, 10.0])
def test_a_video_that_tells_no_times_has_those_of_its_rate(tmp_path: Path, fps: float) -> None:
    frames, _ = read(str(film(tmp_path / "film.h264", fps=fps).path))
    assert np.allclose([frame.seconds for frame in frames], np.arange(20) / fps)


def test_frames_that_change_their_size(tmp_path: Path) -> None:
    parts = [film(tmp_path / f"{side}.h264", size=(side, 240)).path.read_bytes() for side in (320, 640)]
    (tmp_path / "film.h264").write_bytes(b"".join(parts))
    frames, _ = read(str(tmp_path / "film.h264"))
    assert [frame.image().width for frame in frames] == [320] * 20 + [640] * 20


@pytest.mark.parametrize(
    ("reading", "indices"),
    [
        (Reading(every=6), [0, 6, 12, 18]),
        (Reading(fps=10), [0, 3, 5, 8, 10, 13, 15, 18]),
        (Reading(fps=1000), list(range(20))),
        (Reading(until_s=0.2), [0, 1, 2, 3, 4]),
        (Reading(every=2, until_s=0.2), [0, 2, 4]),
    ],
)
def test_which_frames_are_asked_for(short: Film, reading: Reading, indices: list[int]) -> None:
    frames, _ = read(str(short.path), reading)
    assert [frame.index for frame in frames] == indices


@pytest.mark.parametrize("wrong", [{"every": 0}, {"fps": 0}, {"fps": float("nan")}, {"until_s": -1}, {"rate": 0}])
def test_what_cannot_be_asked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Reading(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_phones_video_is_upright(short: Film, tmp_path: Path, degrees: int) -> None:
    frames, _ = read(str(turned(short, tmp_path / "phone.mp4", degrees).path))
    [(first, _)] = scenes(1)
    upright = np.rot90(first, -degrees // 90)
    seen = np.asarray(frames[0].image(), int)
    assert seen.shape == upright.shape
    assert np.abs(seen - upright).mean() < 12


def test_a_file_that_plays_as_a_camera_keeps_its_pace_and_loses_frames(short: Film) -> None:
    started = time.monotonic()
    frames, tally = read(str(short.path), live=True)
    assert time.monotonic() - started > short.times[-1]
    assert tally.read == 20
    assert len(frames) + tally.dropped == 20


def test_a_folder_of_frames_goes_out_as_it_is(tmp_path: Path) -> None:
    for index in (10, 9, 1):
        Image.new("RGB", (40, 30), (index, 0, 0)).save(tmp_path / f"frame{index}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    frames, _ = read(str(tmp_path), Reading(rate=10))
    assert [frame.raw.name for frame in frames if isinstance(frame.raw, Path)] == [
        "frame1.png",
        "frame9.png",
        "frame10.png",
    ]
    assert [frame.seconds for frame in frames] == [0, 0.1, 0.2]
    assert frames[1].picture(90) == tmp_path / "frame9.png"
    assert frames[1].image().getpixel((0, 0)) == (9, 0, 0)


def test_a_damaged_file_gives_what_is_whole_of_it(tmp_path: Path) -> None:
    made = film(tmp_path / "film.ts", count=60)
    data = bytearray(made.path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 3000] = bytes(3000)
    (tmp_path / "hole.ts").write_bytes(data)
    frames, tally = read(str(tmp_path / "hole.ts"))
    assert 10 < len(frames) < 60
    assert frames[-1].seconds > 1.5, "it goes on behind the hole"
    (tmp_path / "cut.mp4").write_bytes(film(tmp_path / "whole.mp4").path.read_bytes()[:5000])
    frames, tally = read(str(tmp_path / "cut.mp4"))
    assert (frames, tally.state, tally.opened) == ([], "failed", 0)
    assert tally.error is not None
    assert "InvalidDataError" in tally.error


@pytest.mark.parametrize("content", [b"", b"no video", b"\x00" * 100_000])
def test_what_is_no_video(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "film.mp4").write_bytes(content)
    frames, tally = read(str(tmp_path / "film.mp4"))
    assert (frames, tally.state) == ([], "failed")
    assert tally.error


def test_a_file_of_which_nothing_can_be_decoded_failed(tmp_path: Path) -> None:
    data = bytearray(film(tmp_path / "film.mp4").path.read_bytes())
    begin, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    data[begin:end] = bytes(end - begin)
    (tmp_path / "film.mp4").write_bytes(data)
    frames, tally = read(str(tmp_path / "film.mp4"))
    assert (frames, tally.state, tally.error) == ([], "failed", "no frame of it could be decoded")
    assert tally.opened == 1


def test_a_sound_has_no_video(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16000))
    _, tally = read(str(tmp_path / "sound.wav"))
    assert tally.error == "it has no video"


Serve = Callable[[Path, list[int]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Streams a file again and again over HTTP, its connections cut after so many bytes; refuses after the last."""
    servers = []

    def begin(path: Path, cuts: list[int]) -> str:
        left = list(cuts)

        class Stream(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not left:
                    self.send_error(503)
                    return
                data = path.read_bytes()[: left.pop(0)]
                self.send_response(200)
                self.send_header("Content-Type", "video/mp2t")
                self.end_headers()
                for at in range(0, len(data), 4096):
                    self.wfile.write(data[at : at + 4096])
                    time.sleep(0.005)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stream)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://alice:secret@127.0.0.1:{server.server_address[1]}/door.ts?key=secret"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_stream_that_goes_away_and_comes_back(tmp_path: Path, serve: Serve) -> None:
    made = film(tmp_path / "film.ts", count=50)
    size = made.path.stat().st_size
    address = serve(made.path, [size // 2, size, size])
    started = time.monotonic()
    frames, tally = read(address, enough=lambda tally: tally.opened > 2 and tally.read > 80)
    assert tally.opened >= 3
    seconds = [frame.seconds for frame in frames]
    assert seconds == sorted(set(seconds))
    # Of the clock here, not the stream's, which begins again each time.
    assert seconds[-1] < time.monotonic() - started + 3
    assert "secret" not in tally.line()
    assert tally.name.startswith("http://127.0.0.1:")


def test_the_clock_begins_with_the_first_frame_and_goes_on(tmp_path: Path, serve: Serve) -> None:
    made = film(tmp_path / "film.ts", count=50)
    size = made.path.stat().st_size
    # Away twice before it comes: that is nothing of its clock.
    address = serve(made.path, [0, 0, size // 4, size, size])
    frames, _ = read(address, enough=lambda tally: tally.opened > 2 and tally.read > 80)
    assert frames[0].seconds == 0
    for before, frame in itertools.pairwise(frames):
        passed = frame.arrived - frames[0].arrived
        steps = frame.index - before.index
        assert frame.seconds <= max(passed, before.seconds + 0.05 * steps) + 0.01
        assert frame.seconds - before.seconds > 0.03 * steps, "a burst is not pressed into one moment"


@pytest.mark.parametrize("password", [r"se\cret", "se'cret"])
def test_a_password_is_not_told_however_it_is_quoted(password: str) -> None:
    tally = away(f"http://alice:{password}@127.0.0.1:1/door")
    assert tally.error is not None
    assert "refused" in tally.error
    assert "cret" not in tally.line()


def away(address: str) -> Tally:
    """Of a stream, told to end when it has failed to come once."""

    async def run() -> Tally:
        [source] = sources([address])
        slot, tally = Slot(asyncio.get_running_loop(), True), Tally(source.name)
        reader = Reader(source, slot, tally, Reading())
        reader.start()
        deadline = time.monotonic() + 30
        while tally.state != "away":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        reader.stop()
        assert not await slot.filled()
        assert await asyncio.to_thread(reader.join, 30)
        return tally

    return asyncio.run(run())


def test_a_stream_that_never_comes_is_tried_until_told_to_end(serve: Serve, tmp_path: Path) -> None:
    tally = away(serve(tmp_path / "nothing", []))
    assert tally.error is not None
    assert "secret" not in tally.line()
