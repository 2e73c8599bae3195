"""The three graphs on the engines of a CPU against ModelScope's own network, in one run on one machine.

Seeded weights: how long a network takes does not depend on what it has learnt. Rounds are interleaved, so that a
change of the machine's speed meets all of them alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archive import checkpoint, export, winograd
from archive.files import progress
from handler import engines
from handler.config import Settings, engine_threads
from handler.detectors import Result
from handler.detectors.landmarks import LandmarkStage
from handler.detectors.mogface import GRAPHS, MogFace
from handler.geometry import NATIVE, Uint8
from handler.options import Options
from load_tests import machine

RELEASED = "ModelScope, eager"
_OPTIONS = Options(score_threshold=1.0, nms_threshold=0.4, canvas=NATIVE)


@dataclass(frozen=True)
class Case:
    """What a request makes of the levels.

    Attributes:
        options: of the request.
        levels: whose boxes are computed.
        goals: times as fast as ModelScope's network, by engine: what level skipping is for has to show, and where it
            cannot help, it must not harm.
    """

    options: Options
    levels: int
    goals: dict[str, float]


# No score is over 1; every score is over 0.
CASES = {
    "no face": Case(_OPTIONS, 0, {"ort": 1.8, "winograd": 4.0}),
    "no face of 20 px": Case(replace(_OPTIONS, min_face_size=20), 0, {"ort": 3.0, "winograd": 8.0}),
    "all levels fire": Case(replace(_OPTIONS, score_threshold=0.0), 6, {"ort": 1.0, "winograd": 2.3}),
}
ENGINES = ("ort", "winograd")


def run(height: int, width: int, rounds: int) -> None:
    """Measure and print a table. Arguments as for :func:`measure`."""
    seconds = measure(height, width, rounds)
    print(machine.describe())
    print(f"MogFace, {height}x{width}, medians of {rounds} rounds, {engine_threads(0)} threads")
    for line in table(seconds):
        print(line)


def table(seconds: dict[str, list[float]]) -> list[str]:
    """A line a contender, as :func:`measure` gives them: median, spread, gain over ModelScope's network, verdict."""
    released = statistics.median(seconds[RELEASED])
    lines = []
    for name, each in seconds.items():
        middle = statistics.median(each)
        line = f"{name:28} {middle:6.2f} s ({min(each):.2f} .. {max(each):.2f})"
        if name != RELEASED:
            engine, _, case = name.partition(", ")
            gain, goal = released / middle, CASES[case].goals[engine]
            line += f", {gain:.2f} times as fast; goal {goal:g}: {'reached' if gain >= goal else 'MISSED'}"
        lines.append(line)
    return lines


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
        export.export(weights, Path(scratch) / "graphs")
        winograd.export_mogface(weights, Path(scratch) / "graphs")
        contenders: dict[str, Callable[[], object]] = {RELEASED: _released(weights, image)}
        for engine in ENGINES:
            detector = _detector(engine, weights.label, Path(scratch))
            contenders |= {f"{engine}, {name}": _served(detector, image, case) for name, case in CASES.items()}
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


def _detector(engine: str, label: str, folder: Path) -> MogFace:
    settings = Settings("mogface", label, _OPTIONS, engine=engine, device="cpu")
    cpu = torch.device("cpu")
    trunk, score_head, box_head = (engines.load(settings, folder, graph, cpu) for graph in GRAPHS[:3])
    # Nobody asks for landmarks here, so their stage is never run.
    return MogFace(settings, trunk, score_head, box_head, LandmarkStage(trunk))


def _served(detector: MogFace, image: Uint8, case: Case) -> Callable[[], object]:
    prepared = detector.prepare(image, case.options)

    def call() -> None:
        result = detector.detect([prepared], time.monotonic() + 600)[0]
        if not isinstance(result, Result) or len(result.levels) != case.levels:
            raise RuntimeError(f"{case.levels} levels should have fired: {result}")

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
