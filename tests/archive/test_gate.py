from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from archive.gate import TOLERANCES, Tolerance, against, compare, judge, match
from archive.pack import Recipe, pack, read_settings
from archive.precision import convert
from archive.subject import Subject
from handler.config import PRECISIONS
from handler.detections import Detections, no_landmarks
from handler.errors import ArtifactError, ConfigError
from handler.geometry import Float32, Uint8
from handler.options import Options
from tests.photographs import NO_FACES, compose, iou

IMAGES: list[Uint8 | Path] = [compose(seed)[0] for seed in range(100, 108)]
LOOSE = Tolerance(missed=0.1, box_mean=0.1, box_worst=0.1, points=0.1, score_mean=0.1, score_worst=0.1, ap=0.1)


def faces(*rows: tuple[float, float, float, float, float]) -> Detections:
    table = np.array(rows, np.float32).reshape(-1, 5)
    return Detections(table[:, :4], table[:, 4], no_landmarks(len(table)), 200, 200)


def test_every_precision_has_its_tolerance() -> None:
    assert TOLERANCES.keys() == set(PRECISIONS)
    loosest = [dataclasses.astuple(TOLERANCES[name]) for name in PRECISIONS]
    assert (np.diff(np.array(loosest), axis=0) >= 0).all()


def test_by_hand() -> None:
    expected = faces((0, 0, 99, 99, 0.9), (100, 100, 149, 149, 0.8), (0, 100, 40, 140, 0.45))
    found = faces((1, 0, 99, 101, 0.85), (0, 100, 40, 140, 0.55), (150, 0, 170, 20, 0.6))
    report = judge("a", "b", [(expected, found)], LOOSE, 0.5)
    # Over 0.5: two faces, one of them lacking; three of the other's, one of them its own. The weak one of the
    # reference is a face of the candidate.
    assert (report.faces, report.extra) == (2, 3)
    assert report.measured.missed == 0.5
    assert report.measured.box_mean == pytest.approx((2 / 100 + 0) / 2)
    assert report.measured.box_worst == pytest.approx(2 / 100)
    assert report.measured.score_mean == pytest.approx((0.05 + 0.1) / 2, abs=1e-6)
    assert report.measured.score_worst == pytest.approx(0.1, abs=1e-6)
    assert (report.pixels_mean, report.pixels_worst) == (1, 2)
    # Its own faces found, 1; the other's, half of them at precision 1, the false one and the weak one below.
    assert report.measured.ap == pytest.approx(0.5)
    assert [miss.split(" is ")[0] for miss in report.misses] == ["missed", "score_worst", "ap"]
    with pytest.raises(ArtifactError, match=r"b is not a:\n  missed is 0\.5000, over 0\.1\n  .*\n  ap is"):
        report.refuse()
    assert [line.endswith("over") for line in report.table().splitlines()].count(True) == 3


def test_a_face_of_the_candidate_alone_is_seen() -> None:
    one, two = faces((0, 0, 99, 99, 0.9)), faces((0, 0, 99, 99, 0.9), (100, 100, 149, 149, 0.8))
    assert judge("a", "b", [(one, two)], LOOSE, 0.5).measured.missed == 0.5
    assert judge("a", "b", [(two, one)], LOOSE, 0.5).measured.missed == 0.5
    # Under the threshold it may come and go.
    assert judge("a", "b", [(one, two)], LOOSE, 0.8).measured.missed == 0


def test_landmarks_are_compared_where_there_are_some() -> None:
    none = faces((0, 0, 99, 99, 0.9))
    some = none.with_landmarks(np.full((1, 5, 2), 50, np.float32))
    moved = some.landmarks.copy()
    moved[0, 3, 1] += 20
    for expected, found, points in (
        (none, none, 0),
        (some, some, 0),
        (some, none, 1),
        (none, some, 1),
        (some, none.with_landmarks(moved), 0.2),
    ):
        assert judge("a", "b", [(expected, found)], LOOSE, 0.5).measured.points == pytest.approx(points)


def test_nothing_compared_is_refused() -> None:
    report = judge("a", "b", [(faces(), faces((0, 0, 9, 9, 0.9)))], LOOSE, 0.5)
    with pytest.raises(ArtifactError, match="a finds no face on the 1 images: nothing was compared"):
        report.refuse()
    report = judge("a", "b", [(faces((0, 0, 9, 9, 0.9)), faces())], LOOSE, 0.5)
    with pytest.raises(ArtifactError, match="box_mean is nan"):
        report.refuse()


