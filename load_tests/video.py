"""Live sources on one server: how many it carries, their lag, what is dropped, what decoding costs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from archive.files import progress
from archive.serve import isolated
from archive.server import Server
from archive.verify import PHOTOGRAPH
from clients import AsyncClient, Retry
from clients.watch.follow import Seen, Sending, follow
from clients.watch.frame import Frame
from clients.watch.reader import Reading
from clients.watch.sources import sources
from clients.watch.tally import Tally
from load_tests import machine
from load_tests.errors import LoadFailed

_SIZE = (640, 480)
_RATE = 25
_ROW = "{:>7}  {:>9}  {:>10}  {:>9}  {:>9}  {:>9}  {:>9}"


@dataclass(frozen=True)
class Figures:
    """Of one number of sources.

    Attributes:
        count: of sources.
        rate: frames detected a second, of all of them.
        dropped: share of the frames that were asked for.
        p50_s: lag of a result behind its frame's decoding, s.
        p99_s: likewise.
        starved: fewest frames detected a second of one source.
    """

    count: int
    rate: float
    dropped: float
    p50_s: float
    p99_s: float
    starved: float


def run(config: Path, model: str, counts: Sequence[int], fps: float, seconds: float) -> None:
    """Print a table: so many sources at once, each a 640x480 H.264 film of 25 frames a second at its own pace.

    Args:
        config: config.properties of the server.
        model: that is asked.
        counts: of sources.
        fps: that are asked for of each.
        seconds: of each row.
    """
    with tempfile.TemporaryDirectory(prefix="mogface-video-") as scratch:
        folder = Path(scratch)
        film = _film(folder / "film.mp4", seconds)
        decoded, encoded = _costs(film)
        private = isolated(config, folder)
        with (
            (folder / "console.log").open("wb") as console,
            Server(private, [f"{model}.mar"], folder, folder / "tmp", console) as server,
            progress("rows", len(counts)) as bar,
        ):
            server.wait([model])
            rows = []
            for count in counts:
                rows.append(_measure(server, model, film, count, fps, seconds))
                bar.update(1)
    print(machine.describe())
    print(f"decoding {1000 * decoded:.2f} ms a frame of {_SIZE[0]}x{_SIZE[1]} H.264, its JPEG {1000 * encoded:.2f} ms")
    print(_ROW.format("sources", "asked/s", "detected/s", "dropped %", "least/s", "lag p50", "lag p99"))
    for row in rows:
        numbers = (row.count * fps, row.rate, 100 * row.dropped, row.starved, 1000 * row.p50_s, 1000 * row.p99_s)
        print(_ROW.format(row.count, *(f"{number:.1f}" for number in numbers)))


def _film(path: Path, seconds: float) -> Path:
    """A camera that pans over the embedded photograph."""
    with Image.open(PHOTOGRAPH) as photograph:
        wide = np.asarray(photograph.convert("RGB").resize((_SIZE[0] + 200, _SIZE[1])))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(_RATE), options={"preset": "veryfast"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = _SIZE
        stream.pix_fmt = "yuv420p"
        for index in range(round(seconds * _RATE)):
            left = round(100 + 99 * np.sin(index / _RATE))
            view = np.ascontiguousarray(wide[:, left : left + _SIZE[0]])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode())
    return path


def _costs(film: Path) -> tuple[float, float]:
    """CPU seconds to decode a frame, and to make it a JPEG."""
    begun = time.process_time()
    with av.open(str(film)) as container:
        frames = [frame for frame, _ in zip(container.decode(video=0), range(100), strict=False)]
    decoded = time.process_time()
    for frame in frames:
        Frame(0, 0.0, 0.0, frame).picture(Sending({}).quality)
    return (decoded - begun) / len(frames), (time.process_time() - decoded) / len(frames)


def _measure(server: Server, model: str, film: Path, count: int, fps: float, seconds: float) -> Figures:
    found = sources([str(film)] * count, live=True)
    tallies = [Tally(source.name) for source in found]
    lags: list[float] = []

    def deliver(seen: Seen) -> None:
        lags.append(seen.lag_s)

    async def run() -> float:
        address = f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"
        async with AsyncClient(
            address,
            model,
            token=server.folder / "key_file.json",
            management=server.management,
            retry=Retry(attempts=1),
        ) as client:
            begun = time.monotonic()
            await follow(client, found, tallies, Reading(fps=fps), Sending({}), deliver, asyncio.Event())
            return time.monotonic() - begun

    took = asyncio.run(run())
    if any(tally.failed or tally.error for tally in tallies):
        raise LoadFailed("; ".join(tally.line() for tally in tallies if tally.failed or tally.error))
    lags.sort()
    asked = sum(tally.asked for tally in tallies)
    return Figures(
        count,
        len(lags) / took,
        sum(tally.dropped for tally in tallies) / asked,
        lags[len(lags) // 2],
        lags[int(0.99 * (len(lags) - 1))],
        min(tally.detected for tally in tallies) / took,
    )
