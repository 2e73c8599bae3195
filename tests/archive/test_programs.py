"""The graphs as PyTorch programs: what they are made of, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from archive import checkpoint, programs
from archive.checkpoint import Checkpoint
from archive.files import sha256
from archive.network import LEVELS
from archive.programs import Program
from handler.engines.base import TensorSpec
from handler.engines.torch_engine import TENSORS, TorchEngine
from handler.errors import ArtifactError, ConfigError

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
NAMES = ("trunk", "score_head", "box_head", "centerface")
HALF = Program(
    "half",
    (TensorSpec("x", torch.float32, ("n", "h")),),
    (TensorSpec("y", torch.float32, ("n", "h")),),
    (2, 3, 1),
    ((1, 1, 1), (2, 5, 1)),
    1e-4,
)


class Halved(nn.Module):
    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x * self.factor,)


def halved(feeds: Mapping[str, Tensor]) -> Sequence[Tensor]:
    return (feeds["x"] / 2,)


def test_a_program_says_what_it_takes_and_gives(programs_folder: Path) -> None:
    for program in programs.table(torch.float32):
        with zipfile.ZipFile(programs_folder / "graphs" / f"{program.name}.pt2") as file:
            [member] = [name for name in file.namelist() if name.endswith(TENSORS)]
            described = json.loads(file.read(member))
        assert [row["name"] for row in described["inputs"]] == [spec.name for spec in program.inputs]
        assert [row["name"] for row in described["outputs"]] == [spec.name for spec in program.outputs]
        engine = TorchEngine(programs_folder / "graphs" / f"{program.name}.pt2", CPU, 1)
        assert list(engine.inputs.values()) == list(program.inputs)
        assert list(engine.outputs.values()) == list(program.outputs)


@pytest.mark.parametrize("name", ["score_head", "box_head", "centerface"])
def test_equal_weights_give_equal_bytes(
    seeded: Checkpoint, programs_folder: Path, mogface_folder: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"{name}.pt2"
    if name == "centerface":
        programs.export_centerface(mogface_folder / "graphs" / "centerface.onnx", tmp_path)
    else:
        part = ("trunk", "score_head", "box_head").index(name)
        program, network = programs.table(torch.float32)[part], seeded.network()
        module = programs.part(network, part, torch.float32)
        programs.write(program, module, programs.eager(seeded.network()[part]), path)
    assert sha256(path) == sha256(programs_folder / "graphs" / path.name)


def test_a_program_says_nothing_of_the_machine_it_was_made_on(programs_folder: Path) -> None:
    """Stack traces would: paths, and lines that move with every change of a source."""
    for name in NAMES:
        with zipfile.ZipFile(programs_folder / "graphs" / f"{name}.pt2") as file:
            notes = [file.read(each) for each in file.namelist() if each.endswith(".json")]
            times = {each.date_time for each in file.infolist()}
        assert len(notes) >= 3
        assert not any(word in note for note in notes for word in (b".py", b"site-packages", str(ROOT).encode()))
        assert len(times) == 1


def test_the_weights_are_left_as_they_were(seeded: Checkpoint) -> None:
    before = seeded.fingerprint()
    for index in range(3):
        programs.part(seeded.network(), index, torch.float16)
    assert seeded.fingerprint() == before
    assert all(value.dtype != torch.float16 for value in seeded.network().trunk.state_dict().values())


def test_batch_norm_is_folded_away(programs_folder: Path) -> None:
    exported = torch.export.load(programs_folder / "graphs" / "trunk.pt2")
    kinds = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "aten.conv2d.default" in kinds
    assert not any("norm" in kind for kind in kinds)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_program_is_tied_to_the_cpu(programs_folder: Path, name: str) -> None:
    """Moved as to a GPU, to the device that has shapes alone: what stayed behind would not meet it."""
    [program] = [each for each in programs.table(torch.float32) if each.name == name]
    exported = torch.export.load(programs_folder / "graphs" / f"{name}.pt2")
    module = move_to_device_pass(exported, torch.device("meta")).module(check_guards=False)
    feeds = programs.examples(program, program.examples[0])
    answer = module(*(tensor.to("meta") for tensor in feeds.values()))
    assert len(answer) == len(program.outputs)
    assert all(value.device.type == "meta" for value in answer)
    with pytest.raises(RuntimeError):
        module(*feeds.values())


def test_half_precision_inside_and_full_at_the_ends(tmp_path: Path) -> None:
    """A head of half precision, proven on a few cells: a CPU takes some thirty times as long for it."""
    network, reference = (checkpoint.seeded(3).network() for _ in range(2))
    program = programs.table(torch.float16)[1]
    path = tmp_path / "score_head.pt2"
    programs.write(program, programs.part(network, 1, torch.float16), programs.eager(reference.score_head), path)
    engine = TorchEngine(path, CPU, 2)
    assert engine.inputs["level"].dtype == engine.outputs["context"].dtype == torch.float16
    assert engine.outputs["scores"].dtype == torch.float32
    weights = list(engine._module.state_dict().values())
    assert weights
    assert all(value.dtype == torch.float16 for value in weights)
    trunk = programs.part(network, 0, torch.float16)
    assert {value.dtype for name, value in trunk.named_buffers() if name in ("trunk.mean", "trunk.deviation")} == {
        torch.float32
    }
    assert {value.dtype for value in trunk.parameters()} == {torch.float16}
    specs = {spec.name: spec.dtype for program in programs.table(torch.float16) for spec in program.outputs}
    assert {specs[name] for name in LEVELS} == {torch.float16}
    assert {specs[name] for name in ("scores", "offsets", "heatmap", "points")} == {torch.float32}


def test_a_program_that_differs_is_not_kept(tmp_path: Path) -> None:
    programs.write(HALF, Halved(), halved, tmp_path / "good.pt2")
    with pytest.raises(ArtifactError, match=r"half: .*'y' differs by .* over 0.0001, of inputs \[\[1, 1\]\]"):
        programs.write(HALF, Halved(0.501), halved, tmp_path / "bad.pt2")
    wrong = dataclasses.replace(HALF, outputs=(TensorSpec("y", torch.float16, ("n", "h")),))
    with pytest.raises(ArtifactError, match=r"'y' is .*float32, expected \[1, 1\] torch.float16"):
        programs.write(wrong, Halved(), halved, tmp_path / "bad.pt2")
    with pytest.raises(ArtifactError, match="'y' differs by nan"):
        programs.write(HALF, Halved(float("nan")), halved, tmp_path / "bad.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["good.pt2"]


def test_another_precision_is_refused(seeded: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"int8.*fp32 or fp16"):
        programs.export_mogface(seeded, tmp_path, "int8")
    assert list(tmp_path.iterdir()) == []
