"""Graphs and settings -> a .mar, the same bytes for the same inputs.

torch-model-archiver lays the archive out; it stamps the time and takes files in the order of the disk, so the
result is written again with fixed times and order. ``artifacts.json``, with the hash of every file, goes in
last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive

import handler
from archive.files import sha256, whole
from handler import plans
from handler.config import FILE, Settings
from handler.errors import ArtifactError

ARTIFACTS = "artifacts.json"
MANIFEST = "MAR-INF/MANIFEST.json"
ENTRY = "mogface_handler.py"
#: What zipfile raises over damaged archives.
DAMAGE = (OSError, zipfile.BadZipFile, KeyError, ValueError, RuntimeError, EOFError, zlib.error)
_FORMAT = 1
#: What artifacts.json says beside the files.
_SAID = ("name", "version", "detector", "weights", "engine", "precision")
#: A member's own header: signature, version, flags, method, time, date, CRC, both sizes, lengths of name and extra.
_LOCAL = struct.Struct("<4s5H3I2H")
#: The earliest time a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CREATED = "01/01/1980 00:00:00"


@dataclass(frozen=True)
class Recipe:
    """What goes into an archive.

    Attributes:
        name: the model's, as it will be served.
        version: the model's.
        settings: for ``detector.yaml``.
        graphs: names under ``graphs/`` to the files that hold them.
        plans: folders of TensorRT plans, one a kind of GPU, under their own names in ``plans/``.
    """

    name: str
    version: str
    settings: Settings
    graphs: Mapping[str, Path]
    plans: Sequence[Path] = ()


def pack(recipe: Recipe, target: Path) -> bool:
    """Write the archive, unless ``target`` is already just that.

    Args:
        recipe: what goes in.
        target: the .mar.

    Returns:
        Whether it was written.

    Raises:
        ArtifactError: a graph is missing, or the archive came out with other contents than intended.
    """
    with tempfile.TemporaryDirectory(prefix="mogface-pack-") as scratch:
        staging = Path(scratch) / "staging"
        _stage(recipe, staging)
        files = {str(path.relative_to(staging)): sha256(path) for path in staging.rglob("*") if path.is_file()}
        files[ENTRY] = sha256(_entry())
        expected = {**files, MANIFEST: hashlib.sha256(_manifest(recipe)).hexdigest()}
        artifacts = _artifacts(recipe, expected)
        if target.exists() and _holds(target, artifacts, set(expected)):
            return False
        drafted = _archive(recipe, staging, Path(scratch))
        with whole(target) as draft:
            _rewrite(drafted, draft, {MANIFEST: _manifest(recipe)}, artifacts, set(expected))
    return True


def read_artifacts(mar: Path) -> dict[str, Any]:
    """``artifacts.json`` of an archive.

    Raises:
        ArtifactError: no readable zip, or an archive that was packed by something else.
    """
    try:
        with zipfile.ZipFile(mar) as archive:
            content = json.loads(archive.read(ARTIFACTS))
    except FileNotFoundError as error:
        raise ArtifactError(f"{mar}: no such archive; `mogface-archive build` makes one") from error
    except DAMAGE as error:
        raise ArtifactError(f"{mar}: expected an archive made by `mogface-archive pack`: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ArtifactError(f"{mar}: {ARTIFACTS} is of another format than {_FORMAT}; pack it again")
    if not all(isinstance(content.get(key), str) for key in _SAID) or not isinstance(content.get("files"), dict):
        raise ArtifactError(f"{mar}: {ARTIFACTS} must say {', '.join(_SAID)} and files; pack it again")
    return content


def read_settings(mar: Path) -> Settings:
    """``detector.yaml`` of an archive.

    Raises:
        ArtifactError: no readable zip, or one without it.
        ConfigError: wrong settings.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with zipfile.ZipFile(mar) as archive:
                path = archive.extract(FILE, scratch)
        except DAMAGE as error:
            raise ArtifactError(f"{mar}: {FILE} cannot be read: {error}") from error
        return Settings.load(Path(path))


def _entry() -> Path:
    return Path(handler.__path__[0]) / ENTRY


