from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from archive import export
from archive.checkpoint import Checkpoint
from archive.files import sha256
from archive.network import LEVELS
from handler.engines.ort import OrtEngine
from handler.errors import ArtifactError, EngineError

CPU = torch.device("cpu")
NAMES = ("trunk", "score_head", "box_head")


@pytest.fixture(scope="module")
def engines(mogface_folder: Path) -> dict[str, OrtEngine]:
    return {name: OrtEngine(mogface_folder / "graphs" / f"{name}.onnx", CPU, 2) for name in NAMES}


def test_equal_weights_give_equal_bytes(seeded: Checkpoint, mogface_folder: Path, tmp_path: Path) -> None:
    again = export.export(seeded, tmp_path)
    assert [path.name for path in again] == [f"{name}.onnx" for name in NAMES]
    for path in again:
        assert sha256(path) == sha256(mogface_folder / "graphs" / path.name)
        assert str(tmp_path).encode() not in path.read_bytes()
        assert Path(__file__).name.encode() not in path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_only_what_acts_is_in_the_graph(mogface_folder: Path, seeded: Checkpoint, name: str) -> None:
    graph = onnx.load(str(mogface_folder / "graphs" / f"{name}.onnx")).graph
    used = {value for node in graph.node for value in node.input}
    assert {initializer.name for initializer in graph.initializer} <= used
    kinds = Counter(node.op_type for node in graph.node)
    assert not {"If", "Loop", "BatchNormalization"} & kinds.keys()
    assert kinds["InstanceNormalization"] == (0 if name == "trunk" else 4)
    assert kinds["Slice"] >= (3 if name == "trunk" else 0)
    part = seeded.network()[NAMES.index(name)]
    acting = sum(value.numel() for key, value in part.named_parameters())
    held = sum(torch.Size(initializer.dims).numel() for initializer in graph.initializer)
    # BatchNorm is folded into its convolutions; nothing is stored twice.
    assert 0.99 * acting < held < 1.01 * acting


def test_fraction_may_be_left_out(engines: dict[str, OrtEngine], mogface_folder: Path) -> None:
    trunk = engines["trunk"]
    assert not trunk.inputs["image"].optional
    assert trunk.inputs["fraction"].optional
    graph = onnx.load(str(mogface_folder / "graphs" / "trunk.onnx"), load_external_data=False).graph
    (value,) = [initializer for initializer in graph.initializer if initializer.name == "fraction"]
    assert list(value.dims) == [1, 1, 1, 1]
    assert onnx.numpy_helper.to_array(value).item() == 0
    assert [node.op_type for node in graph.node if "fraction" in node.input] == ["Add"]
    image = torch.full((1, 40, 50, 3), 100, dtype=torch.uint8)
    plain = trunk.run({"image": image})
    zeros = trunk.run({"image": image, "fraction": torch.zeros(1, 1, 1, 1)})
    # One grey level, as a fraction and in the image itself.
    more = trunk.run({"image": image, "fraction": torch.ones(1, 40, 50, 3)})
    brighter = trunk.run({"image": image + 1})
    for level in LEVELS:
        assert torch.equal(plain[level], zeros[level])
        assert torch.equal(more[level], brighter[level])
        assert not torch.equal(plain[level], more[level])


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 1, 1), (3, 31, 65), (2, 64, 96), (1, 97, 130)])
def test_the_three_graphs_are_the_network(
    engines: dict[str, OrtEngine], seeded: Checkpoint, batch: int, height: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (batch, height, width, 3), generator=generator, dtype=torch.uint8)
    network = seeded.network()
    with torch.inference_mode():
        levels = network.trunk(image)
    for name, level in engines["trunk"].run({"image": image}).items():
        scored = engines["score_head"].run({"level": level})
        offsets = engines["box_head"].run({"context": scored["context"]})["offsets"]
        stride = 4 << LEVELS.index(name)
        cells = -(-height // stride) * -(-width // stride)
        with torch.inference_mode():
            scores, context = network.score_head(levels[LEVELS.index(name)])
            expected = network.box_head(context)
        assert scored["scores"].shape == (batch, cells)
        assert offsets.shape == (batch, cells, 4)
        assert (scored["scores"] - scores).abs().max() < 1e-5
        assert (offsets - expected).abs().max() < 1e-4


def test_a_graph_that_differs_is_not_kept(seeded: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slanted(nn.Module):
        """Answers otherwise when traced."""

        def forward(self, context: torch.Tensor) -> torch.Tensor:
            factor = 1.01 if torch.onnx.is_in_onnx_export() else 1.0
            return context.mean(1).flatten(1)[:, :, None].repeat(1, 1, 4) * factor

    monkeypatch.setattr(export, "GRAPHS", export.GRAPHS[2:])
    monkeypatch.setattr(Checkpoint, "network", lambda self: (Slanted(),))
    with pytest.raises(ArtifactError, match=r"box_head: .*'offsets' differs"):
        export.export(seeded, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "expected"),
        ({"picture": torch.zeros(1, 8, 8, 3, dtype=torch.uint8)}, "picture"),
        ({"image": torch.zeros(1, 8, 8, 3)}, "torch.float32, expected torch.uint8"),
        ({"image": torch.zeros(1, 3, 8, 8, dtype=torch.uint8)}, r"\[1, 3, 8, 8\]"),
        ({"image": torch.zeros(8, 8, 3, dtype=torch.uint8)}, r"\[8, 8, 3\]"),
        ({"image": torch.zeros(1, 8, 8, 3, dtype=torch.uint8), "fraction": torch.zeros(1, 7, 8, 3)}, None),
    ],
)
def test_an_engine_refuses_what_does_not_fit(
    engines: dict[str, OrtEngine], feeds: dict[str, torch.Tensor], words: str | None
) -> None:
    with pytest.raises(EngineError, match=words):
        engines["trunk"].run(feeds)


def test_a_context_of_other_channels_is_refused(engines: dict[str, OrtEngine]) -> None:
    with pytest.raises(EngineError, match=r"\[1, 256, 4, 4\], expected \['n', 512, 'h', 'w'\]"):
        engines["box_head"].run({"context": torch.zeros(1, 256, 4, 4)})


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    with pytest.raises(ArtifactError, match=r"x\.onnx"):
        OrtEngine(path, CPU, 1)
    path.write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=r"x\.onnx"):
        OrtEngine(path, CPU, 1)
