from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handler import plans
from handler.errors import ArtifactError
from handler.plans import Flags, Range, Sidecar, Target

PLAN = b"a plan" * 100
TARGET = Target("sm86", "tensorrt", "10.16.1.11", "fp16")


def sidecar(**changes: Any) -> Sidecar:
    whole = Sidecar(
        graph="score_head",
        graph_sha256="0" * 64,
        target=TARGET,
        profiles=(
            {"level": Range((1, 256, 48, 48), (4, 256, 80, 80), (8, 256, 80, 80))},
            {"level": Range((1, 256, 24, 24), (8, 256, 40, 40), (8, 256, 64, 64))},
        ),
        flags=Flags(workspace=1 << 30),
        outputs={"scores": "float32", "context": "float16"},
        device_memory=1000,
        plan_bytes=len(PLAN),
        plan_sha256=hashlib.sha256(PLAN).hexdigest(),
    )
    return dataclasses.replace(whole, **changes)


def write(folder: Path, **changes: Any) -> Path:
    """A folder of one plan."""
    each = sidecar(**changes)
    place = folder / str(each.target)
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{each.graph}.json").write_text(each.dump())
    (place / f"{each.graph}.plan").write_bytes(PLAN)
    return place


@pytest.mark.parametrize("changes", [{}, {"device_memory": None}])
def test_what_is_written_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    place = write(tmp_path, **changes)
    assert plans.read(place) == {"score_head": sidecar(**changes)}
    assert sidecar().read(place) == PLAN


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((1, 256, 80, 80), 0),
        ((8, 256, 40, 40), 1),
        ((100, 256, 24, 24), 1),  # run in parts
        ((1, 256, 50, 50), 1),  # both take it; 40 is nearer than 80
        ((1, 256, 63, 63), 0),
        ((0, 256, 40, 40), None),
        ((1, 256, 81, 80), None),
        ((1, 255, 80, 80), None),
        ((1, 80, 80), None),
    ],
)
def test_profile(shape: tuple[int, ...], index: int | None) -> None:
    assert sidecar().profile({"level": shape}) == index
    assert sidecar().profile({"image": shape}) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v.pop("graph"), r"keys \["),
        (lambda v: v.update(more=1), r"keys \["),
        (lambda v: v.update(graph=7), "graph is 7"),
        (lambda v: v.update(plan_bytes=True), "plan_bytes is True"),
        (lambda v: v.update(plan_bytes=0), "expected bytes"),
        (lambda v: v.update(device_memory="1"), "device_memory is '1'"),
        (lambda v: v.update(plan_sha256="abc"), "64 hexadecimal digits"),
        (lambda v: v.update(format=2), "format 1"),
        (lambda v: v.update(target="sm86"), "expected a mapping"),
        (lambda v: v["target"].update(capability="86"), "capability is '86'"),
        (lambda v: v["target"].update(library="onnx"), "library is 'onnx'"),
        (lambda v: v["target"].update(version="../x"), "version is"),
        (lambda v: v["target"].update(precision="fp8"), "precision is 'fp8'"),
        (lambda v: v["flags"].update(sparse=1), "sparse is 1"),
        (lambda v: v["flags"].update(optimization_level=6), "expected 0 to 5"),
        (lambda v: v["flags"].update(workspace=-1), "workspace is -1"),
        (lambda v: v.update(profiles={}), "expected a list"),
        (lambda v: v.update(profiles=[]), "one or more"),
        (lambda v: v["profiles"].append({"x": v["profiles"][0]["level"]}), "same inputs"),
        (lambda v: v["profiles"][0]["level"].update(max=[8, 256, 80]), "min <= opt <= max"),
        (lambda v: v["profiles"][0]["level"].update(min=[9, 256, 80, 80]), "min <= opt <= max"),
        (lambda v: v["profiles"][0]["level"].update(min=["1", 1, 1, 1]), "min is"),
        (lambda v: v.update(outputs={"scores": "float"}), "outputs are"),
        (lambda v: v.update(outputs={}), "outputs are"),
    ],
)
def test_sidecars_that_are_none(tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str) -> None:
    path = write(tmp_path) / "score_head.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=reason) as caught:
        Sidecar.load(path)
    assert str(path) in str(caught.value)
    assert "mogface-archive engine" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trunk.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="mogface-archive engine"):
        Sidecar.load(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (PLAN[:-1], "has 599 bytes, its sidecar says 600"),
        (b"A" + PLAN[1:], "its sidecar says"),
        (b"", "has 0 bytes"),
        (None, "cannot be read"),
    ],
)
def test_plans_that_are_damaged(tmp_path: Path, content: bytes | None, reason: str) -> None:
    place = write(tmp_path)
    (place / "score_head.plan").unlink()
    if content is not None:
        (place / "score_head.plan").write_bytes(content)
    with pytest.raises(ArtifactError, match=reason):
        sidecar().read(place)


def test_a_sidecar_under_another_name(tmp_path: Path) -> None:
    place = write(tmp_path)
    (place / "score_head.json").rename(place / "box_head.json")
    with pytest.raises(ArtifactError, match="is of graph 'score_head'"):
        plans.read(place)


def test_plans_of_two_targets_in_one_folder(tmp_path: Path) -> None:
    place = write(tmp_path)
    other = sidecar(graph="trunk", target=dataclasses.replace(TARGET, capability="sm75"))
    (place / "trunk.json").write_text(other.dump())
    with pytest.raises(ArtifactError, match="several targets"):
        plans.read(place)


def test_choose(tmp_path: Path) -> None:
    """The first of the machine's targets that has every graph."""
    rtx = dataclasses.replace(TARGET, library="tensorrt_rtx", version="1.7")
    write(tmp_path, target=rtx)
    place = write(tmp_path)
    write(tmp_path, target=rtx, graph="trunk")
    assert plans.choose(tmp_path, ["score_head"], [TARGET, rtx])[0] == place
    assert plans.choose(tmp_path, ["score_head", "trunk"], [TARGET, rtx])[1].keys() == {"score_head", "trunk"}


@pytest.mark.parametrize(
    "machine", [{"capability": "sm75"}, {"version": "10.16.1.12"}, {"precision": "fp32"}, {"library": "tensorrt_rtx"}]
)
def test_nothing_to_choose(tmp_path: Path, machine: dict[str, str]) -> None:
    """What there is, what is needed, and what to do."""
    write(tmp_path)
    target = dataclasses.replace(TARGET, **machine)
    with pytest.raises(ArtifactError) as caught:
        plans.choose(tmp_path, ["score_head"], [target])
    message = str(caught.value)
    assert f"it has {TARGET} (score_head), needed is {target}" in message
    assert f"`mogface-archive engine --precision {target.precision}`" in message


def test_no_folder_to_choose_from(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=re.escape("it has none, needed is")):
        plans.choose(tmp_path / "plans", ["trunk"], [TARGET])
