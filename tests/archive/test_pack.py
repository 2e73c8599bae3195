from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import handler
from archive import pack as module
from archive.files import sha256
from archive.pack import Recipe, misplaced, pack, read_artifacts, read_settings
from handler.errors import ArtifactError, ConfigError
from tests.fake_plans import doubled_plan

ALWAYS = {"MAR-INF/MANIFEST.json", "artifacts.json", "detector.yaml", "mogface_handler.py", "graphs/centerface.onnx"}


@pytest.fixture
def packed(recipe: Recipe, tmp_path: Path) -> Path:
    target = tmp_path / "store" / "faces.mar"
    assert pack(recipe, target)
    return target


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the handler that packs instead of it."""
    copy = folder / "handler"
    shutil.copytree(handler.__path__[0], copy)
    monkeypatch.setattr(handler, "__path__", [str(copy)])
    return copy


def test_an_archive_holds_just_what_it_should(packed: Path) -> None:
    root = Path(handler.__path__[0])
    modules = {f"handler/{path.relative_to(root)}" for path in root.rglob("*.py")}
    foreign = {f"handler/engines/{name}.py" for name in ("torch_engine", "trt", "winograd")}
    assert {"handler/engines/ort.py", "handler/engines/trt.py"} <= modules
    # An archive carries its own engine alone.
    modules -= foreign
    with zipfile.ZipFile(packed) as archive:
        # The entry file lies at the root and nowhere else.
        assert set(archive.namelist()) == ALWAYS | modules - {"handler/mogface_handler.py"}
        assert len(archive.namelist()) == len(set(archive.namelist()))
        *names, last = archive.namelist()
        assert names == sorted(names)
        assert last == "artifacts.json"
        for name in modules - {"handler/mogface_handler.py"}:
            assert archive.read(name) == (root.parent / name).read_bytes()
        assert archive.read("mogface_handler.py") == (root / "mogface_handler.py").read_bytes()


def test_an_archive_carries_no_other_engine_and_nothing_but_source(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = package(tmp_path, monkeypatch)
    (copy / "engines" / "trt.py").write_text("import tensorrt")
    (copy / "notes.txt").write_text("not for shipping")
    (copy / "new.py").write_text("")
    pack(recipe, tmp_path / "faces.mar")
    with zipfile.ZipFile(tmp_path / "faces.mar") as archive:
        names = set(archive.namelist())
    assert "handler/new.py" in names
    assert {name for name in names if name.startswith("handler/engines/")} == {
        "handler/engines/__init__.py",
        "handler/engines/base.py",
        "handler/engines/ort.py",
    }
    assert not any(name.endswith((".txt", ".pyc")) for name in names)


def test_hashes_are_those_of_the_files(packed: Path, recipe: Recipe) -> None:
    with zipfile.ZipFile(packed) as archive:
        content = json.loads(archive.read("artifacts.json"))
        names = set(archive.namelist()) - {"artifacts.json"}
        assert content["files"] == {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}
        graph = recipe.graphs["centerface.onnx"].read_bytes()
        assert archive.read("graphs/centerface.onnx") == graph
    del content["files"]
    assert content == {
        "format": 1,
        "name": "faces",
        "version": "1.0",
        "detector": "centerface",
        "weights": "none",
        "engine": "ort",
        "precision": "fp32",
    }
    assert read_artifacts(packed) | content == read_artifacts(packed)


def test_the_manifest_is_torchserves(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    assert manifest["model"] == {"modelName": "faces", "modelVersion": "1.0", "handler": "mogface_handler.py"}
    assert manifest["createdOn"] == "01/01/1980 00:00:00"


def test_settings_come_back(packed: Path, recipe: Recipe) -> None:
    assert read_settings(packed) == recipe.settings


def test_the_same_inputs_give_the_same_bytes(
    recipe: Recipe, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = package(tmp_path, monkeypatch)
    chance = random.Random(0)
    for path in (*copy.rglob("*"), *recipe.graphs.values()):
        os.utime(path, (chance.randrange(2**31),) * 2)
        path.chmod(chance.choice([0o700, 0o755, 0o777]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    umask = os.umask(0o077)
    try:
        pack(recipe, Path("faces.mar"))
    finally:
        os.umask(umask)
    assert sha256(tmp_path / "elsewhere" / "faces.mar") == sha256(packed)
    assert (tmp_path / "elsewhere" / "faces.mar").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("change", ["version", "name", "settings", "graph", "source"])
def test_another_input_gives_another_archive(
    recipe: Recipe, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before = sha256(packed)
    if change == "graph":
        recipe.graphs["centerface.onnx"].write_bytes(b"another")
    elif change == "source":
        with (package(tmp_path, monkeypatch) / "nms.py").open("a") as file:
            file.write("# mended\n")
    elif change == "settings":
        recipe = dataclasses.replace(recipe, settings=dataclasses.replace(recipe.settings, deadline_s=1.0))
    else:
        recipe = dataclasses.replace(recipe, **{change: "2.0"})  # type: ignore[arg-type]
    assert pack(recipe, packed)
    assert sha256(packed) != before


def test_an_archive_that_is_just_that_is_left_alone(recipe: Recipe, packed: Path) -> None:
    os.utime(packed, (1, 1))
    assert not pack(recipe, packed)
    assert packed.stat().st_mtime == 1


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_archive_that_was_damaged_is_written_again(recipe: Recipe, packed: Path, data: st.DataObject) -> None:
    # An earlier damage may have been spared, for all that it says of a file's content.
    packed.unlink()
    pack(recipe, packed)
    with zipfile.ZipFile(packed) as archive:
        graph = archive.getinfo("graphs/centerface.onnx")
        contents = [*archive.infolist()]
    before = packed.read_bytes()
    damaged = bytearray(before)
    # Anywhere, but half of the time where the graph lies.
    start = graph.header_offset + 100
    anywhere, within = st.integers(0, len(before) - 1), st.integers(start, start + graph.file_size - 100)
    position = data.draw(anywhere | within)
    damaged[position] ^= data.draw(st.integers(1, 255))
    packed.write_bytes(damaged)
    written = pack(recipe, packed)
    in_content = any(
        each.header_offset + 30 + len(each.filename)
        <= position
        < each.header_offset + 30 + len(each.filename) + each.file_size
        for each in contents
    )
    assert written or not in_content
    if written:
        assert packed.read_bytes() == before


def test_a_file_in_the_way_is_replaced(recipe: Recipe, packed: Path) -> None:
    before = packed.read_bytes()
    for content in (b"", b"no zip", before[:-30], before[: len(before) // 2]):
        packed.write_bytes(content)
        assert pack(recipe, packed)
        assert packed.read_bytes() == before


def test_a_missing_graph_is_told_by_its_path(recipe: Recipe, tmp_path: Path) -> None:
    recipe.graphs["centerface.onnx"].unlink()
    with pytest.raises(ArtifactError, match=r"graph\.onnx is missing: run `mogface-archive export`"):
        pack(recipe, tmp_path / "faces.mar")
    assert not (tmp_path / "faces.mar").exists()


@pytest.mark.parametrize("change", ["extra", "missing"])
def test_an_archive_that_came_out_otherwise_is_refused(
    recipe: Recipe, packed: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    original = module._archive

    def other(recipe: Recipe, staging: Path, scratch: Path) -> Path:
        if change == "extra":
            (staging / "handler" / "stray.py").write_text("")
        else:
            (staging / "handler" / "nms.py").unlink()
        return original(recipe, staging, scratch)

    monkeypatch.setattr(module, "_archive", other)
    before = packed.read_bytes()
    with pytest.raises(ArtifactError, match=r"other files than intended: .*(stray|nms)\.py"):
        pack(dataclasses.replace(recipe, version="2.0"), packed)
    assert packed.read_bytes() == before


def test_what_the_archiver_refuses_is_told(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="torch-model-archiver cannot pack"):
        pack(dataclasses.replace(recipe, name="a name/with what it forbids"), tmp_path / "faces.mar")


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


FOREIGN = {
    "no JSON": b"{",
    "no object": b"[]",
    "another format": b'{"format": 2}',
    "no fields": b'{"format": 1}',
    "no files": b'{"format": 1, "name": "a", "version": "1", "detector": "d", "weights": "w", "engine": "e", '
    b'"precision": "p", "files": []}',
    "a number for a name": b'{"format": 1, "name": 1, "version": "1", "detector": "d", "weights": "w", "engine": "e", '
    b'"precision": "p", "files": {}}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_an_archive_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ArtifactError, match="pack"):
        read_artifacts(zipped(tmp_path / "a.mar", {"artifacts.json": content}))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.mar").write_text("hello")
    for path in (tmp_path / "none.mar", tmp_path / "text.mar", tmp_path, zipped(tmp_path / "b.mar", {"a": b""})):
        with pytest.raises(ArtifactError, match=r"made by `mogface-archive pack`|no such archive"):
            read_artifacts(path)
        with pytest.raises(ArtifactError, match=r"detector\.yaml cannot be read"):
            read_settings(path)


def test_settings_of_an_archive_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'a'"):
        read_settings(zipped(tmp_path / "a.mar", {"detector.yaml": b"a: 1"}))


def test_plans_travel_with_their_sidecars(recipe: Recipe, tmp_path: Path) -> None:
    _, sidecar = doubled_plan(tmp_path)
    folder = tmp_path / str(sidecar.target)
    (folder / "left over.txt").write_text("not packed")
    target = tmp_path / "faces.mar"
    chosen = dataclasses.replace(recipe.settings, engine="trt")
    assert pack(dataclasses.replace(recipe, settings=chosen, graphs={}, plans=[folder]), target)
    with zipfile.ZipFile(target) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.startswith(("plans/", "graphs/"))} == {
        f"plans/{folder.name}/doubled.json",
        f"plans/{folder.name}/doubled.plan",
    }
    assert {name for name in names if name.startswith("handler/engines/")} == {
        f"handler/engines/{name}.py" for name in ("__init__", "base", "trt")
    }
    (folder / "doubled.plan").write_bytes(b"another")
    with pytest.raises(ArtifactError, match="its sidecar says"):
        pack(dataclasses.replace(recipe, settings=chosen, graphs={}, plans=[folder]), target)


def test_an_archive_that_reads_otherwise_from_header_to_header_is_found(recipe: Recipe, tmp_path: Path) -> None:
    """Java reads a zip from its start, Python from the directory at its end."""
    mar = tmp_path / "a.mar"
    assert pack(recipe, mar)
    assert misplaced(mar) == ""
    data = mar.read_bytes()
    flipped = bytearray(data)
    flipped[15] ^= 1
    mar.write_bytes(flipped)
    assert "header before" in misplaced(mar)
    # Nothing of it is taken for unchanged.
    assert pack(recipe, mar)
    assert mar.read_bytes() == data
    smuggled = tmp_path / "b.mar"
    with zipfile.ZipFile(smuggled, "w") as archive:
        archive.writestr("handler/pipeline.py", "evil")
    evil = smuggled.read_bytes()
    stray = evil[: evil.index(b"PK\1\2")]
    mar.write_bytes(stray + data)
    assert misplaced(mar)
    with zipfile.ZipFile(mar, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("detector.yaml", "detector: other")
    assert misplaced(mar) == "a name is there twice"


def test_an_archive_for_plans_is_not_packed_without(recipe: Recipe, tmp_path: Path) -> None:
    settings = dataclasses.replace(recipe.settings, engine="trt")
    with pytest.raises(ArtifactError, match="engine trt needs plans"):
        pack(dataclasses.replace(recipe, settings=settings), tmp_path / "a.mar")
    with pytest.raises(ArtifactError, match="none holds no plans"):
        pack(dataclasses.replace(recipe, settings=settings, plans=[tmp_path / "none"]), tmp_path / "a.mar")
