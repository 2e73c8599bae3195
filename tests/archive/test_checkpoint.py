from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from archive import checkpoint
from archive.checkpoint import DEAD, Checkpoint, from_file, obtain, table
from archive.files import sha256
from archive.network import LEVELS
from handler.detectors import mogface
from handler.errors import ArtifactError, ConfigError, EnvironmentFault


def test_the_table_is_the_released_network_s() -> None:
    from modelscope.models.cv.face_detection.mogface.models.mogface import MogFace

    released = {key: tuple(value.shape) for key, value in MogFace().state_dict().items()}
    assert len(released) == 728
    assert table() == released
    # 24.2 million parameters never act.
    assert sum(torch.Size(shape).numel() for shape in DEAD.values()) == 24_187_392


def test_both_sides_name_the_levels_alike() -> None:
    assert LEVELS == mogface.LEVELS


def test_a_file_gives_its_own_weights(weights_file: Path, seeded: Checkpoint) -> None:
    read = from_file(weights_file)
    assert read.label == f"file:pytorch_model.pt sha256:{sha256(weights_file)[:8]}"
    assert read.state.keys() == seeded.state.keys()
    assert not read.state.keys() & DEAD.keys()
    assert all(torch.equal(read.state[key], seeded.state[key]) for key in read.state)
    assert obtain(str(weights_file)).fingerprint() == seeded.fingerprint() != checkpoint.seeded(8).fingerprint()


def _tiny(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict of the right names and shapes whose storage is one number a tensor."""
    return {key: torch.zeros(()).expand(shape) if isinstance(shape, tuple) else shape for key, shape in shapes.items()}


KEY = "pred_net.pred_loc.weight"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fpn.extra": (1,)}, ["0 of its 728", "1 others", "'fpn.extra' is unexpected"]),
        ({KEY: None}, ["1 of its 728", f"'{KEY}' is missing"]),
        ({"fpn.dsfd_modules.3.weight": None}, ["1 of its 728", "fpn.dsfd_modules.3.weight"]),
        ({KEY: (4, 512, 1, 1)}, [KEY, "[4, 512, 1, 1]", "[4, 512, 3, 3]"]),
        ({KEY: torch.zeros(4, 512, 3, 3, dtype=torch.int32)}, [KEY, "int32", "floating-point"]),
        ({KEY: torch.full((4, 512, 3, 3), float("nan"))}, [KEY, "finite"]),
        ({KEY: "text"}, [KEY, "str", "tensor"]),
    ],
)
def test_another_state_dict_is_refused_by_its_first_difference(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "x.pt"
    shapes = {key: value for key, value in {**table(), **changes}.items() if value is not None}
    torch.save(_tiny(shapes), path)
    with pytest.raises(ArtifactError) as caught:
        from_file(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_file_without_counters_or_of_half_precision_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    shapes = {key: shape for key, shape in table().items() if not key.endswith("num_batches_tracked")}
    torch.save({**_tiny(shapes), KEY: torch.ones(4, 512, 3, 3, dtype=torch.float16)}, path)
    state = from_file(path).state
    assert state[KEY].dtype == torch.float32
    assert state["backbone.bn1.num_batches_tracked"] == 0
    Checkpoint(state, "").network()


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    mark, path = tmp_path / "ran", tmp_path / "x.pt"
    torch.save({"a": Malicious(mark)}, path)
    with pytest.raises(ArtifactError, match=r"x\.pt: .*posix\.system"):
        from_file(path)
    path.write_bytes(pickle.dumps(Malicious(mark), protocol=2))
    with pytest.raises(ArtifactError, match=r"x\.pt"):
        from_file(path)
    assert not mark.exists()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "x.pt"
    torch.save({"a": torch.zeros(1000)}, whole)
    for content in (b"", b"hello", whole.read_bytes()[:-100], whole.read_bytes()[:2000]):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"x\.pt: damaged"):
            from_file(path)
    torch.save([1, 2], path)
    with pytest.raises(ArtifactError, match="holds a list"):
        from_file(path)
    with pytest.raises(ArtifactError, match="no such file"):
        from_file(tmp_path / "none.pt")


def test_without_a_network_one_message_within_five_seconds(tmp_path: Path) -> None:
    cache = tmp_path / "home" / "cache"
    # A fresh process, so that importing ModelScope counts too; nothing listens on port 9 of this machine.
    environment = {**os.environ, "MODELSCOPE_CACHE": str(cache), "MODELSCOPE_ENDPOINT": "http://127.0.0.1:9"}
    code = "from archive.checkpoint import obtain; obtain('hub')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    message = done.stderr.strip().splitlines()[-1]
    for word in ("EnvironmentFault", checkpoint.MODEL_ID, checkpoint.FILE, "--file PATH", str(cache)):
        assert word in message
    assert not cache.exists()


def test_a_hub_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(EnvironmentFault, match=checkpoint.FILE):
            checkpoint.released(tmp_path / "cache")
        assert time.monotonic() - started < 5
    assert not (tmp_path / "cache").exists()


def test_seeds_are_told_apart_and_repeat() -> None:
    first, again, other = (checkpoint.seeded(seed).state for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[KEY], other[KEY])
    assert obtain("seeded:12").label == "seeded:12 (not trained)"


@pytest.mark.parametrize("seed", [1, 2])
def test_seeded_weights_fire_here_and_there(seed: int, weights_file: Path) -> None:
    network = checkpoint.seeded(seed).network()
    image = torch.randint(0, 256, (1, 96, 128, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with torch.inference_mode():
        answers = [network.score_head(level) for level in network.trunk(image)]
        reach = max(float(network.box_head(context).abs().max()) for _, context in answers)
    scores = torch.cat([score for score, _ in answers], dim=1)
    assert 0.002 < float((scores > 0.82).float().mean()) < 0.1
    assert float(scores.std()) > 0.1
    assert reach < 3
    best = [float(score.max()) for score, _ in answers]
    assert min(best) < 0.82 < max(best)


@pytest.mark.parametrize("source", ["", "seeded", "seeded:x", "seeded:-1", "modelscope", "none.pt", "."])
def test_an_unknown_source_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="hub, seeded:N"):
        obtain(source)
