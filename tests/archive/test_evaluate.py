from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from archive import evaluate as evaluation
from archive import wider
from archive.evaluate import STAMP, Method, evaluate
from archive.subject import Subject
from archive.wider import Dataset
from handler.errors import ArtifactError, ConfigError, InvalidOption
from tests.archive.conftest import WiderFolder
from tests.archive.protocol import literal


@pytest.fixture(scope="module")
def dataset(wider_folder: WiderFolder) -> Dataset:
    return Dataset.load(wider_folder.path)


def test_a_synthetic_set(dataset: Dataset, plain: Subject, tmp_path: Path) -> None:
    score = evaluate(plain, dataset, tmp_path, Method(), "digest")
    found = [wider.read_result(tmp_path / entry.result) for entry in dataset.entries]
    assert sum(map(len, found)) >= sum(len(entry.faces) for entry in dataset.entries) > 10
    faces = [entry.faces for entry in dataset.entries]
    for name, kept in dataset.subsets.items():
        assert score.precisions[name] == pytest.approx(literal(found, faces, kept), abs=1e-12)
    # Every face that was composed is found, and before anything that is none.
    assert score.precisions["hard"] > 0.99
    assert score.images == 6
    assert "single scale, canvases up to 256 px" in score.table()
    assert "AP" in score.table()


def test_wrong_answers_cost_precision(dataset: Dataset) -> None:
    right = [np.column_stack([entry.faces, np.linspace(0.9, 0.8, len(entry.faces))]) for entry in dataset.entries]
    assert set(evaluation.measure(dataset, right).values()) == {1.0}
    # Moved by their own width, none is right.
    wrong = [rows + np.array([1, 0, 0, 0, 0]) * rows[:, 2:3] for rows in right]
    assert evaluation.measure(dataset, wrong)["hard"] == 0
    # One false detection above all others: precision n / (n + 1) at the most.
    extra = [np.vstack([[900, 900, 9, 9, 1.0], right[0]]), *right[1:]]
    count = sum(map(len, right))
    assert evaluation.measure(dataset, extra)["hard"] == pytest.approx(count / (count + 1))


def test_a_run_that_was_stopped_goes_on(
    dataset: Dataset, plain: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(plain, dataset, tmp_path, Method(), "digest")
    kept = tmp_path / dataset.entries[0].result
    before = kept.stat().st_mtime_ns
    gone = tmp_path / dataset.entries[3].result
    content = gone.read_bytes()
    gone.unlink()
    opened = []
    original = evaluation._picture
    monkeypatch.setattr(evaluation, "_picture", lambda *args: opened.append(args[1].name) or original(*args))  # type: ignore[func-returns-value]
    evaluate(plain, dataset, tmp_path, Method(), "digest")
    assert opened == [dataset.entries[3].name]
    assert gone.read_bytes() == content
    assert kept.stat().st_mtime_ns == before


def test_results_of_another_run_are_not_taken(dataset: Dataset, plain: Subject, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    evaluate(plain, dataset, folder, Method(), "digest")
    with pytest.raises(ConfigError, match="results of another archive: name another folder"):
        evaluate(plain, dataset, folder, Method(), "another digest")
    with pytest.raises(ConfigError, match="results of another canvas, size"):
        evaluate(plain, dataset, folder, Method(canvas="256x256"), "digest")
    (folder / STAMP).write_text("{")
    with pytest.raises(ArtifactError, match="damaged"):
        evaluate(plain, dataset, folder, Method(), "digest")
    (folder / STAMP).unlink()
    with pytest.raises(ConfigError, match="is not empty"):
        evaluate(plain, dataset, folder, Method(), "digest")


def test_the_stamp_says_what_was_measured(dataset: Dataset, plain: Subject, tmp_path: Path) -> None:
    score = evaluate(plain, dataset, tmp_path, Method("native"), "digest")
    said = json.loads((tmp_path / STAMP).read_text())
    assert said["canvas"] == "native"
    assert said["archive"] == "digest"
    assert said["size"] == score.size == "single scale, the image's own size, over 1500 px a long side of 1000"


def test_multi_scale(make_wider: Callable[[int], WiderFolder], plain: Subject, tmp_path: Path) -> None:
    dataset = Dataset.load(make_wider(2).path)
    score = evaluate(plain, dataset, tmp_path / "results", Method(multi_scale=True), "digest")
    assert score.size == "multi-scale, 11 passes of 0.25 to 2.6 times the image, voted"
    assert score.precisions["easy"] > 0.9
    assert not math.isnan(score.precisions["hard"])


def test_a_method_that_contradicts_itself_is_refused(dataset: Dataset, plain: Subject, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a multi-scale test has sizes of its own"):
        Method("native", multi_scale=True)
    with pytest.raises(InvalidOption, match="this archive has"):
        evaluate(plain, dataset, tmp_path, Method("64x64"), "digest")


def test_a_damaged_picture_is_named(make_wider: Callable[[int], WiderFolder], plain: Subject, tmp_path: Path) -> None:
    dataset = Dataset.load(make_wider(1).path)
    path = dataset.path(dataset.entries[0])
    path.write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"0\.jpg: .*no image"):
        evaluate(plain, dataset, tmp_path / "results", Method(), "digest")
