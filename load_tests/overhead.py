"""What the handler costs outside the network: decoding, letterbox, suppression, encoding the answer."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import statistics
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from archive.verify import PHOTOGRAPH
from handler import detectors
from handler.config import FILE, Settings
from handler.engines import Engine
from handler.geometry import Canvas, choose_canvas, letterbox, place
from handler.image import decode
from handler.loader import DRAFT
from handler.pipeline import Pipeline
from handler.request import Request
from handler.response import ModelInfo
from load_tests import machine

#: (width, height) of what is measured, px.
SIZES = ((640, 480), (4000, 3000))


def run(mar: Path, rounds: int) -> None:
    """Print milliseconds of one request at a time, on one core; what draft shifts; what overlapping saves.

    Times are of the processor, of the one thread that does it all: what else runs on the machine does not show.

    Args:
        mar: the archive to run.
        rounds: requests measured at 640x480, after ten to warm up; a tenth of them at 12 megapixels.
    """
    print(machine.describe())
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(mar) as archive:
            archive.extractall(folder)
        settings = dataclasses.replace(Settings.load(Path(folder) / FILE), log_requests=False)

        def pipeline(overlap: bool = False, **changes: Any) -> Pipeline:
            changed = dataclasses.replace(settings, **changes)
            detector = detectors.load(Path(folder), changed, torch.device("cpu"))
            info = ModelInfo(mar.stem, "1.0", changed.weights, changed.engine, changed.precision)
            return Pipeline(detector, changed, info, overlap=overlap)

        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        torch.set_num_threads(1)
        print(f"{'ms, one core':28} {'decoding alone':>15} {'all but the network':>20} {'over decoding':>14}")
        for draft in (False, True):
            given = pipeline(threads=1, draft=draft)
            for width, height in SIZES[draft:]:
                name = f"{width}x{height} JPEG{', draft' if draft else ''}"
                count = rounds if width < 1000 else max(3, rounds // 10)
                _row(name, given, photograph(width, height), reduction(settings, width, height, draft), count)
        os.sched_setaffinity(0, cores)
        _shift(pipeline(), pipeline(draft=True), settings)
        _overlap({overlap: pipeline(overlap=overlap) for overlap in (False, True)}, max(3, rounds // 10))


def _row(name: str, pipeline: Pipeline, data: bytes, least: tuple[int, int] | None, rounds: int) -> None:
    alone, outside = [], []
    for _ in tqdm(range(rounds + 10), name, leave=False):
        started = time.thread_time()
        with Image.open(io.BytesIO(data)) as picture:
            if least:
                picture.draft(None, least)
            picture.load()
        alone.append(time.thread_time() - started)
        with _network() as spent:
            started = time.thread_time()
            answer = _answer(pipeline, data)
            outside.append(time.thread_time() - started - sum(spent))
        assert len(answer["faces"]) == 1, "the photograph's face was not found"
    decoding, rest = (statistics.median(each[10:]) * 1000 for each in (alone, outside))
    print(f"{name:28} {decoding:15.2f} {rest:20.2f} {rest - decoding:14.2f}")


def _answer(pipeline: Pipeline, data: bytes) -> dict[str, Any]:
    [response] = pipeline.answer([Request({"body": data}, {"content-type": "image/jpeg"})])
    answer: dict[str, Any] = json.loads(response.body)
    return answer


@contextmanager
def _network() -> Iterator[list[float]]:
    """Seconds of the processor that engines take."""
    spent: list[float] = []
    real = Engine.run

    def timed(self: Engine, feeds: Mapping[str, torch.Tensor]) -> Any:
        started = time.thread_time()
        try:
            return real(self, feeds)
        finally:
            spent.append(time.thread_time() - started)

    with mock.patch.object(Engine, "run", timed):
        yield spent


def reduction(settings: Settings, width: int, height: int, draft: bool) -> tuple[int, int] | None:
    """The least (width, height) that a JPEG of this size is decoded at, px; None for its own."""
    if not draft:
        return None
    canvas: Canvas = choose_canvas(height, width, settings.canvases, settings.long_side)
    rows, columns = place(height, width, canvas).content
    return DRAFT * columns, DRAFT * rows


def _shift(full: Pipeline, draft: Pipeline, settings: Settings) -> None:
    """What draft changes of the known photograph: the canvas that the network sees, and the answer."""
    print("\ndraft against full decoding, the known photograph enlarged:")
    print(f"{'size':>12} {'decoded':>10} {'canvas, grey levels':>20} {'box, share of its width':>24} {'score':>18}")
    for side in (1300, 1700, 2600, 3400, 5200, 6900):
        data = photograph(side, side)
        least = reduction(settings, side, side, True)
        assert least is not None
        one, other = (decode(data, settings.limits, each) for each in (None, lambda *_, sides=least: sides[::-1]))
        placement = place(side, side, choose_canvas(side, side, settings.canvases, settings.long_side))
        seen = [letterbox(each.picture, placement, (0, 0, 0), each.reduced).astype(int) for each in (one, other)]
        [first], [second] = (_answer(each, data)["faces"] for each in (full, draft))
        moved = np.abs(np.subtract(first["box"], second["box"])).max() / (first["box"][2] - first["box"][0])
        apart = np.abs(seen[0] - seen[1])
        print(
            f"{side:>7}x{side:<4} {other.picture.width:>5}x{other.picture.height:<4} "
            f"{apart.mean():>11.2f}, most {apart.max():<2} {moved:>24.2%} {first['score']:>9.4f} {second['score']:.4f}"
        )


def _overlap(pipelines: Mapping[bool, Pipeline], rounds: int) -> None:
    """A batch whose images are decoded while the network runs on those before, and one that is decoded first.

    Args:
        pipelines: by whether they overlap.
        rounds: of each, in turn.
    """
    print("\none batch on all cores, least ms:")
    for width, height in SIZES:
        count = 8 if width < 1000 else 4
        requests = [Request({"body": photograph(width, height)}, {"content-type": "image/jpeg"})] * count
        seconds: dict[bool, list[float]] = {overlap: [] for overlap in pipelines}
        for _ in tqdm(range(rounds), "overlap", leave=False):
            for overlap, pipeline in pipelines.items():
                started = time.perf_counter()
                pipeline.answer(requests)
                seconds[overlap].append(time.perf_counter() - started)
        whole, ahead = (min(seconds[overlap]) * 1000 for overlap in (False, True))
        print(f"{count} JPEGs of {width}x{height}: decoded first {whole:.0f}, while the network runs {ahead:.0f}")


def photograph(width: int, height: int) -> bytes:
    """The known photograph on a page of this size, as JPEG of quality 90."""
    page = Image.new("RGB", (width, height), (120, 120, 120))
    picture = Image.open(PHOTOGRAPH)
    side = min(width, height)
    page.paste(picture.resize((side, side)), (0, 0))
    data = io.BytesIO()
    page.save(data, "JPEG", quality=90)
    return data.getvalue()
