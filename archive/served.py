"""An archive as configuration sees it: what it is called, how it is set, what it needs."""

from __future__ import annotations

import json
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from archive.pack import DAMAGE, MANIFEST, read_artifacts, read_settings
from handler import memory, plans
from handler.config import Settings
from handler.errors import ArtifactError

_MB = 1_000_000


@dataclass(frozen=True)
class Archive:
    """What configuration has to know of a .mar."""

    file: str
    name: str
    version: str
    settings: Settings
    has_model_config: bool
    #: GPU memory of one worker by its plans; 0 where it carries none, or their scratch is not recorded.
    gpu_mb: int = 0


def read_archive(mar: Path) -> Archive:
    """Read a .mar's name, version, settings and what its plans need.

    Raises:
        ArtifactError: not an archive of this project.
    """
    artifacts = read_artifacts(mar)
    try:
        with zipfile.ZipFile(mar) as content:
            manifest = json.loads(content.read(MANIFEST))["model"]
            if not isinstance(manifest, dict):
                raise ArtifactError(f"{mar}: {MANIFEST} has no model")
            has_config = "configFile" in manifest or "model-config.yaml" in content.namelist()
    except DAMAGE as error:
        raise ArtifactError(f"{mar}: {MANIFEST} cannot be read: {error}") from error
    settings = read_settings(mar)
    return Archive(mar.name, artifacts["name"], artifacts["version"], settings, has_config, _plans_mb(mar, settings))


def _plans_mb(mar: Path, settings: Settings) -> int:
    """The most that a worker with the plans of one kind of GPU takes, by the memory formula."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(mar) as content:
        for name in content.namelist():
            if name.startswith(f"{plans.FOLDER}/") and name.endswith(".json"):
                content.extract(name, scratch)
        folders = sorted((Path(scratch) / plans.FOLDER).glob("*"))
        needs = [
            memory.need(
                settings.detector,
                plans.read(folder).values(),
                settings.canvases,
                settings.engine_batch,
                recorded=memory.recorded(settings),
            )
            for folder in folders
        ]
    known = [each.total for each in needs if not each.unknown]
    return -(-max(known) // _MB) if known else 0
