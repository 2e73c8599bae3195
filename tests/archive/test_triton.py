from __future__ import annotations

import dataclasses
import json
import shutil
import struct
import zipfile
from pathlib import Path

import pytest

import handler
from archive.build import Build, Wanted, Workspace
from archive.pack import Recipe, pack
from archive.triton import Plan, config, write
from archive.verify import PHOTOGRAPH
from handler.config import Settings
from handler.errors import ArtifactError, ConfigError
from handler.geometry import Canvas
from handler.options import Options

SETTINGS = Settings("centerface", "some weights", Options(score_threshold=0.5, nms_threshold=0.3), device="cpu")


@pytest.fixture(scope="module")
def mar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a graph that is none: nothing here runs it."""
    folder = tmp_path_factory.mktemp("mar")
    graph = folder / "graph"
    graph.write_bytes(b"graph")
    pack(Recipe("centerface", "1.0", SETTINGS, {"centerface.onnx": graph}), folder / "centerface.mar")
    return folder / "centerface.mar"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_version_is_the_archive_and_the_entry_file(mar: Path, tmp_path: Path) -> None:
    done = write(mar, tmp_path / "r", Plan())
    assert done == [(tmp_path / "r" / "centerface", True), (tmp_path / "r" / "centerface_tensor", True)]
    with zipfile.ZipFile(mar) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    for folder, _ in done:
        found = _files(folder / "1")
        assert b"class TritonPythonModel" in found.pop("model.py")
        assert found == inside
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["centerface", "centerface_tensor"]


def test_the_warm_up_is_the_photograph_after_its_length(mar: Path, tmp_path: Path) -> None:
    write(mar, tmp_path, Plan())
    content = (tmp_path / "centerface" / "warmup" / "photograph").read_bytes()
    assert struct.unpack("<I", content[:4]) == (len(content) - 4,)
    assert content[4:] == PHOTOGRAPH.read_bytes()


def test_the_same_again_is_left_and_another_refused(mar: Path, tmp_path: Path) -> None:
    write(mar, tmp_path, Plan())
    before = (tmp_path / "centerface" / "1").stat().st_mtime_ns
    # What running it leaves there is no difference.
    (tmp_path / "centerface" / "1" / "__pycache__").mkdir()
    (tmp_path / "centerface" / "1" / "__pycache__" / "model.pyc").write_bytes(b"")
    assert [written for _, written in write(mar, tmp_path, Plan(delay_us=7))] == [False, False]
    assert "microseconds: 7\n" in (tmp_path / "centerface" / "config.pbtxt").read_text()
    changed = tmp_path / "centerface" / "1" / "detector.yaml"
    content = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(content + b"# another\n")
    with pytest.raises(ArtifactError, match="another version of the model: give --number"):
        write(mar, tmp_path, Plan())
    assert [written for _, written in write(mar, tmp_path, Plan(version=2))] == [True, True]
    assert (tmp_path / "centerface" / "1").stat().st_mtime_ns >= before
    assert changed.read_bytes().endswith(b"# another\n")


def test_a_damaged_archive_leaves_no_model(mar: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "centerface.mar"
    with zipfile.ZipFile(mar) as old, zipfile.ZipFile(damaged, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"grapH" if name.endswith(".onnx") else old.read(name))
    with pytest.raises(ArtifactError, match=r"graphs/centerface\.onnx has sha256"):
        write(damaged, tmp_path / "r", Plan())
    assert list((tmp_path / "r").iterdir()) == []


def test_an_archive_of_other_code_is_refused(mar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "handler"
    shutil.copytree(handler.__path__[0], other)
    (other / "pipeline.py").write_text("# another\n")
    monkeypatch.setattr(handler, "__path__", [str(other)])
    with pytest.raises(ArtifactError, match=r"packed from another handler/pipeline\.py than this"):
        write(mar, tmp_path / "r", Plan())
    assert list((tmp_path / "r").iterdir()) == []


def test_a_tensor_needs_a_square_canvas(tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    graph.write_bytes(b"graph")
    settings = dataclasses.replace(SETTINGS, canvases=(Canvas(480, 640),))
    pack(Recipe("centerface", "1.0", settings, {"centerface.onnx": graph}), tmp_path / "centerface.mar")
    with pytest.raises(ConfigError, match="centerface_tensor needs 640x640"):
        write(tmp_path / "centerface.mar", tmp_path / "r", Plan())


def test_configuration() -> None:
    text = config("centerface", SETTINGS, Plan.of(gpus=2))
    for line in (
        'name: "centerface"',
        "max_batch_size: 32",
        "  preferred_batch_size: [4, 8, 16]",
        "  max_queue_delay_microseconds: 500",
        "instance_group [ { count: 2 kind: KIND_GPU gpus: [0, 1] } ]",
        "version_policy { latest { num_versions: 1 } }",
        '  { name: "image" data_type: TYPE_STRING dims: [ 1 ] }',
        '  { name: "landmarks" data_type: TYPE_FP32 dims: [ -1, 5, 2 ] }',
    ):
        assert line in text.splitlines() or f"{line}," in text.splitlines(), line
    tensor = config("centerface_tensor", SETTINGS, Plan(), 640)
    assert '  { name: "pixels" data_type: TYPE_FP32 dims: [ 3, 640, 640 ] }' in tensor.splitlines()
    assert "instance_group [ { count: 1 kind: KIND_CPU } ]" in tensor.splitlines()


def test_text_of_the_weights_stays_a_comment() -> None:
    text = config("centerface", dataclasses.replace(SETTINGS, weights='a\nname: "other"'), Plan())
    assert text.splitlines()[0].startswith('# a name: "other", ')
    assert [line for line in text.splitlines() if line.startswith("name:")] == ['name: "centerface"']


def test_plans_are_checked() -> None:
    assert Plan.of(max_batch=4).preferred == (4,)
    assert Plan.of(gpus=1, instances=3, preferred=[2]) == Plan(1, 3, 32, (2,))
    for wrong in ({"instances": 0}, {"gpus": -1}, {"max_batch": 0}, {"delay_us": -1}, {"version": 0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is"):
            Plan(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="preferred batch size 9: expected 1 to max_batch, which is 8"):
        Plan(preferred=(9,))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from archive.cli import main

    mar, _ = Build(Wanted("centerface"), Workspace(Path("build"), tmp_path)).pack()
    arguments = ["triton", str(mar), "--output", str(tmp_path / "r"), "--number", "3", "--preferred"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / "r" / name) for name in ("centerface", "centerface_tensor")
    ]
    said = json.loads((tmp_path / "r" / "centerface_tensor" / "3" / "artifacts.json").read_bytes())
    assert said["name"] == "centerface"
    assert "preferred_batch_size: []" in (tmp_path / "r" / "centerface" / "config.pbtxt").read_text()
    assert main([*arguments[:4], "--instances", "0"]) == 1
    assert "instances is 0" in capsys.readouterr().err
