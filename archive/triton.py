"""An archive -> a Triton model repository: the same graphs, settings and handler code under another server.

Two models come of one archive. ``NAME`` takes encoded photographs. ``NAME_tensor`` takes float pixels that the caller
has decoded and scaled to the archive's square canvas. Both answer the JSON of the TorchServe handler and the
same faces as tensors. Field names of ``config.pbtxt`` are those of Triton's ``model_config.proto``.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import handler
from archive.files import whole
from archive.pack import DAMAGE, read_artifacts, read_settings
from archive.verify import PHOTOGRAPH
from handler import artifacts
from handler.config import Settings
from handler.errors import ArtifactError, ConfigError
from handler.geometry import Canvas

MODEL = Path(__file__).resolve().parents[1] / "deploy" / "triton" / "model.py"
CONFIG = "config.pbtxt"
#: What of a warm-up request lies beside the versions, where Triton looks for it.
WARM_UP = Path("warmup") / "photograph"
#: Answers, a row an image: JSON; status of HTTP; how many of the row's faces are real; the faces.
_OUTPUTS = (
    ("faces", "TYPE_STRING", "[ 1 ]"),
    ("status", "TYPE_INT32", "[ 1 ]"),
    ("count", "TYPE_INT32", "[ 1 ]"),
    ("boxes", "TYPE_FP32", "[ -1, 4 ]"),
    ("scores", "TYPE_FP32", "[ -1 ]"),
    ("landmarks", "TYPE_FP32", "[ -1, 5, 2 ]"),
)
#: Requests that wait for a batch; one more is refused at once. As job_queue_size of config.properties.
_QUEUE = 100


@dataclass(frozen=True)
class Plan:
    """How Triton is to run the models.

    Attributes:
        gpus: on each of which there are ``instances``; 0 runs on the CPU.
        instances: processes with the network in them, a GPU, or in all on a CPU.
        max_batch: images that one call of an instance takes.
        preferred: batch sizes that are run at once, without waiting for more.
        delay_us: that a request waits at most for others to fill a batch, microseconds.
        version: number of the version folder. Triton serves the highest there is.

    Raises:
        ConfigError: a number out of range, or a preferred size over ``max_batch``.
    """

    gpus: int = 0
    instances: int = 1
    max_batch: int = 8
    preferred: tuple[int, ...] = (4, 8)
    delay_us: int = 500
    version: int = 1

    def __post_init__(self) -> None:
        for name, least in {"gpus": 0, "instances": 1, "max_batch": 1, "delay_us": 0, "version": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected {least} or more")
        wrong = [size for size in self.preferred if not 1 <= size <= self.max_batch]
        if wrong:
            raise ConfigError(f"preferred batch size {wrong[0]}: expected 1 to max_batch, which is {self.max_batch}")

    @classmethod
    def of(
        cls,
        gpus: int = 0,
        instances: int | None = None,
        max_batch: int | None = None,
        preferred: Sequence[int] | None = None,
        delay_us: int = 500,
        version: int = 1,
    ) -> Plan:
        """With what is usual for GPUs, or for a CPU, where None: a CPU gains nothing from large batches.

        Two instances a GPU, so that one decodes while the other's network runs.
        """
        max_batch = max_batch if max_batch is not None else 32 if gpus else 8
        if preferred is None:
            preferred = [size for size in ((4, 8, 16) if gpus else (4, 8)) if size <= max_batch]
        instances = instances if instances is not None else 2 if gpus else 1
        return cls(gpus, instances, max_batch, tuple(preferred), delay_us, version)


def write(mar: Path, output: Path, plan: Plan) -> list[tuple[Path, bool]]:
    """Write both models of an archive into a repository, beside other models and versions that are there.

    Args:
        mar: the archive.
        output: the repository.
        plan: how they are to run.

    Returns:
        Each model's folder, and whether its version had to be written.

    Raises:
        ArtifactError: a damaged archive, one packed from other handler code than this, which the entry file would not
            fit, or a version of that number which is another.
        ConfigError: an archive without a square canvas of its long side, which the tensor model needs.
    """
    name, settings = str(read_artifacts(mar)["name"]), read_settings(mar)
    side = settings.long_side
    if Canvas(side, side) not in settings.canvases:
        listed = ", ".join(map(str, settings.canvases))
        raise ConfigError(f"{mar.name} has the canvases {listed}: {name}_tensor needs {side}x{side}, its long side's")
    output.mkdir(parents=True, exist_ok=True)
    done = []
    with tempfile.TemporaryDirectory(prefix=".mogface-triton-", dir=output) as scratch:
        version = Path(scratch) / "version"
        try:
            with zipfile.ZipFile(mar) as archive:
                archive.extractall(version)
        except DAMAGE as error:
            raise ArtifactError(f"{mar.name} is damaged: {error}") from error
        artifacts.check(version)
        _require_own_code(mar, version)
        shutil.copyfile(MODEL, version / "model.py")
        for model, pixels in ((name, 0), (f"{name}_tensor", side)):
            folder = output / model
            done.append((folder, _version(version, folder / str(plan.version), Path(scratch) / model)))
            if not pixels:
                with whole(folder / WARM_UP) as draft:
                    photograph = PHOTOGRAPH.read_bytes()
                    # As texts lie in a tensor: each after its length.
                    draft.write_bytes(struct.pack("<I", len(photograph)) + photograph)
            # Last: a folder without it is no model to Triton.
            with whole(folder / CONFIG) as draft:
                draft.write_text(config(model, settings, plan, pixels), encoding="utf-8")
    return done


def _require_own_code(mar: Path, unpacked: Path) -> None:
    package = Path(handler.__path__[0])
    for path in sorted((unpacked / "handler").rglob("*.py")):
        mine = package / path.relative_to(unpacked / "handler")
        if not mine.is_file() or not filecmp.cmp(path, mine, shallow=False):
            inside = path.relative_to(unpacked)
            raise ArtifactError(f"{mar.name} was packed from another {inside} than this: `mogface-archive build` first")


def _version(source: Path, target: Path, draft: Path) -> bool:
    """Put a version in its place, whole; False where it is there already."""
    if target.exists():
        if not _same(source, target):
            raise ArtifactError(f"{target} is another version of the model: give --number, or remove that folder")
        return False
    # Links, so that both models hold the weights once; each is whole by itself when it is copied elsewhere.
    shutil.copytree(source, draft, copy_function=os.link)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(target)
    return True


def _same(a: Path, b: Path) -> bool:
    names = [
        {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        for root in (a, b)
    ]
    return names[0] == names[1] and not any(filecmp.cmpfiles(a, b, sorted(names[0]), shallow=False)[1:])


def config(name: str, settings: Settings, plan: Plan, pixels: int = 0) -> str:
    """``config.pbtxt`` of a model.

    Args:
        name: of the model.
        settings: of its archive.
        plan: how it is to run.
        pixels: side of the tensor it takes, px; 0 takes photographs.
    """
    kind, gpus = ("KIND_GPU", f" gpus: {list(range(plan.gpus))}") if plan.gpus else ("KIND_CPU", "")
    if pixels:
        given, warm_up = ("pixels", "TYPE_FP32", f"[ 3, {pixels}, {pixels} ]"), "zero_data: true"
    else:
        given, warm_up = ("image", "TYPE_STRING", "[ 1 ]"), f'input_data_file: "{WARM_UP.name}"'
    outputs = ",\n".join(f'  {{ name: "{each}" data_type: {type} dims: {dims} }}' for each, type, dims in _OUTPUTS)
    return f"""\
# {" ".join(settings.weights.split())}, {settings.engine} {settings.precision}; written by `mogface-archive triton`.
name: "{name}"
backend: "python"
max_batch_size: {plan.max_batch}
input [
  {{ name: "{given[0]}" data_type: {given[1]} dims: {given[2]} }}
]
output [
{outputs}
]
dynamic_batching {{
  preferred_batch_size: {list(plan.preferred)}
  max_queue_delay_microseconds: {plan.delay_us}
  default_queue_policy {{ max_queue_size: {_QUEUE} }}
}}
instance_group [ {{ count: {plan.instances} kind: {kind}{gpus} }} ]
version_policy {{ latest {{ num_versions: 1 }} }}
model_warmup [
  {{
    name: "one"
    batch_size: 1
    inputs {{ key: "{given[0]}" value {{ data_type: {given[1]} dims: {given[2]} {warm_up} }} }}
  }}
]
"""
