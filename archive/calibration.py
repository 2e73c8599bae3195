"""Pictures to calibrate with, and what they become on their way through the FP32 graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from archive.files import progress
from archive.network import LEVELS
from archive.quantization import Feeds
from handler.config import Settings, engine_threads
from handler.detectors.base import Detector
from handler.detectors.centerface import CenterFace
from handler.detectors.mogface import MogFace
from handler.engines.ort import OrtEngine
from handler.errors import ConfigError, RequestError
from handler.geometry import Uint8, choose_canvas, letterbox, place
from handler.image import decode

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
#: Ranges of activations hardly move any more with further pictures; each costs a run of the network a graph.
ENOUGH = 64


def pictures(folder: Path) -> list[Path]:
    """The pictures in a folder and those below it, by name; at most 64, evenly spread over all.

    Raises:
        ConfigError: there is none.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise ConfigError(f"{folder} holds no pictures to calibrate with (looked for {', '.join(SUFFIXES)})")
    if len(found) <= ENOUGH:
        return found
    return [found[index * len(found) // ENOUGH] for index in range(ENOUGH)]


class Calibration:
    """One set of pictures for all graphs of an archive.

    Args:
        graphs: the FP32 graphs by name, as ``trunk``.
        paths: of the pictures.
        settings: of the archive: its canvases, its longest side, its limits.
    """

    def __init__(self, graphs: Mapping[str, Path], paths: Sequence[Path], settings: Settings) -> None:
        self._paths = paths
        self._settings = settings
        names = ("trunk", "score_head")
        self._engines = {
            name: OrtEngine(graphs[name], torch.device("cpu"), engine_threads(settings.threads))
            for name in names
            if name in graphs
        }

    def feeds(self, graph: str) -> Iterator[Feeds]:
        """What the graph sees of each picture: one canvas, or the features of its six levels.

        Features are made anew for each graph: kept, they would take some 100 MB a picture.

        Args:
            graph: ``trunk``, ``score_head``, ``box_head`` or ``centerface``.

        Raises:
            ConfigError: a picture that cannot be read, or a head without the graphs before it.
        """
        with progress(f"calibrate {graph}", len(self._paths), "picture") as bar:
            for path in self._paths:
                yield from self._of(graph, path)
                bar.update()

    def _of(self, graph: str, path: Path) -> Iterator[Feeds]:
        if graph in ("trunk", "centerface"):
            image = self._canvas(path, MogFace if graph == "trunk" else CenterFace)
            yield {"image": np.stack([image])}
            return
        for needed in ("trunk", "score_head"):
            if needed not in self._engines:
                raise ConfigError(f"{graph} is calibrated with what {needed} gives: {needed}'s FP32 graph is missing")
        image = self._canvas(path, MogFace)
        levels = self._engines["trunk"].run({"image": torch.from_numpy(np.stack([image]))})
        for name in LEVELS:
            level = levels.pop(name)
            if graph == "score_head":
                yield {"level": level.numpy()}
            else:
                yield {"context": self._engines["score_head"].run({"level": level})["context"].numpy()}

    def _canvas(self, path: Path, detector: type[Detector]) -> Uint8:
        try:
            image = decode(path.read_bytes(), self._settings.limits).array
        except RequestError as error:
            raise ConfigError(f"{path}: {error}: remove it from the calibration pictures") from error
        height, width = image.shape[:2]
        canvas = choose_canvas(height, width, self._settings.canvases, self._settings.long_side)
        return letterbox(image, place(height, width, canvas), detector.fill)
