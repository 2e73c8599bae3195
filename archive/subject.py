"""A detector taken out of an archive, to be measured in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive.pack import DAMAGE, read_artifacts
from handler import detectors, device
from handler.config import FILE, Settings
from handler.detections import Detections
from handler.detectors import Detector, Prepared
from handler.errors import ArtifactError, MogFaceError
from handler.geometry import Uint8
from handler.options import Options


@dataclass(frozen=True)
class Subject:
    """A detector and what it is called.

    Attributes:
        label: name, weights, engine and precision, for reports.
        detector: loaded.
    """

    label: str
    detector: Detector

    @property
    def settings(self) -> Settings:
        """The detector's own."""
        return self.detector.settings

    def find(self, images: Sequence[Uint8], options: Options) -> list[Detections]:
        """The faces of upright images, [H, W, 3] uint8 RGB each.

        Raises:
            MogFaceError: the first image's that fails.
        """
        return self.run([self.detector.prepare(image, options) for image in images])

    def run(self, prepared: Sequence[Prepared]) -> list[Detections]:
        """The faces of prepared images; errors as for :meth:`find`."""
        faces = []
        for result in self.detector.detect(prepared, math.inf):
            if isinstance(result, MogFaceError):
                raise result
            faces.append(result.detections)
        return faces


@contextlib.contextmanager
def opened(mar: Path, on: str | None = None) -> Iterator[Subject]:
    """The detector of an archive; its files are gone when the block ends.

    Args:
        mar: the archive.
        on: ``cpu``, ``cuda`` or ``auto``; the archive's own setting where None.

    Raises:
        SetupError: what is wrong with the archive or the machine.
    """
    said = read_artifacts(mar)
    with tempfile.TemporaryDirectory(prefix="mogface-subject-") as scratch:
        try:
            with zipfile.ZipFile(mar) as archive:
                archive.extractall(scratch)
        except DAMAGE as error:
            raise ArtifactError(f"{mar.name} is damaged: {error}") from error
        settings = Settings.load(Path(scratch) / FILE)
        settings = dataclasses.replace(settings, device=on or settings.device)
        detector = detectors.load(Path(scratch), settings, device.choose(settings.device, None))
        yield Subject(f"{said['name']} ({said['weights']}, {said['engine']}, {said['precision']})", detector)
