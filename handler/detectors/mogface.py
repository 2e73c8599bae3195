"""MogFace: trunk, score head level by level, box head where a score asks for it, landmarks by CenterFace.

A level none of whose scores is over an image's threshold gives that image no boxes, so its box head, two
fifths of all the work, is not run: no box of it would have been kept, so the answer is the same.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from handler import engines
from handler.anchors import SIZES, STRIDES, Grid, decode, grid
from handler.config import Settings
from handler.detections import no_landmarks
from handler.detectors import centerface
from handler.detectors.base import TOP_K, Detector, Prepared, Result, Run, Stopwatch, finish
from handler.detectors.landmarks import LandmarkStage
from handler.errors import EngineError, MogFaceError
from handler.geometry import Float32, Placement, Reduced, Uint8, shrink_float
from handler.nms import nms

GRAPHS = ("trunk", "score_head", "box_head", centerface.GRAPH)
#: The trunk's outputs, finest first; their strides are anchors.STRIDES.
LEVELS = ("p2", "p3", "p4", "p5", "p6", "p7")
#: A face's side over its anchor's, at most: in training an anchor matches down to an overlap of 0.35, and
#: two squares round one centre overlap so much when one's side is sqrt(1 / 0.35) = 1.69 times the other's.
REACH = 1.7


class MogFace(Detector):
    """MogFace on one engine a graph.

    ``trunk`` takes ``image`` [N, H, W, 3] uint8 RGB and, optionally, ``fraction``, float32 that is added to
    it, and gives ``p2`` .. ``p7`` [N, 256, h, w]; ``score_head`` takes a ``level`` and gives ``scores``
    [N, h * w] and ``context``, of which ``box_head`` makes ``offsets`` [N, h * w, 4].
    """

    # The network's mean colour: a pad of it comes to almost zero.
    fill = (124, 116, 104)
    landmarks_on_source = True
    stages = ("network", "trunk", "score_head", "box_head", "landmarks")
    levels = STRIDES

    def __init__(
        self,
        settings: Settings,
        trunk: engines.Engine,
        score_head: engines.Engine,
        box_head: engines.Engine,
        landmarks: LandmarkStage,
    ) -> None:
        super().__init__(settings)
        self._trunk = trunk
        self._score_head = score_head
        self._box_head = box_head
        self._landmarks = landmarks
        # A GPU is asked once what fired, after all score heads. On a CPU the question costs nothing, and asked
        # level by level it lets each level's features go before the next one's come.
        indices = range(len(LEVELS))
        self._rounds = [[level] for level in indices] if trunk.device.type == "cpu" else [list(indices)]

    @classmethod
    def load(cls, folder: Path, settings: Settings, device: torch.device) -> MogFace:
        """Out of an unpacked archive."""
        trunk, score_head, box_head, points = (engines.load(settings, folder, graph, device) for graph in GRAPHS)
        return cls(settings, trunk, score_head, box_head, LandmarkStage(points))

    def _takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        return self._trunk.takes(shapes)

    def _array(
        self, image: Uint8 | Image.Image, placement: Placement, reduced: Reduced | None, native: bool
    ) -> tuple[Uint8, Float32 | None]:
        if not native or placement.content == placement.source:
            return super()._array(image, placement, reduced, native)
        shrunk = shrink_float(np.asarray(image), placement)
        array = np.floor(shrunk).astype(np.uint8)
        return array, shrunk - array

    def _detect(self, images: list[Prepared]) -> list[Result]:
        started = time.perf_counter()
        cells = grid(images[0].placement.canvas, self._trunk.device)
        watch = Stopwatch()
        table, ran = self._candidates(images, cells, watch)
        network = time.perf_counter() - started
        run = Run(len(images), {"network": network, **watch.seconds})
        results = []
        for image, candidates, levels in zip(images, table, ran, strict=True):
            started = time.perf_counter()
            # Those under the threshold come last, as minus infinity.
            count = np.count_nonzero(candidates[:, 4] >= 0)
            boxes, scores = candidates[:count, :4], candidates[:count, 4]
            kept = nms(boxes, scores, image.options.nms_threshold)
            faces = finish(boxes[kept], scores[kept], no_landmarks(len(kept)), image.placement, image.options)
            timing = {
                "preprocess": image.milliseconds,
                "network": network * 1000,
                "postprocess": (time.perf_counter() - started) * 1000,
                "landmarks": 0.0,
            }
            results.append(Result(faces, image.placement, timing, tuple(levels), (run,)))
        return results

    def _candidates(self, images: list[Prepared], cells: Grid, watch: Stopwatch) -> tuple[Float32, list[list[int]]]:
        """Run the network; ``watch`` takes a lap where a stage ends.

        Returns:
            [N, K, 5] float32: boxes in canvas px and scores, by falling score, among equals by rising anchor;
            K is at most 5000. Beyond an image's candidates the score is minus infinity.
            For each image, the strides of the levels whose box head ran.

        Raises:
            EngineError: a score that is not a number, or an engine's failure.
        """
        device = self._trunk.device
        limits = [image.options.score_threshold for image in images]
        scores = torch.full((len(images), len(cells.anchors)), -math.inf, device=device)
        offsets = torch.zeros((len(images), len(cells.anchors), 4), device=device)
        ran: list[list[int]] = [[] for _ in images]
        features = self._features(images)
        watch.lap("trunk")
        for levels in self._rounds:
            contexts = {}
            for level in levels:
                rows = [row for row, image in enumerate(images) if _reaches(level, image)]
                if not rows:
                    # Unseen: an engine that leaves work until its result is looked up never does this.
                    del features[LEVELS[level]]
                    continue
                feature = features.pop(LEVELS[level])
                watch.lap("trunk")
                scored = self._score_head.run({"level": _some(feature, rows)})
                scores[rows, cells.levels[level]] = scored.pop("scores").float()
                contexts[level] = rows, scored
                del feature
                watch.lap("score_head")
            # max gives NaN where there is any, so one look at the maxima sees all scores.
            best = torch.stack([scores[:, cells.levels[level]].amax(1) for level in levels], 1).cpu().numpy()
            if np.isnan(best).any():
                raise EngineError("the network gave scores that are not numbers")
            over = best > np.array(limits, np.float32)[:, None]
            watch.lap("score_head")
            for level in list(contexts):
                rows, scored = contexts.pop(level)
                fired = [row for row in rows if over[row, levels.index(level)] or not self.settings.level_skipping]
                if fired:
                    context = scored.pop("context")
                    found = self._box_head.run({"context": _some(context, [rows.index(row) for row in fired])})
                    offsets[fired, cells.levels[level]] = found.pop("offsets").float()
                    del context, found
                for row in fired:
                    ran[row].append(STRIDES[level])
                del scored
            watch.lap("box_head")
        thresholds = torch.tensor(limits, device=device)
        strongest = _strongest(scores, offsets, cells, thresholds).cpu().numpy()
        # Where a GPU's box heads are waited for.
        watch.lap("box_head")
        return strongest, ran

    def _features(self, images: list[Prepared]) -> MutableMapping[str, torch.Tensor]:
        feeds = {"image": torch.from_numpy(np.stack([image.array for image in images]))}
        fractions = [image.fraction for image in images if image.fraction is not None]
        if fractions:
            feeds["fraction"] = torch.from_numpy(np.stack(fractions))
        return self._trunk.run(feeds)

    def _complete(
        self, images: Sequence[Prepared], results: list[Result | MogFaceError], deadline: float
    ) -> list[Result | MogFaceError]:
        """Landmarks, for those who asked, over the faces of the whole request batch."""
        started = time.perf_counter()
        wanting = {
            index: (image.image, result)
            for index, (image, result) in enumerate(zip(images, results, strict=True))
            if isinstance(result, Result) and image.image is not None
        }
        found = self._landmarks.find([(image, result.detections.boxes) for image, result in wanting.values()], deadline)
        seconds = time.perf_counter() - started
        run = Run(len(wanting), {"landmarks": seconds})
        for (index, (_, result)), points in zip(wanting.items(), found, strict=True):
            if isinstance(points, MogFaceError):
                results[index] = points
                continue
            faces = result.detections.with_landmarks(points)
            timing = {**result.timing_ms, "landmarks": seconds * 1000}
            results[index] = dataclasses.replace(result, detections=faces, timing_ms=timing, runs=(*result.runs, run))
        return results


def _reaches(level: int, image: Prepared) -> bool:
    """Whether the level can hold faces as large as the image's request wants them."""
    return SIZES[level] * REACH >= image.options.min_face_size * image.placement.scale


def _some(batch: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """These rows of a batch; the batch itself, uncopied, where they are all of it."""
    return batch if len(rows) == len(batch) else batch[rows]


def _strongest(scores: torch.Tensor, offsets: torch.Tensor, cells: Grid, thresholds: torch.Tensor) -> torch.Tensor:
    """The 5000 strongest anchors over each image's threshold, decoded: [N, K, 5]."""
    masked = scores.masked_fill(scores <= thresholds[:, None], -math.inf)
    values, index = torch.sort(masked, dim=1, descending=True, stable=True)
    values, index = values[:, :TOP_K], index[:, :TOP_K]
    chosen = offsets.gather(1, index[:, :, None].expand(-1, -1, 4))
    return torch.cat([decode(chosen, cells.anchors[index]), values[:, :, None]], dim=2)
