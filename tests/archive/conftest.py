from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from scipy import io

from archive import build
from archive.average_precision import Float64
from archive.build import Build, Wanted, Workspace
from archive.pack import Recipe
from archive.precision import convert
from archive.subject import Subject
from handler.config import Settings
from handler.detectors.centerface import CenterFace
from handler.engines.ort import OrtEngine
from handler.geometry import Canvas
from handler.options import Options
from tests.photographs import compose

ROOT = Path(__file__).parents[2]
MOGFACE = ("trunk", "score_head", "box_head")
GRAPHS = (*MOGFACE, "centerface")


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The repository's weights and graphs, which git ignores, and a model store of its own."""
    return Workspace(ROOT / "build", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def mar(workspace: Workspace) -> Path:
    """The embedded detector's archive as users build it."""
    path, written = Build(Wanted("centerface"), workspace).archive()
    assert written
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Of an archive that is right in form, though its graph is none."""
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(bytes(range(256)) * 20)
    settings = Settings("centerface", "none", Options(score_threshold=0.5, nms_threshold=0.3))
    return Recipe("faces", "1.0", settings, {"centerface.onnx": graph})


@dataclass(frozen=True)
class WiderFolder:
    """A small data set in WIDER FACE's form.

    Attributes:
        path: of the folder.
        faces: for each picture [N, 4] float64, x y w h, px.
    """

    path: Path
    faces: list[Float64]


def write_wider(folder: Path, count: int) -> WiderFolder:
    """Composed photographs in two events; the first face of each is easy, all are medium and hard."""
    events = {event: list(range(count))[start::2] for start, event in enumerate(("0--Composed", "1--Composed"))}
    events = {event: numbers for event, numbers in events.items() if numbers}
    lines: list[str] = []
    faces: dict[str, list[Float64]] = {event: [] for event in events}
    for event, numbers in events.items():
        images = folder / "WIDER_val" / "images" / event
        images.mkdir(parents=True)
        for number in numbers:
            picture, boxes = compose(500 + number)
            Image.fromarray(picture).save(images / f"{number}.jpg", quality=95)
            rows = np.round(np.column_stack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])).astype(np.float64)
            faces[event].append(rows)
            lines += [f"{event}/{number}.jpg", str(len(rows))]
            lines += [" ".join(f"{value:.0f}" for value in row) + " 0 0 0 0 0 0" for row in rows]
    (folder / "wider_face_split").mkdir()
    (folder / "wider_face_split" / "wider_face_val_bbx_gt.txt").write_text("\n".join(lines) + "\n")
    (folder / "eval_tools" / "ground_truth").mkdir(parents=True)
    truth = folder / "eval_tools" / "ground_truth"
    cells = {
        "event_list": cell([np.array([event]) for event in events]),
        "file_list": cell([cell([np.array([str(number)]) for number in each]) for each in events.values()]),
        "face_bbx_list": cell([cell(faces[event]) for event in events]),
    }
    io.savemat(truth / "wider_face_val.mat", cells)
    for name in ("easy", "medium", "hard"):
        kept = [[np.arange(1, 2 if name == "easy" else len(each) + 1) for each in faces[event]] for event in events]
        numbered = cell([cell([numbers[:, None] for numbers in each]) for each in kept])
        io.savemat(truth / f"wider_{name}_val.mat", {"gt_list": numbered})
    return WiderFolder(folder, [rows for event in events for rows in faces[event]])


def cell(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """MATLAB's column of cells."""
    column = np.empty((len(values), 1), object)
    for row, value in enumerate(values):
        column[row, 0] = value
    return column


@pytest.fixture(scope="session")
def wider_folder(tmp_path_factory: pytest.TempPathFactory) -> WiderFolder:
    """Of six pictures; not to be changed."""
    return write_wider(tmp_path_factory.mktemp("wider"), 6)


@pytest.fixture
def make_wider(tmp_path: Path) -> Callable[[int], WiderFolder]:
    return lambda count: write_wider(tmp_path / "wider", count)


@pytest.fixture(scope="session")
def small() -> Settings:
    """Of a CenterFace archive with canvases of 256 px."""
    canvases = (Canvas(256, 256),)
    options = Options(score_threshold=0.5, nms_threshold=0.3, landmarks=True)
    return Settings("centerface", "none", options, device="cpu", canvases=canvases, long_side=256)


@pytest.fixture(scope="session")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures with faces."""
    folder = tmp_path_factory.mktemp("calibration")
    for seed in range(24):
        Image.fromarray(compose(seed)[0]).save(folder / f"{seed}.png")
    return folder


@pytest.fixture(scope="session")
def centerface_graphs(workspace: Workspace) -> dict[str, Path]:
    return build.export_centerface(workspace)


@pytest.fixture(scope="session")
def subject(centerface_graphs: dict[str, Path], small: Settings) -> Callable[[Path], Subject]:
    """CenterFace on any of its graphs."""

    def load(path: Path) -> Subject:
        return Subject(path.parent.name, CenterFace(small, OrtEngine(path, torch.device("cpu"), 2)))

    return load


@pytest.fixture(scope="session")
def plain(subject: Callable[[Path], Subject], centerface_graphs: dict[str, Path]) -> Subject:
    """CenterFace in FP32."""
    return subject(centerface_graphs["centerface.onnx"])


MOGFACE = ("trunk", "score_head", "box_head")
GRAPHS = (*MOGFACE, "centerface")


@pytest.fixture(scope="session")
def graphs(mogface_folder: Path) -> dict[str, Path]:
    """MogFace's and CenterFace's, FP32, by file name."""
    return {f"{name}.onnx": mogface_folder / "graphs" / f"{name}.onnx" for name in GRAPHS}


@pytest.fixture(scope="session")
def fp16(graphs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The same as they are served in FP16."""
    made = convert(graphs, tmp_path_factory.mktemp("fp16") / "graphs", "fp16")
    yield made
    for path in made.values():
        path.unlink()


@pytest.fixture(scope="session")
def int8(
    graphs: dict[str, Path], settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Path]]:
    """MogFace's, by one picture: enough for their form."""
    pictures = tmp_path_factory.mktemp("pictures")
    Image.fromarray(compose(0, 96, 128)[0]).save(pictures / "0.png")
    folder = tmp_path_factory.mktemp("int8")
    made = convert(graphs, folder, "int8", calibration=pictures, settings=settings)
    yield made
    for path in made.values():
        path.unlink()


@pytest.fixture(scope="session")
def small_int8(
    centerface_graphs: dict[str, Path], calibration: Path, small: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """CenterFace, as it would be served."""
    folder = tmp_path_factory.mktemp("int8")
    return convert(centerface_graphs, folder, "int8", calibration=calibration, settings=small)["centerface.onnx"]
