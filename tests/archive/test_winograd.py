"""Graphs for ncnn: what they are made of, and what is refused."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from archive import winograd
from archive.checkpoint import Checkpoint
from archive.network import LEVELS
from archive.pack import Recipe, pack, read_artifacts
from archive.programs import Program
from archive.winograd import Source
from handler.config import Settings
from handler.engines.base import TensorSpec
from handler.engines.winograd import Description, Port
from handler.errors import ArtifactError, EnvironmentFault

GRAPHS = ("trunk", "score_head", "box_head", "centerface")


class Halved(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * self.factor)


def halved(factor: float = 0.5) -> Source:
    x, y = (TensorSpec(name, torch.float32, ("n", 2, "h", "w")) for name in ("x", "y"))
    program = Program("half", (x,), (y,), (1, 3, 4), ((2, 3, 5), (1, 1, 1)), 1e-4)
    return Source(
        program,
        Halved(factor),
        ([(1, 2, 3, 4)], [(1, 2, 7, 5)]),
        (Port(x, "in0"),),
        (Port(y, "out0"),),
        100,
        lambda feeds: [torch.relu(feeds["x"] / 2)],
    )


def test_a_graph_that_differs_is_not_kept(tmp_path: Path) -> None:
    written = winograd._write([halved()], tmp_path / "good")
    assert (
        sorted(written) == sorted(path.name for path in (tmp_path / "good").iterdir()) == sorted(winograd.names("half"))
    )
    with pytest.raises(ArtifactError, match=r"half: .*'y' differs by .* over 0.0001, of inputs \[\[2, 2, 3, 5\]\]"):
        winograd._write([halved(0.501)], tmp_path / "bad")
    with pytest.raises(ArtifactError, match="'y' differs by nan"):
        winograd._write(
            [dataclasses.replace(halved(), reference=lambda feeds: [feeds["x"] * float("nan")])], tmp_path / "bad"
        )
    assert not (tmp_path / "bad").exists() or not any((tmp_path / "bad").iterdir())


def test_a_converter_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pnnx

    monkeypatch.setattr(pnnx, "EXEC_PATH", "/bin/false")
    with pytest.raises(ArtifactError, match="half: pnnx ended with 1 and said: nothing"):
        winograd._write([halved()], tmp_path)
    monkeypatch.setitem(sys.modules, "pnnx", None)
    with pytest.raises(EnvironmentFault, match="need the package pnnx"):
        winograd._write([halved()], tmp_path)
    assert not any(tmp_path.iterdir())


def test_the_graphs_are_what_they_are_for(winograd_folder: Path, seeded: Checkpoint) -> None:
    folder = winograd_folder / "graphs"
    assert sorted(path.name for path in folder.iterdir()) == sorted(n for g in GRAPHS for n in winograd.names(g))
    params = {graph: (folder / f"{graph}.param").read_text() for graph in GRAPHS}
    # The deep heads' convolution is there once, and no convolution is dilated, which Winograd's method cannot do.
    for graph, channels in (("score_head", 512), ("box_head", 512)):
        assert params[graph].count(f"6={channels * channels * 9}") == 1
    assert not any(" 2=2 " in line for line in params["score_head"].splitlines() if line.startswith("Convolution"))
    # The weights are FP32, and each of the parts that act is there once, but for the four phases of two convolutions.
    network = seeded.network()
    phases = (
        3 * 4 * (network.score_head.conv_SSH.conv2.weight.numel() + network.score_head.conv_SSH.conv2_2.weight.numel())
    )
    numbers = 4 * sum(p.numel() for p in network.score_head.parameters()) + phases
    assert numbers <= (folder / "score_head.bin").stat().st_size < numbers + 10_000
    described = Description.load(folder / "trunk.json")
    assert [port.spec.name for port in described.outputs] == list(LEVELS)
    assert all(port.packed for port in described.outputs)


def test_a_dilated_convolution_in_the_wrong_order_is_found(
    seeded: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Channels of the phases interleaved, as torch has them."""
    score_head = winograd._parts(seeded.network(), seeded.network())[1]
    monkeypatch.setattr(winograd, "_by_phases", lambda param: param)
    small = dataclasses.replace(score_head.program, examples=((1, 5, 6),))
    with pytest.raises(ArtifactError, match=r"score_head: .* differs by"):
        winograd._write([dataclasses.replace(score_head, program=small)], tmp_path)


def test_an_archive_carries_this_engine_alone(winograd_folder: Path, settings: Settings, tmp_path: Path) -> None:
    graphs = {name: winograd_folder / "graphs" / name for graph in GRAPHS for name in winograd.names(graph)}
    recipe = Recipe("mogface", "1.0", dataclasses.replace(settings, engine="winograd"), graphs)
    pack(recipe, tmp_path / "mogface.mar")
    artifacts = read_artifacts(tmp_path / "mogface.mar")
    assert artifacts["engine"] == "winograd"
    assert {name for name in artifacts["files"] if name.startswith("graphs/")} == {f"graphs/{name}" for name in graphs}
    assert {name for name in artifacts["files"] if "/engines/" in name} == {
        f"handler/engines/{name}.py" for name in ("__init__", "base", "winograd")
    }
    (tmp_path / "mogface.mar").unlink()


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        winograd._write([halved()], tmp_path / name)
    for each in winograd.names("half"):
        assert (tmp_path / "first" / each).read_bytes() == (tmp_path / "second" / each).read_bytes()
