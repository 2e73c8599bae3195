from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from handler.config import FILE, PIXELS_CEILING, Limits, Settings, cores, engine_threads
from handler.errors import ConfigError
from handler.geometry import Canvas
from handler.options import Options

LEAST: dict[str, Any] = {
    "detector": "centerface",
    "weights": "somewhere",
    "options": {"score_threshold": 0.5, "nms_threshold": 0.3},
}
canvases = st.builds(Canvas, st.integers(1, 60).map(lambda n: n * 32), st.integers(1, 60).map(lambda n: n * 32))
counts = st.integers(1, 10**12)


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    sizes = tuple(draw(st.lists(canvases, min_size=1, max_size=5)))
    output = draw(st.sampled_from(["json", "modelscope", "image"]))
    options = Options(
        score_threshold=draw(st.floats(0, 1)),
        nms_threshold=draw(st.floats(0, 1)),
        max_faces=draw(st.integers(1, 5000)),
        order=draw(st.sampled_from(["score", "size"])),
        min_face_size=draw(st.floats(0, 100_000)),
        canvas=draw(st.sampled_from(["auto", "native", *map(str, sizes)])),
        landmarks=draw(st.booleans()),
        crops=output == "json" and draw(st.booleans()),
        output=output,
    )
    return Settings(
        detector=draw(st.sampled_from(["mogface", "centerface"])),
        weights=draw(st.text()),
        options=options,
        device=draw(st.sampled_from(["auto", "cpu", "cuda"])),
        canvases=sizes,
        long_side=draw(st.integers(min(map(max, sizes)), 10_000)),
        engine_batch=draw(counts),
        threads=draw(counts),
        decode_threads=draw(counts),
        deadline_s=draw(st.floats(0, 86_400, exclude_min=True, exclude_max=True)),
        level_skipping=draw(st.booleans()),
        draft=draw(st.booleans()),
        cache_bytes=draw(counts),
        log_requests=draw(st.booleans()),
        limits=Limits(draw(counts), draw(st.integers(1, PIXELS_CEILING)), draw(counts), draw(counts)),
    )


