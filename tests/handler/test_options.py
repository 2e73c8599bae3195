from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import InvalidOption
from handler.geometry import Canvas
from handler.options import NAMES, Options

CANVASES = (Canvas(480, 640), Canvas(640, 640))
DEFAULTS = Options(score_threshold=0.5, nms_threshold=0.3)
#: Every option: (what is taken, what it becomes), and what is refused.
NUMBERS: list[tuple[object, object]] = [(0, 0.0), (1, 1.0), (0.25, 0.25), ("0.25", 0.25), (" 1e-1 ", 0.1), ("0", 0.0)]
NO_NUMBERS = [-0.001, 1.001, "1.1", "-1", math.nan, math.inf, -math.inf, "nan", "inf", "-inf", True, False, "true"]
NO_NUMBERS += ["", " ", "half", "0,5", "0x1", "1" * 100_000, 10**400, None, [0.5], {"a": 1}, b"0.5"]
FLAGS: list[tuple[object, object]] = [
    (True, True),
    (False, False),
    ("true", True),
    ("TRUE", True),
    (" False ", False),
    ("1", True),
    ("0", False),
]
NO_FLAGS = [1, 0, 1.0, "yes", "on", "", "2", None, [], [True]]
NO_CANVASES: list[object] = ["", "640", "640x", "x640", "640x641", "960x960", "640x480", "0x0", "-32x32"]
NO_CANVASES += ["640 x 640", "AUTO", "640x640\n640x640", "6" * 100_000, None, 640, ["auto"], {"a": "b" * 100_000}]
TAKEN: dict[str, list[tuple[object, object]]] = {
    "score_threshold": NUMBERS,
    "nms_threshold": NUMBERS,
    "max_faces": [(1, 1), (5000, 5000), (10.0, 10), ("7", 7), (" 7.0 ", 7), ("1e3", 1000)],
    "order": [("score", "score"), ("size", "size"), (" size ", "size")],
    "min_face_size": [(0, 0.0), (100_000, 100_000.0), (33.5, 33.5), ("33.5", 33.5)],
    "canvas": [("auto", "auto"), ("native", "native"), ("480x640", "480x640"), (" 640x640 ", "640x640")],
    "landmarks": FLAGS,
    "crops": FLAGS,
    "output": [("json", "json"), ("modelscope", "modelscope"), ("image", "image"), (" image", "image")],
}
REFUSED: dict[str, list[object]] = {
    "score_threshold": [*NO_NUMBERS],
    "nms_threshold": [*NO_NUMBERS],
    "max_faces": [0, -1, 5001, 1.5, "1.5", True, math.nan, math.inf, "inf", 10**400, "many", None, [1]],
    "order": ["Score", "", "area", None, 1, True, ["score"], "x" * 100_000],
    "min_face_size": [-0.1, 100_000.1, math.nan, math.inf, True, "big", None, [], "9" * 100_000],
    "canvas": [*NO_CANVASES],
    "landmarks": [*NO_FLAGS],
    "crops": [*NO_FLAGS],
    "output": ["JSON", "xml", "", None, 0, ["json"], "x" * 100_000],
}


def pairs(table: dict[str, list[object]]) -> list[tuple[str, object]]:
    return [(name, value) for name, values in table.items() for value in values]


def short(value: object) -> str:
    return ascii(value)[:30] if not isinstance(value, int) else str(value)[:30] if abs(value) < 10**9 else "a huge int"


def test_every_option_is_in_both_tables() -> None:
    assert set(TAKEN) == set(REFUSED) == set(NAMES) == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize(
    ("name", "value", "expected"), [(name, *case) for name, cases in TAKEN.items() for case in cases], ids=short
)
def test_values_are_taken_in_every_form(name: str, value: object, expected: object) -> None:
    parsed = DEFAULTS.updated({name: value}, CANVASES)
    found = getattr(parsed, name)
    assert found == expected
    assert type(found) is type(expected)
    assert parsed == dataclasses.replace(DEFAULTS, **{name: expected})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), pairs(REFUSED), ids=short)
