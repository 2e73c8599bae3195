"""The network's weights: the released file, one of the caller's, or seeded ones for tests."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import torch
from torch import Tensor

from archive.files import sha256
from archive.network import PREFIXES, Network
from handler.errors import ArtifactError, ConfigError, EnvironmentFault

MODEL_ID = "damo/cv_resnet101_face-detection_cvpr22papermogface"
FILE = "pytorch_model.pt"
#: The released detector's score threshold: seeded weights fire in relation to it.
THRESHOLD = 0.82
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PROBE_SECONDS = 3.0
# Deviation of the logits that seeded weights give, over images and levels: measured, 0.7 to 1.0.
_LOGIT_DEVIATION = 0.85

_SIDE_OUTPUTS = ((256, "0"), (512, "1"), (1024, "2"), (2048, "3"), (256, "4"), (256, "5"))
#: Parts of the released file that never act: side outputs used in training alone, and three convolutions
#: of each deep head, whose first one takes their place.
DEAD: Mapping[str, tuple[int, ...]] = {
    **{f"fpn.dsfd_modules.{i}.weight": (256, channels, 3, 3) for channels, i in _SIDE_OUTPUTS},
    **{f"fpn.dsfd_modules.{i}.bias": (256,) for _, i in _SIDE_OUTPUTS},
    **{
        f"pred_net.deep_{head}_head.conv{i}.{leaf}": shape
        for head in ("cls", "loc")
        for i in (2, 3, 4)
        for leaf, shape in (("weight", (512, 512, 3, 3)), ("bias", (512,)))
    },
}


@dataclass(frozen=True)
class Checkpoint:
    """Checked weights.

    Attributes:
        state: the acting tensors by their released names, float32 (BatchNorm's counters int64), on the CPU.
        label: where they came from, as every answer of the archive says it.
    """

    state: Mapping[str, Tensor]
    label: str

    def network(self) -> Network:
        """The network with these weights."""
        return Network.of(self.state)

    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of names and values: equal for equal weights, wherever they came from."""
        digest = hashlib.sha256()
        for key in sorted(self.state):
            digest.update(key.encode())
            digest.update(self.state[key].numpy().tobytes())
        return digest.hexdigest()


def table() -> dict[str, tuple[int, ...]]:
    """All 728 names of the released state dict and their shapes."""
    parts = zip(Network.empty(), PREFIXES, strict=True)
    acting = {p + key: tuple(value.shape) for part, p in parts for key, value in part.state_dict().items()}
    return {**acting, **DEAD}


def obtain(source: str) -> Checkpoint:
    """The weights that ``source`` names.

    Args:
        source: ``hub``, ``seeded:N`` or a file.

    Raises:
        ConfigError: ``source`` is none of these.
        ArtifactError: a file that is not the network's.
        EnvironmentFault: the hub cannot be reached, or its package is missing.
    """
    scheme, _, rest = source.partition(":")
    if source == "hub":
        return released()
    if scheme == "seeded" and rest.isdecimal():
        return seeded(int(rest))
    if Path(source).is_file():
        return from_file(Path(source))
    raise ConfigError(f"weights are {source!r}: expected hub, seeded:N with a whole number, or a file that exists")


def released(cache: Path | None = None) -> Checkpoint:
    """The released weights, from ModelScope's cache or else its hub.

    Args:
        cache: ModelScope's cache folder; its own rule where None (``MODELSCOPE_CACHE``, or the home folder).

    Raises:
        EnvironmentFault: not in the cache, and the hub does not answer within three seconds, or fails.
        ArtifactError: what came is not the network's file.
    """
    state = _read(download(cache))
    return Checkpoint(state, f"modelscope:{MODEL_ID}")


def download(cache: Path | None = None) -> Path:
    """Where the released file lies, downloaded if need be. Arguments and errors as for :func:`released`."""
    root = cache or Path(os.environ.get("MODELSCOPE_CACHE") or Path.home() / ".cache" / "modelscope")
    # ModelScope makes its folders on import, and more before it knows whether it can fill them.
    with _no_empty_folders(root):
        try:
            from modelscope.hub.file_download import model_file_download
            from modelscope.hub.utils.utils import get_endpoint
        except ImportError as error:
            raise EnvironmentFault(
                "the released weights need the package modelscope: pip install '.[mogface]'"
            ) from error
        folder = None if cache is None else str(cache)
        # Without a revision it would ask the hub even for what is in its cache.
        where = {"model_id": MODEL_ID, "file_path": FILE, "revision": "master", "cache_dir": folder}
        with contextlib.suppress(Exception):
            return Path(model_file_download(**where, local_files_only=True))
        endpoint = os.environ.get("MODELSCOPE_ENDPOINT") or get_endpoint()
        reason = _unreachable(endpoint)
        try:
            if reason is None:
                return Path(model_file_download(**where))
        except Exception as error:  # noqa: BLE001 - requests', the hub's and the system's own classes
            reason = f"{type(error).__name__}: {error}"
    raise EnvironmentFault(
        f"the released weights are not in {root} and {endpoint} gives none ({reason}). On a machine that reaches it, "
        f"download the file {FILE} (342 MB) of the model {MODEL_ID}, copy it here and pass its path: --file PATH, or "
        "WEIGHTS=PATH to make"
    )


def from_file(path: Path) -> Checkpoint:
    """Weights from a file that holds the released state dict's names and shapes.

    Raises:
        ArtifactError: it is missing, damaged, holds code, or has other names, shapes or types.
    """
    state = _read(path)
    return Checkpoint(state, f"file:{path.name} sha256:{sha256(path)[:8]}")


def seeded(seed: int, firing: float = 0.02) -> Checkpoint:
    """Untrained weights of the full size, the same for the same seed.

    Activations keep a scale near 1 through the whole depth: convolutions have He's deviation, and each
    tap's weights sum to zero over the channels, which takes away the mean that ReLU gives and with it
    the drift of all inputs towards one answer.

    Args:
        seed: 0 or more.
        firing: the share of anchors, roughly, whose score passes 0.82; levels of few anchors often have none.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, shape in table().items():
        if key not in DEAD:
            state[key] = _draw(key.rsplit(".", 1)[1], shape, generator)
    # The network's input is about 0.01, which the first BatchNorm has to bring to 1.
    state["backbone.bn1.running_mean"] *= 0.01
    state["backbone.bn1.running_var"] *= 0.0001
    for key, tensor in state.items():
        if key.endswith("bn3.weight"):
            # 33 residual branches add up.
            tensor *= 0.3
    state["pred_net.pred_loc.weight"] *= 0.3
    quantile = NormalDist(0, _LOGIT_DEVIATION).inv_cdf(1 - firing)
    state["pred_net.pred_cls.bias"].fill_(math.log(THRESHOLD / (1 - THRESHOLD)) - quantile)
    return Checkpoint(state, f"seeded:{seed} (not trained)")


def _draw(leaf: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if leaf == "num_batches_tracked":
        return torch.tensor(0)
    if len(shape) == 4:
        weight = torch.randn(shape, generator=generator) * math.sqrt(2 / math.prod(shape[1:]))
        return weight - weight.mean(1, keepdim=True)
    if leaf in ("weight", "running_var"):
        return torch.rand(shape, generator=generator) * 0.4 + 0.8
    return torch.randn(shape, generator=generator) * 0.02


def _read(path: Path) -> dict[str, Tensor]:
    """The acting tensors of a file, checked.

    Raises:
        ArtifactError: as :func:`from_file`.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: no such file of weights") from error
    except pickle.UnpicklingError as error:
        # Torch's message goes on about how to load it all the same, which would run what the file holds.
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"{found[1]} beside tensors" if found else "something that is no tensor"
        raise ArtifactError(f"{path}: damaged, or holds {what}; only plain tensors are loaded") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ArtifactError(f"{path}: damaged or no file of PyTorch weights: {reason}") from error
    expected = table()
    _check(path, state, expected)
    return {key: _counted(key, state) for key in expected if key not in DEAD}


def _counted(key: str, state: Mapping[str, Tensor]) -> Tensor:
    # Files written before PyTorch 0.4.1 lack BatchNorm's counters, which act in training alone.
    return state[key].detach().float() if key in state and not _is_counter(key) else torch.tensor(0)


def _is_counter(key: str) -> bool:
    return key.endswith(".num_batches_tracked")


def _check(path: Path, state: object, expected: Mapping[str, tuple[int, ...]]) -> None:
    if not isinstance(state, Mapping):
        raise ArtifactError(f"{path}: holds a {type(state).__name__}, expected the state dict of MogFace")
    missing = [key for key in expected if key not in state and not _is_counter(key)]
    unexpected = [str(key) for key in state if key not in expected]
    if missing or unexpected:
        first = f"{missing[0]!r} is missing" if missing else f"{unexpected[0]!r} is unexpected"
        raise ArtifactError(
            f"{path}: not MogFace's state dict: {len(missing)} of its {len(expected)} tensors are missing and "
            f"{len(unexpected)} others are there; first, {first}"
        )
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ArtifactError(f"{path}: {key!r} is a {type(value).__name__}, expected a tensor")
        if tuple(value.shape) != expected[key]:
            raise ArtifactError(f"{path}: {key!r} is {list(value.shape)}, expected {list(expected[key])}")
        if _is_counter(key):
            continue
        plain = value.layout == torch.strided and value.device.type == "cpu" and value.dtype in _FLOATS
        # As float32, which is what it becomes.
        if not plain or not torch.isfinite(value.detach().float()).all():
            raise ArtifactError(f"{path}: {key!r} has {value.dtype} values, expected finite floating-point ones")


def _unreachable(url: str) -> str | None:
    """Why an HTTP server cannot be reached, or None. Takes three seconds at most."""
    answer: list[str | None] = []

    def ask() -> None:
        try:
            # The address is the hub's, out of its library's settings.
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310
            with urllib.request.urlopen(request, timeout=_PROBE_SECONDS):  # noqa: S310
                answer.append(None)
        except urllib.error.HTTPError:
            # It answered: that is all that is asked.
            answer.append(None)
        except (OSError, ValueError) as error:
            answer.append(str(error))

    # A name that is looked up in vain holds its caller for longer than any timeout of the connection.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    return answer[0] if answer else f"no answer within {_PROBE_SECONDS:g} s"


@contextlib.contextmanager
def _no_empty_folders(root: Path) -> Iterator[None]:
    """Folders in ``root``, itself included, that the block made and left empty are gone after it."""
    before = {root, *root.rglob("*/")} if root.exists() else set()
    try:
        yield
    finally:
        made = {root, *root.rglob("*/")} - before if root.exists() else set()
        for folder in sorted(made, key=lambda path: len(path.parts), reverse=True):
            # rmdir refuses a folder with anything in it.
            with contextlib.suppress(OSError):
                folder.rmdir()
