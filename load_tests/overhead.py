"""What the handler costs outside the network: decoding, letterbox, suppression, encoding the answer."""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from PIL import Image

from archive.verify import PHOTOGRAPH
from handler.config import FILE, Settings
from handler.pipeline import Pipeline
from handler.request import Request
from load_tests import machine


def run(mar: Path, rounds: int) -> None:
    """Print the median, of one request at a time, in this process held to one core.

    Args:
        mar: the archive to run.
        rounds: requests measured, after ten to warm up.
    """
    described = machine.describe()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    request = Request({"body": photograph(640, 480)}, {"content-type": "image/jpeg"})
    outside = []
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(mar) as archive:
            archive.extractall(folder)
        settings = Settings.load(Path(folder) / FILE)
        pipeline = Pipeline.load(Path(folder), settings, mar.stem, "1.0", torch.device("cpu"))
        for _ in range(rounds + 10):
            started = time.perf_counter()
            [response] = pipeline.answer([request])
            total = (time.perf_counter() - started) * 1000
            answer = json.loads(response.body)
            assert len(answer["faces"]) == 1, "the photograph's face was not found"
            outside.append(total - answer["timing_ms"]["network"])
    print(described)
    print(f"handler outside the network, 640x480 JPEG, one core: median {statistics.median(outside[10:]):.2f} ms")


def photograph(width: int, height: int) -> bytes:
    """The known photograph on a page of this size, as JPEG of quality 90."""
    page = Image.new("RGB", (width, height), (120, 120, 120))
    picture = Image.open(PHOTOGRAPH)
    side = min(width, height)
    page.paste(picture.resize((side, side)), (0, 0))
    data = io.BytesIO()
    page.save(data, "JPEG", quality=90)
    return data.getvalue()