def test_values_are_refused_by_name_in_a_short_message(name: str, value: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        DEFAULTS.updated({name: value}, CANVASES)
    assert refused.value.message.startswith(name)
    assert len(refused.value.message) < 250
    assert refused.value.status == 400
    assert refused.value.type == "invalid_option"


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("score_threshold", "expected a number from 0 to 1"),
        ("max_faces", "from 1 to 5000"),
        ("order", "expected one of score, size"),
        ("min_face_size", "from 0 to 100000"),
        ("canvas", "this archive has auto, native, 480x640, 640x640"),
        ("landmarks", "expected true or false"),
        ("output", "expected one of json, modelscope, image"),
    ],
)
def test_messages_say_what_is_allowed(name: str, allowed: str) -> None:
    with pytest.raises(InvalidOption, match=allowed):
        DEFAULTS.updated({name: "?"}, CANVASES)


@pytest.mark.parametrize("name", ["scores", "Score_Threshold", "", "x" * 100_000, "__class__"])
def test_unknown_options_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        DEFAULTS.updated({name: 1}, CANVASES)
    assert "unknown option" in refused.value.message
    assert ", ".join(NAMES) in refused.value.message
    assert len(refused.value.message) < 250


def test_options_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULTS.order = "size"  # type: ignore[misc]
    DEFAULTS.updated({"order": "size"}, CANVASES)
    assert DEFAULTS.order == "score"


def test_no_option_given_leaves_the_archive_own() -> None:
    assert DEFAULTS.updated({}, CANVASES) == DEFAULTS


@pytest.mark.parametrize(
    ("landmarks", "crops", "wanted"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_crops_want_landmarks(landmarks: bool, crops: bool, wanted: bool) -> None:
    assert dataclasses.replace(DEFAULTS, landmarks=landmarks, crops=crops).wants_landmarks is wanted


@pytest.mark.parametrize("output", ["modelscope", "image"])
def test_crops_are_refused_where_an_answer_has_no_room_for_them(output: str) -> None:
    with pytest.raises(InvalidOption, match=f"crops is true and output '{output}'"):
        DEFAULTS.updated({"crops": "true", "output": output}, CANVASES)


@given(st.floats() | st.integers() | st.text() | st.booleans() | st.none())
def test_no_number_gets_past_its_range(value: object) -> None:
    try:
        taken = DEFAULTS.updated({"score_threshold": value}, CANVASES).score_threshold
    except InvalidOption:
        return
    assert isinstance(taken, float)
    assert 0 <= taken <= 1
    assert not isinstance(value, bool)


#: Values of any JSON type.
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
SOUND = st.fixed_dictionaries(
    {},
    optional={
        "score_threshold": st.floats(0, 1),
        "nms_threshold": st.floats(0, 1),
        "max_faces": st.integers(1, 5000),
        "order": st.sampled_from(["score", "size"]),
        "min_face_size": st.floats(0, 100_000),
        "canvas": st.sampled_from(["auto", "native", "480x640"]),
        "landmarks": st.booleans(),
        "crops": st.just(False),
        "output": st.sampled_from(["json", "modelscope", "image"]),
    },
)


@given(SOUND)
def test_what_is_sound_is_taken_as_it_is_and_as_text(given: dict[str, object]) -> None:
    taken = DEFAULTS.updated(given, CANVASES)
    assert {name: getattr(taken, name) for name in given} == given
    # Headers and parts of a form are text.
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    assert DEFAULTS.updated(text, CANVASES) == taken


@given(st.dictionaries(st.sampled_from(NAMES), ANY, min_size=1, max_size=4))
def test_any_values_are_taken_or_refused_in_a_short_message(given: dict[str, object]) -> None:
    try:
        taken = DEFAULTS.updated(given, CANVASES)
    except InvalidOption as error:
        taken, message = None, error.message
    if taken is None:
        assert any(message.startswith(name) for name in given)
        assert len(message) < 250
        return
    assert DEFAULTS.updated({name: getattr(taken, name) for name in NAMES}, CANVASES) == taken


def test_a_list_is_not_written_out_to_be_shown_shortened() -> None:
    class Costly:
        def __repr__(self) -> str:
            raise AssertionError("it was written out")

    with pytest.raises(InvalidOption, match="order is"):
        DEFAULTS.updated({"order": [0] * 100 + [Costly()]}, CANVASES)


def test_a_number_of_more_digits_than_python_writes_is_refused() -> None:
    with pytest.raises(InvalidOption, match="max_faces is a int too large to show"):
        DEFAULTS.updated({"max_faces": 10**10_000}, CANVASES)