@given(any_settings())
def test_what_is_dumped_loads_again(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / FILE
    path.write_text(settings.dump(), encoding="utf-8")
    assert Settings.load(path) == settings


def test_every_key_is_written_out() -> None:
    written = yaml.safe_load(Settings.from_mapping(LEAST).dump())
    assert set(written) == {field.name for field in dataclasses.fields(Settings)}
    assert set(written["limits"]) == {field.name for field in dataclasses.fields(Limits)}
    assert set(written["options"]) == {field.name for field in dataclasses.fields(Options)}


def test_values_reach_their_settings() -> None:
    settings = Settings.from_mapping(
        {**LEAST, "canvases": ["64x96", "32x32"], "long_side": 96, "deadline_s": 5, "limits": {"images": 3}}
    )
    assert settings.canvases == (Canvas(64, 96), Canvas(32, 32))
    assert settings.deadline_s == 5
    assert settings.limits == Limits(images=3)
    assert settings.options == Options(score_threshold=0.5, nms_threshold=0.3)
    on_trt = {**LEAST, "detector": "mogface", "engine": "trt", "finest_batch": 2, "cuda_graphs": True}
    assert Settings.from_mapping(on_trt).finest_batch == 2
    assert Settings.from_mapping(on_trt).cuda_graphs


WRONG: dict[str, tuple[dict[Any, Any], str]] = {
    "unknown key": ({"engin": "ort"}, "unknown key 'engin': expected detector, weights"),
    "keys that are no text": ({1: 2, "engin": "ort"}, "unknown key"),
    "unknown limit": ({"limits": {"image": 3}}, r"unknown key 'limits\.image': expected bytes, pixels, images"),
    "unknown option": ({"options": {**LEAST["options"], "treshold": 1}}, r"unknown key 'options\.treshold'"),
    "options that are no text": ({"options": {**LEAST["options"], 1: 1, "x": 1}}, r"unknown key 'options\."),
    "option out of range": ({"options": {**LEAST["options"], "score_threshold": 2}}, "options: score_threshold is 2"),
    "option missing": ({"options": {"score_threshold": 0.5}}, "options need score_threshold and nms_threshold"),
    "option's canvas": ({"options": {**LEAST["options"], "canvas": "32x32"}}, "options: canvas is '32x32'"),
    "options at odds": ({"options": {**LEAST["options"], "crops": True, "output": "image"}}, "options: crops is true"),
    "options no mapping": ({"options": [1]}, "options is .*expected Options"),
    "limits no mapping": ({"limits": None}, "limits is None: expected Limits"),
    "detector": ({"detector": "retinaface"}, "detector is 'retinaface': expected one of mogface, centerface"),
    "engine": ({"engine": "auto"}, "engine is 'auto': expected one of ort"),
    "precision": ({"precision": "fp64"}, "precision is 'fp64'"),
    "device": ({"device": "gpu"}, "device is 'gpu': expected one of auto, cpu, cuda"),
    "text for a number": ({"engine_batch": "1"}, "engine_batch is '1': expected int"),
    "flag for a number": ({"engine_batch": True}, "engine_batch is True: expected int"),
    "fraction for a count": ({"engine_batch": 1.5}, "engine_batch is 1.5: expected int"),
    "number for a flag": ({"level_skipping": 1}, "level_skipping is 1: expected bool"),
    "flag for a fraction": ({"deadline_s": True}, "deadline_s is True: expected float"),
    "number for a text": ({"weights": 7}, "weights is 7: expected str"),
    "no batch": ({"engine_batch": 0}, "engine_batch is 0: expected 1 or more"),
    "negative finest batch": ({"finest_batch": -1}, "finest_batch is -1: expected 0 or more"),
    "finest batch of no levels": (
        {"finest_batch": 2, "engine": "trt"},
        "finest_batch is 2: it is for detector mogface on engine trt, and this is centerface on trt",
    ),
    "CUDA graphs on a CPU": (
        {"cuda_graphs": True, "detector": "mogface"},
        "cuda_graphs is True: it is for detector mogface on engine trt, and this is mogface on ort",
    ),
    "negative threads": ({"threads": -1}, "threads is -1: expected 0 or more"),
    "negative decoders": ({"decode_threads": -1}, "decode_threads is -1"),
    "negative cache": ({"cache_bytes": -1}, "cache_bytes is -1: expected 0 or more"),
    "text for a switch": ({"draft": "yes"}, "draft is 'yes': expected bool"),
    "no time": ({"deadline_s": 0}, "deadline_s is 0"),
    "NaN": ({"deadline_s": float("nan")}, "deadline_s is nan"),
    "a day": ({"deadline_s": 86_400}, "deadline_s is 86400"),
    "no bytes": ({"limits": {"bytes": 0}}, r"limits\.bytes is 0: expected 1 or more"),
    "text for a limit": ({"limits": {"bytes": "20MB"}}, r"limits\.bytes is '20MB': expected int"),
    "too many pixels": ({"limits": {"pixels": PIXELS_CEILING + 1}}, r"limits\.pixels .*at most 89478485"),
    "no canvases": ({"canvases": []}, "none of the canvases"),
    "canvases no list": ({"canvases": "64x64"}, "canvases is '64x64'"),
    "no canvas": ({"canvases": ["64"]}, "canvas '64': expected HEIGHTxWIDTH"),
    "canvas of odd size": ({"canvases": ["64x65"]}, "multiples of 32"),
    "all canvases over the long side": ({"long_side": 639}, "long_side is 639"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused_by_name(changes: dict[Any, Any], message: str) -> None:
    Settings.from_mapping(LEAST)
    with pytest.raises(ConfigError, match=message):
        Settings.from_mapping({**LEAST, **changes})


@pytest.mark.parametrize("name", LEAST)
def test_missing_settings_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"missing .*'{name}'"):
        Settings.from_mapping({key: value for key, value in LEAST.items() if key != name})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a mapping of settings, got NoneType"),
        (b"- 1", "got list"),
        (b"hello", "got str"),
        (b"a: [", "expected"),
        (b"a: !!python/object:os.system {}", "could not determine a constructor"),
        (b"\xff\xfe\xfa", "codec|utf"),
    ],
)
def test_a_file_of_no_settings_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        Settings.load(path)
    assert str(path) in refused.value.message


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=FILE):
        Settings.load(tmp_path / FILE)


@pytest.mark.parametrize(
    ("setting", "variable", "expected"),
    [
        (3, "5", 3),
        (0, "5", 5),
        (0, " 5 ", 5),
        (0, "4,2", 4),
        (0, "", cores()),
        (0, "0", cores()),
        (0, "-1", cores()),
        (0, "many", cores()),
        (0, "²", cores()),
        (0, None, cores()),
    ],
)
def test_engine_threads(setting: int, variable: str | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert engine_threads(setting) == expected


def test_cores_are_those_of_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    assert cores() == 3
