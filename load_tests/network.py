"""The three graphs on ONNX Runtime against ModelScope's own network, in one run on one machine.

Seeded weights: how long a network takes does not depend on what it has learnt. Rounds are interleaved, so that a
change of the machine's speed meets all of them alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archive import checkpoint, export
from archive.files import progress
from handler import engines
from handler.config import Settings, engine_threads
from handler.detectors import Result
from handler.detectors.landmarks import LandmarkStage
from handler.detectors.mogface import GRAPHS, MogFace
from handler.geometry import NATIVE, Uint8
from handler.options import Options
from load_tests import machine

#: What level skipping is for has to show; and where it cannot help, it must not harm.
GOALS = {"no face": 1.8, "all levels fire": 1.0}
_OPTIONS = Options(score_threshold=1.0, nms_threshold=0.4, canvas=NATIVE)
# No score is over 1; every score is over 0.
_CASES = {"no face": _OPTIONS, "all levels fire": replace(_OPTIONS, score_threshold=0.0)}


def run(height: int, width: int, rounds: int) -> None:
    """Measure and print a table. Arguments as for :func:`measure`."""
    seconds = measure(height, width, rounds)
    released = statistics.median(seconds.pop("ModelScope, eager"))
    print(machine.describe())
    print(f"MogFace, {height}x{width}, medians of {rounds} rounds")
    print(f"{'ModelScope, eager':18} {released:6.2f} s")
    for name, each in seconds.items():
        gain, goal = released / statistics.median(each), GOALS[name]
        verdict = "reached" if gain >= goal else "MISSED"
        spread = f"{min(each):.2f} .. {max(each):.2f}"
        print(
            f"{name:18} {statistics.median(each):6.2f} s ({spread}), {gain:.2f} times as fast; goal {goal:g}: {verdict}"
        )


def measure(height: int, width: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round, by contender; one untimed round goes before.

    Args:
        height: of the image, px; its own size is what the networks see.
        width: of the image, px.
        rounds: of each contender.
    """
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    weights = checkpoint.seeded(7)
    torch.set_num_threads(engine_threads(0))
    with tempfile.TemporaryDirectory() as scratch:
        detector = _detector(weights, Path(scratch))
        contenders: dict[str, Callable[[], object]] = {"ModelScope, eager": _released(weights, image)}
        contenders |= {name: _served(detector, image, options) for name, options in _CASES.items()}
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        with progress("rounds", total=(rounds + 1) * len(contenders)) as bar:
            for number in range(rounds + 1):
                for name, call in contenders.items():
                    started = time.perf_counter()
                    call()
                    if number:
                        seconds[name].append(time.perf_counter() - started)
                    bar.update()
    return seconds


def _detector(weights: checkpoint.Checkpoint, folder: Path) -> MogFace:
    export.export(weights, folder / "graphs")
    settings = Settings("mogface", weights.label, _OPTIONS, device="cpu")
    cpu = torch.device("cpu")
    trunk, score_head, box_head = (engines.load(settings, folder, graph, cpu) for graph in GRAPHS[:3])
    # Nobody asks for landmarks here, so their stage is never run.
    return MogFace(settings, trunk, score_head, box_head, LandmarkStage(trunk))


def _served(detector: MogFace, image: Uint8, options: Options) -> Callable[[], object]:
    prepared = detector.prepare(image, options)
    levels = 0 if options.score_threshold else 6

    def call() -> None:
        result = detector.detect([prepared], time.monotonic() + 600)[0]
        if not isinstance(result, Result) or len(result.levels) != levels:
            raise RuntimeError(f"{levels} levels should have fired: {result}")

    return call


def _released(weights: checkpoint.Checkpoint, image: Uint8) -> Callable[[], object]:
    """ModelScope's network on pixels normalised beforehand; decoding and suppression are not timed with it."""
    from modelscope.models.cv.face_detection.mogface.models.mogface import MogFace as Released

    network: Any = Released()
    network.load_state_dict(dict(weights.state), strict=False)
    network.eval()
    pixels = (torch.from_numpy(image).permute(2, 0, 1)[None].float() - 116) / 58 / 255

    def call() -> None:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network(pixels)

    return call