def _stage(recipe: Recipe, staging: Path) -> None:
    """Everything but the entry file and the manifest, laid out as in the archive."""
    package = Path(handler.__path__[0])
    engine = recipe.settings.engine
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        # An archive carries its own engine alone; the module of PyTorch's is not called torch, which it imports.
        foreign = inside.parts[0] == "engines" and path.stem.removesuffix("_engine") not in ("__init__", "base", engine)
        if inside.name == ENTRY or foreign:
            continue
        copy = staging / "handler" / inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (staging / FILE).write_text(recipe.settings.dump(), encoding="utf-8")
    if engine == "trt" and not recipe.plans:
        raise ArtifactError("an archive for the engine trt needs plans: run `mogface-archive engine` first")
    (staging / "graphs").mkdir()
    for name, graph in recipe.graphs.items():
        if not graph.is_file():
            raise ArtifactError(f"graph {graph} is missing: run `mogface-archive export` first")
        shutil.copyfile(graph, staging / "graphs" / name)
    for folder in recipe.plans:
        sidecars = plans.read(folder)
        if not sidecars:
            raise ArtifactError(f"{folder} holds no plans: run `mogface-archive engine` first")
        # Only what belongs together: a plan that is no longer its sidecar's is refused here, not at load.
        for name, sidecar in sidecars.items():
            sidecar.read(folder)
            (staging / plans.FOLDER / folder.name).mkdir(parents=True, exist_ok=True)
            for suffix in ("json", "plan"):
                shutil.copyfile(folder / f"{name}.{suffix}", staging / plans.FOLDER / folder.name / f"{name}.{suffix}")


def _config(recipe: Recipe, staging: str, export: str) -> ModelArchiverConfig:
    return ModelArchiverConfig(
        model_name=recipe.name,
        version=recipe.version,
        handler=str(_entry()),
        extra_files=staging,
        export_path=export,
        # Weights do not compress; stored, they also load faster.
        archive_format="zip-store",
        force=True,
    )


def _archive(recipe: Recipe, staging: Path, scratch: Path) -> Path:
    export = scratch / "export"
    export.mkdir()
    with _temporary_folder(scratch):
        try:
            generate_model_archive(_config(recipe, str(staging), str(export)))
        except Exception as error:  # the archiver's own class of errors, and whatever the disk raises
            raise ArtifactError(f"torch-model-archiver cannot pack {recipe.name}: {error}") from error
    return export / f"{recipe.name}.mar"


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """torch-model-archiver stages in TMPDIR/NAME, which two packs of one name would share."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _manifest(recipe: Recipe) -> bytes:
    """The archiver's manifest with a fixed time."""
    from model_archiver.model_packaging_utils import ModelExportUtils

    content = json.loads(ModelExportUtils.generate_manifest_json(_config(recipe, "", "")))
    return json.dumps({**content, "createdOn": _CREATED}, indent=2, sort_keys=True).encode("utf-8")


def _artifacts(recipe: Recipe, files: Mapping[str, str]) -> bytes:
    content = {
        "format": _FORMAT,
        "name": recipe.name,
        "version": recipe.version,
        "detector": recipe.settings.detector,
        "weights": recipe.settings.weights,
        "engine": recipe.settings.engine,
        "precision": recipe.settings.precision,
        "files": dict(sorted(files.items())),
    }
    return json.dumps(content, indent=2).encode("utf-8")


def _holds(mar: Path, artifacts: bytes, expected: set[str]) -> bool:
    try:
        with zipfile.ZipFile(mar) as archive:
            return (
                set(archive.namelist()) == expected | {ARTIFACTS}
                and archive.read(ARTIFACTS) == artifacts
                and archive.testzip() is None
                and not misplaced(mar)
            )
    except DAMAGE:
        return False


def misplaced(mar: Path) -> str:
    """What a reader that goes from header to header, as Java does, would see otherwise; empty if nothing.

    Python reads a zip by the directory at its end. Between the members that it lists there may be others.
    """
    with zipfile.ZipFile(mar) as archive, mar.open("rb") as file:
        members = sorted(archive.infolist(), key=lambda info: info.header_offset)
        if len({info.filename for info in members}) != len(members):
            return "a name is there twice"
        position = 0
        for info in members:
            file.seek(position)
            fields = _LOCAL.unpack(file.read(_LOCAL.size))
            name = file.read(fields[9])
            sizes = (info.CRC, info.compress_size, info.file_size)
            if info.header_offset != position or fields[0] != b"PK\3\4" or fields[6:9] != sizes or fields[2]:
                return f"the header before {info.filename} is not its own"
            if name != info.filename.encode():
                return f"{info.filename} is called {name!r} in its own header"
            position += _LOCAL.size + fields[9] + fields[10] + info.compress_size
        if position != archive.start_dir:
            return "bytes lie between the members and the directory"
    return ""


def _rewrite(source: Path, target: Path, replaced: Mapping[str, bytes], artifacts: bytes, expected: set[str]) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        names = {name for name in old.namelist() if not name.endswith("/")}
        if names != expected:
            raise ArtifactError(
                f"the archive came out with other files than intended: {sorted(names ^ expected)} differ"
            )
        for name in sorted(names):
            with new.open(_info(name), "w", force_zip64=False) as file:
                if name in replaced:
                    file.write(replaced[name])
                else:
                    with old.open(name) as original:
                        shutil.copyfileobj(original, file, 1 << 20)
        new.writestr(_info(ARTIFACTS), artifacts)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    return info
