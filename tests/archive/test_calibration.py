from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from archive import calibration
from archive.calibration import Calibration, pictures
from archive.network import LEVELS
from handler.config import Settings
from handler.errors import ConfigError
from handler.geometry import letterbox, place
from tests.photographs import compose


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    Image.fromarray(compose(0, 192, 128)[0]).save(tmp_path / "b" / "0.png")
    Image.fromarray(compose(1, 128, 256)[0]).save(tmp_path / "a.JPG", "JPEG")
    (tmp_path / "notes.txt").write_text("x")
    return tmp_path


def test_pictures_are_found_at_any_depth(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [path.name for path in pictures(folder)] == ["a.JPG", "0.png"]
    for number in range(10):
        (folder / f"c{number}.png").touch()
    monkeypatch.setattr(calibration, "ENOUGH", 4)
    assert [path.name for path in pictures(folder)] == ["a.JPG", "c1.png", "c4.png", "c7.png"]


def test_a_graph_sees_what_it_will_see(mogface_folder: Path, folder: Path, settings: Settings) -> None:
    graphs = {name: mogface_folder / "graphs" / f"{name}.onnx" for name in ("trunk", "score_head", "box_head")}
    source = Calibration(graphs, pictures(folder)[1:], settings)
    image = np.asarray(Image.open(folder / "b" / "0.png"))
    for graph, fill in (("trunk", (124, 116, 104)), ("centerface", (0, 0, 0))):
        (feeds,) = source.feeds(graph)
        (canvas,) = [each for each in settings.canvases if each == (128, 96)]
        assert np.array_equal(feeds["image"][0], letterbox(image, place(192, 128, canvas), fill))
    levels = [feeds["level"] for feeds in source.feeds("score_head")]
    contexts = [feeds["context"] for feeds in source.feeds("box_head")]
    assert len(levels) == len(contexts) == len(LEVELS)
    assert levels[0].shape == (1, 256, 32, 24)
    assert contexts[0].shape == (1, 512, 32, 24)
    assert contexts[0].min() == 0 < contexts[0].max()


def test_what_is_missing_or_damaged_is_named(mogface_folder: Path, folder: Path, settings: Settings) -> None:
    with pytest.raises(ConfigError, match="trunk's FP32 graph is missing"):
        next(Calibration({}, pictures(folder), settings).feeds("score_head"))
    (folder / "a.JPG").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"a\.JPG: .*remove it from the calibration pictures"):
        next(Calibration({}, pictures(folder), settings).feeds("centerface"))