def literal_match(expected: Float32, found: Float32) -> list[int]:
    taken: list[int] = []
    partners = []
    for box in expected:
        shares = [
            iou([*box[:2], *(box[2:] + 1)], [*other[:2], *(other[2:] + 1)]) if index not in taken else 0
            for index, other in enumerate(found)
        ]
        best = int(np.argmax(shares))
        partners.append(best if shares[best] >= 0.9 else -1)
        taken += [best] if shares[best] >= 0.9 else []
    return partners


@pytest.mark.parametrize("seed", range(4))
def test_matching_against_a_literal_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 100, (12, 2))
    expected = np.concatenate([low, low + rng.uniform(20, 60, (12, 2))], axis=1).astype(np.float32)
    found = (expected[rng.integers(0, 12, 20)] + rng.normal(0, 1, (20, 4))).astype(np.float32)
    partners = match(expected, found).tolist()
    assert partners == literal_match(expected, found)
    assert 3 < sum(partner >= 0 for partner in partners) < 12
    assert match(expected[:0], found).shape == (0,)
    assert match(expected, found[:0]).tolist() == [-1] * 12


def test_the_same_detector_passes(plain: Subject) -> None:
    report = compare(plain, plain, IMAGES, TOLERANCES["fp32"])
    report.refuse()
    assert report.faces == report.extra > 15
    assert set(dataclasses.astuple(report.measured)) == {0}


def test_one_convolution_a_fifth_too_strong_is_refused(
    centerface_graphs: dict[str, Path], plain: Subject, subject: Callable[[Path], Subject], tmp_path: Path
) -> None:
    model = onnx.load(str(centerface_graphs["centerface.onnx"]))
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    # Early ones, whose scale the network nearly forgets, and the one that gives the boxes' sizes, which tells
    # in any precision.
    for number, precisions in ((0, ("fp32", "fp16")), (10, ("fp32", "fp16")), (30, PRECISIONS), (57, PRECISIONS)):
        name = convolutions[number].input[1]
        (weight,) = [value for value in model.graph.initializer if value.name == name]
        original = weight.SerializeToString()
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.2), name))
        onnx.save(model, str(tmp_path / "x.onnx"))
        weight.ParseFromString(original)
        for precision in precisions:
            report = compare(plain, subject(tmp_path / "x.onnx"), IMAGES, TOLERANCES[precision])
            with pytest.raises(ArtifactError, match=r" is not "):
                report.refuse()


def test_two_archives(mar: Path, centerface_graphs: dict[str, Path], tmp_path: Path, astronaut: Uint8) -> None:
    picture = tmp_path / "astronaut.png"
    Image.fromarray(astronaut).save(picture)
    halves = convert(centerface_graphs, tmp_path / "fp16", "fp16")
    settings = dataclasses.replace(read_settings(mar), precision="fp16")
    other = tmp_path / "other.mar"
    pack(Recipe("other", "1.0", settings, halves), other)
    report = against(mar, other, [picture], "cpu")
    report.refuse()
    assert report.faces == 1
    assert report.tolerance == TOLERANCES["fp16"]
    assert report.measured.box_mean > 0
    pack(Recipe("other", "1.0", dataclasses.replace(settings, weights="others"), halves), other)
    with pytest.raises(ConfigError, match=r"weights is .* in centerface\.mar and 'others' in other\.mar"):
        against(mar, other, [picture], "cpu")


def test_files_are_taken_and_damaged_ones_named(plain: Subject, tmp_path: Path) -> None:
    damaged = tmp_path / "x.png"
    damaged.write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"x\.png"):
        compare(plain, plain, [damaged], LOOSE)
    with pytest.raises(ConfigError, match="no images to compare on"):
        compare(plain, plain, [], LOOSE)
    report = compare(plain, plain, [NO_FACES[0]], LOOSE)
    assert report.images == 1
    assert report.faces == 0


def test_the_threshold_is_widened_by_what_scores_may_differ(plain: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Subject.find

    def find(self: Subject, images: list[Uint8], options: Options) -> list[Detections]:
        seen.append(options.score_threshold)
        return original(self, images, options)

    monkeypatch.setattr(Subject, "find", find)
    compare(plain, plain, IMAGES[:1], LOOSE)
    compare(plain, plain, IMAGES[:1], LOOSE, threshold=0.05)
    assert seen == pytest.approx([0.4, 0.4, 0, 0])
