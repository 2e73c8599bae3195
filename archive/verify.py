"""Is this archive whole, and does it find a face with nothing of this repository at hand?"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from archive.files import progress, sha256
from archive.pack import ARTIFACTS, DAMAGE, MANIFEST, misplaced, read_artifacts
from handler.errors import ArtifactError

#: Portrait of the astronaut Eileen Collins: NASA, public domain.
PHOTOGRAPH = Path(__file__).parent / "data" / "astronaut.jpg"
#: The one face on it: x1 y1 x2 y2, px.
FACE = (181.0, 58.0, 270.0, 178.0)

# Runs in a fresh interpreter on the unpacked archive alone. Editable installs put this repository on the
# path; a finder in front refuses its packages, and `handler` must come out of the archive.
_CHILD = """
import json, sys
from pathlib import Path
folder, picture, name, version = sys.argv[1:]
class Refuse:
    def find_spec(self, module, path=None, target=None):
        if module.partition(".")[0] in ("archive", "clients", "load_tests", "tests"):
            raise ImportError(module + " is not in the archive")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, folder)
import torch
from handler import device
from handler.config import FILE, Settings
from handler.pipeline import Pipeline
from handler.request import Request
settings = Settings.load(Path(folder) / FILE)
pipeline = Pipeline.load(Path(folder), settings, name, version, device.choose(settings.device, None))
[response] = pipeline.answer([Request({"body": Path(picture).read_bytes()}, {"X-Face-Output": "json"}, "verify")])
strays = [m.__name__ for m in list(sys.modules.values())
          if m.__name__.partition(".")[0] == "handler" and not str(m.__file__).startswith(folder)]
print(json.dumps({"status": response.status, "body": json.loads(response.body), "strays": strays}))
"""


def verify(mar: Path) -> dict[str, Any]:
    """Check an archive's hashes, then run it in a clean process on a known photograph.

    Args:
        mar: the archive.

    Returns:
        What ``artifacts.json`` says, with ``sha256`` of the whole file and the photograph's ``answer``.

    Raises:
        ArtifactError: a file differs, is missing or is there too much; the archive does not run; or trained
            weights do not find the face.
    """
    artifacts = read_artifacts(mar)
    try:
        _check_hashes(mar, artifacts)
    except DAMAGE as error:
        raise ArtifactError(f"{mar.name} is damaged: {error}") from error
    print(f"Running {mar.name} by itself on {PHOTOGRAPH.name} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mogface-verify-") as scratch:
        with zipfile.ZipFile(mar) as archive:
            archive.extractall(scratch)
        answer = _run(Path(scratch), artifacts)
    if "not trained" not in artifacts["weights"]:
        found = [face["box"] for face in answer["faces"]]
        if len(found) != 1 or _iou(found[0], FACE) < 0.5:
            raise ArtifactError(f"{mar.name} finds {found} on the known photograph: expected one face at {FACE}")
    return {**artifacts, "sha256": sha256(mar), "answer": answer}


def _check_hashes(mar: Path, artifacts: dict[str, Any]) -> None:
    files: dict[str, str] = artifacts["files"]
    problem = misplaced(mar)
    if problem:
        raise ArtifactError(f"{mar.name} is damaged or tampered with: {problem}")
    with zipfile.ZipFile(mar) as archive:
        names = set(archive.namelist()) - {ARTIFACTS}
        if names != set(files):
            raise ArtifactError(f"{mar.name}: {sorted(names ^ set(files))} differ from the list in {ARTIFACTS}")
        total = sum(archive.getinfo(name).file_size for name in names)
        with progress(f"hash {mar.name}", total, "B") as bar:
            for name, expected in files.items():
                digest = hashlib.sha256()
                with archive.open(name) as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
                        bar.update(len(block))
                if digest.hexdigest() != expected:
                    raise ArtifactError(f"{mar.name}: {name} has sha256 {digest.hexdigest()}, expected {expected}")
        content = json.loads(archive.read(MANIFEST))
        manifest = content.get("model") if isinstance(content, dict) else None
    named = (manifest.get("modelName"), manifest.get("modelVersion")) if isinstance(manifest, dict) else ()
    if named != (artifacts["name"], artifacts["version"]):
        raise ArtifactError(f"{mar.name}: {MANIFEST} and {ARTIFACTS} name different models")


def _run(folder: Path, artifacts: dict[str, Any]) -> dict[str, Any]:
    # -I: neither PYTHONPATH nor the current folder nor user packages.
    command = [sys.executable, "-I", "-c", _CHILD, str(folder), str(PHOTOGRAPH)]
    done = subprocess.run(
        [*command, artifacts["name"], artifacts["version"]], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ArtifactError(f"the archive does not run: {lines[-1] if lines else f'exit {done.returncode}'}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    if result["strays"]:
        raise ArtifactError(f"the archive takes {', '.join(result['strays'])} from elsewhere than itself")
    if result["status"] != 200:
        raise ArtifactError(f"the archive answers {result['status']} to the known photograph: {result['body']}")
    body: dict[str, Any] = result["body"]
    return body


def _iou(a: list[float], b: tuple[float, float, float, float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(0.0, width) * max(0.0, height)
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return overlap / (areas - overlap)
