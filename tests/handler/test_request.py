from __future__ import annotations

import base64
import dataclasses
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.config import Limits, Settings
from handler.errors import InvalidImage, InvalidOption, InvalidRequest, MogFaceError, RequestError, TooLarge
from handler.options import NAMES, Options
from handler.request import Parsed, Request, parse

DEFAULTS = Options(score_threshold=0.5, nms_threshold=0.3)
SETTINGS = Settings("centerface", "none", DEFAULTS, limits=Limits(images=4))
BYTES = b"\xff\xd8 any bytes: they are not looked at here"
TEXT = base64.b64encode(BYTES).decode()


def read(fields: object, **headers: str) -> Parsed:
    assert isinstance(fields, dict)
    return parse(Request(fields, {name.replace("_", "-"): value for name, value in headers.items()}), SETTINGS)


def read_json(body: object, content_type: str = "application/json") -> Parsed:
    """As TorchServe hands over a JSON body."""
    return read({"body": body}, content_type=content_type)


def with_options(**changes: object) -> Options:
    return dataclasses.replace(DEFAULTS, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["body", "data"])
@pytest.mark.parametrize("data", [BYTES, bytearray(BYTES)])
def test_a_raw_body_is_one_image(name: str, data: bytes | bytearray) -> None:
    assert read({name: data}, content_type="image/jpeg") == Parsed((data,), DEFAULTS, several=False)


def test_an_empty_body_is_an_empty_image() -> None:
    # What is wrong with its bytes is said where they are decoded.
    assert read({"body": bytearray()}).images == (bytearray(),)


@pytest.mark.parametrize(
    "name", ["image", "images", "data", "body", "file", "image1", "image_1", "file-1", "data000001"]
)
def test_a_multipart_part_of_every_name_is_an_image(name: str) -> None:
    parsed = read(
        {name: bytearray(BYTES), "max_faces": bytearray(b"3")}, Content_Type="multipart/form-data; boundary=x"
    )
    assert parsed == Parsed((bytearray(BYTES),), with_options(max_faces=3), several=False)


def test_numbered_parts_are_ordered_by_number_not_as_text_nor_as_they_came() -> None:
    parsed = read({"image10": b"10", "image2": b"2", "file1": b"1", "image": b"0"})
    assert parsed.images == (b"0", b"1", b"2", b"10")
    assert parsed.several


def test_equal_numbers_are_ordered_by_name() -> None:
    assert read({"image1": b"image", "data1": b"data", "file1": b"file"}).images == (b"data", b"file", b"image")


def test_every_option_comes_in_by_a_part() -> None:
    options = {
        "score_threshold": (b"0.25", 0.25),
        "nms_threshold": (b"0.5", 0.5),
        "max_faces": (b"7", 7),
        "order": (b"size", "size"),
        "min_face_size": (b"20", 20.0),
        "canvas": (b"480x640", "480x640"),
        "landmarks": (b"true", True),
        "crops": (b"1", True),
        "output": (b"json", "json"),
    }
    assert set(options) == set(NAMES)
    parsed = read({"image": BYTES, **{name: bytearray(sent) for name, (sent, _) in options.items()}})
    assert parsed.options == Options(**{name: meant for name, (_, meant) in options.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
@pytest.mark.parametrize("encode", [bytes, bytearray])
def test_json_that_torchserve_did_not_parse_is_parsed_here(content_type: str, encode: type[bytes]) -> None:
    body = encode(json.dumps({"image": TEXT, "order": "size"}).encode())
    assert read_json(body, content_type) == Parsed((BYTES,), with_options(order="size"), several=False)


def test_a_json_object_is_taken_as_torchserve_parsed_it() -> None:
    parsed = read_json({"image": TEXT, "score_threshold": 0.75, "landmarks": True})
    assert parsed == Parsed((BYTES,), with_options(score_threshold=0.75, landmarks=True), several=False)


@pytest.mark.parametrize("name", ["body", "data"])
def test_json_may_call_its_image_as_a_raw_body_is_called(name: str) -> None:
    assert read_json({name: TEXT}).images == (BYTES,)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_list_of_images_is_answered_by_a_list_whatever_its_length(count: int) -> None:
    texts = [base64.b64encode(bytes([index])).decode() for index in range(count)]
    assert read_json({"images": texts}) == Parsed(
        tuple(bytes([index]) for index in range(count)), DEFAULTS, several=True
    )


def test_a_numbered_list_is_a_list_too() -> None:
    assert read_json({"images1": [TEXT]}).several


def test_data_urls_are_base64_after_the_comma() -> None:
    assert read_json({"image": f"data:image/jpeg;base64,{TEXT}"}).images == (BYTES,)


BAD_IMAGES = {
    "null": None,
    "a number": 7,
    "true": True,
    "an object": {"b64": TEXT},
    "a list in the list": [TEXT],
    "not base64": "!!!!",
    "cut base64": TEXT[:-3],
    "beyond ASCII": "é" * 4,
    "a URL": "https://example.org/face.jpg",
    "a path": "/etc/passwd",
    "a data URL without data": "data:image/png;base64,?",
}


@pytest.mark.parametrize("bad", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_an_image_that_is_none_keeps_its_error_to_itself(bad: object) -> None:
    first, second, third = read_json({"images": [TEXT, bad, TEXT]}).images
    assert first == third == BYTES
    assert isinstance(second, InvalidImage)
    assert "base64" in second.message
    assert len(second.message) < 200


@pytest.mark.parametrize("bad", [None, 7, {}, "!!!!"])
def test_a_single_image_that_is_none_is_an_error_too(bad: object) -> None:
    (image,) = read_json({"image": bad}).images
    assert isinstance(image, InvalidImage)


MALFORMED: dict[str, object] = {
    "a list": [1, 2],
    "a list as bytes": b"[1, 2]",
    "null": None,
    "a text": "hello",
    "a text as bytes": b'"hello"',
    "an object within a text": json.dumps({"image": TEXT}),
    "a number": 3,
    "true": True,
    "no JSON": b"{'image': 1}",
    "cut": b'{"image": "',
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\xfa",
    "too deep": b'{"image":' * 9_000,
    "a number of too many digits": b'{"max_faces": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_json_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(InvalidRequest, match="JSON") as refused:
        read_json(body)
    assert len(refused.value.message) < 300
    assert (refused.value.status, refused.value.type) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, InvalidRequest, "no image came"),
        ({"max_faces": b"3"}, InvalidRequest, "no image came"),
        ({"images": []}, InvalidRequest, "no image came"),
        ({"image": [TEXT, TEXT]}, InvalidRequest, "'image' is a list: several images go under 'images'"),
        ({"image": BYTES, "picture": BYTES}, InvalidOption, "unknown field 'picture'"),
        ({"image": BYTES, "x" * 1000: BYTES}, InvalidOption, "unknown field 'xxx"),
        ({"image": BYTES, "image1234567": BYTES}, InvalidOption, "unknown field"),
        ({"image": BYTES, "Image": BYTES}, InvalidOption, "unknown field 'Image'"),
        ({"image": BYTES, "order": b"\xff"}, InvalidOption, "order is not UTF-8"),
        ({"image": BYTES, "max_faces": bytearray(b"many")}, InvalidOption, "max_faces is 'many'"),
        ({"image": BYTES, "max_faces": None}, InvalidOption, "max_faces is None"),
        ({f"image{index}": BYTES for index in range(5)}, TooLarge, "5 images came: at most 4"),
        ({"images": [TEXT] * 5}, TooLarge, "5 images came: at most 4"),
        ({"images": ["!"] * 5}, TooLarge, "5 images came: at most 4"),
        ({"images": [TEXT], "output": "image"}, InvalidOption, "one image a request"),
        ({"image": BYTES, "image1": BYTES, "output": b"image"}, InvalidOption, "one image a request"),
        ({"image": BYTES, "crops": b"true", "output": b"image"}, InvalidOption, "room for crops"),
        ({"image": BYTES, "crops": b"true", "output": b"modelscope"}, InvalidOption, "room for crops"),
    ],
)
def test_forms_are_refused_with_a_reason(fields: object, error: type[MogFaceError], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        read(fields)
    assert len(refused.value.message) < 300


def test_an_unknown_field_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidOption) as refused:
        read_json({"image": TEXT, "threshold": 0.5})
    for name in ("image", "data", "body", "file", *NAMES):
        assert name in refused.value.message


@pytest.mark.parametrize("name", ["X-Face-Max-Faces", "x-face-max-faces", "X-FACE-MAX-FACES", "X-Face-Max_Faces"])
def test_options_come_in_headers_of_any_case(name: str) -> None:
    assert parse(Request({"body": BYTES}, {name: "3"}), SETTINGS).options == with_options(max_faces=3)


def test_headers_hold_for_json_and_multipart_too() -> None:
    assert read_json({"image": TEXT}).options.order == "score"
    parsed = read({"body": {"image": TEXT}}, Content_Type="application/json", X_Face_Order="size")
    assert parsed.options.order == "size"
    assert read({"image": BYTES}, X_Face_Order="size").options.order == "size"


def test_a_field_wins_over_a_header() -> None:
    assert read({"image": BYTES, "order": b"size"}, X_Face_Order="score").options.order == "size"


def test_a_wrong_header_is_refused_though_a_field_wins_over_another() -> None:
    with pytest.raises(InvalidOption, match="unknown option 'threshold'"):
        read({"image": BYTES, "order": b"size"}, X_Face_Order="score", X_Face_Threshold="1")


def test_other_headers_are_none_of_ours() -> None:
    headers = {"X-Facet": "1", "Face-Order": "size", "order": "size", "Host": "x", "User-Agent": "y"}
    assert parse(Request({"body": BYTES}, headers), SETTINGS).options == DEFAULTS


def test_a_part_may_be_called_as_a_header_is() -> None:
    # TorchServe puts a part's own headers among the request's, as a mapping under the part's name.
    headers: dict[str, object] = {
        "content-type": {"content-type": "text/plain"},
        "image": {"content-type": "image/png"},
    }
    assert parse(Request({"body": BYTES}, headers), SETTINGS).images == (BYTES,)  # type: ignore[arg-type]


def test_a_body_beside_fields_is_an_image_among_them() -> None:
    assert read({"body": BYTES, "image1": b"1"}).images == (BYTES, b"1")


def test_a_body_in_json_beside_fields_is_not_taken_for_the_json() -> None:
    parsed = read({"body": TEXT, "order": "size"}, content_type="application/json")
    assert parsed == Parsed((BYTES,), with_options(order="size"), several=False)


def test_base64_may_come_in_lines() -> None:
    text = base64.encodebytes(bytes(range(256)) * 4).decode()
    assert text.count("\n") > 2
    (image,) = parse(Request({"body": {"image": text}}, {}), SETTINGS).images
    assert image == bytes(range(256)) * 4


@pytest.mark.parametrize("body", [b'{"images": [' + b"[]," * 20_000 + b"[]]}", b"[" * 20_000, b'{"a":{},' * 20_000])
def test_a_json_body_of_many_values_is_refused_before_it_is_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(_: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(json, "loads", loads)
    with pytest.raises(TooLarge, match=r"about \d\d,\d\d\d values: at most 10,000"):
        read_json(body)


def test_a_large_image_in_json_is_few_values() -> None:
    data = bytes(range(256)) * 4_000
    assert read_json(json.dumps({"image": base64.b64encode(data).decode()}).encode()).images == (data,)


def test_images_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object, **__: object) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(base64, "b64decode", decode)
    with pytest.raises(TooLarge, match="5 images came: at most 4"):
        read_json({"images": [TEXT] * 5})


def test_spaces_in_base64_take_no_memory_of_their_own() -> None:
    text = " \n" * 500_000 + TEXT + "\r\t" * 500_000
    tracemalloc.start()
    try:
        assert read_json({"image": text}).images == (BYTES,)
        # Cut into words, each a string of its own, these would be twenty times as many.
        words = 2 * len(text)
        assert tracemalloc.get_traced_memory()[1] < words + 1_000_000
    finally:
        tracemalloc.stop()


@given(
    st.dictionaries(
        st.sampled_from(["image", "images", "image2", "data", *NAMES, "other"]) | st.text(max_size=10),
        st.binary(max_size=20) | st.text(max_size=20) | st.none() | st.floats() | st.lists(st.text(max_size=5)),
        max_size=6,
    ),
    st.dictionaries(st.sampled_from(["X-Face-Order", "X-Face-Crops", "Content-Type", "X-Face-"]), st.text(max_size=9)),
)
def test_any_request_is_read_or_refused_in_a_short_message(fields: dict[str, object], headers: dict[str, str]) -> None:
    try:
        parsed = parse(Request(fields, headers), SETTINGS)
    except RequestError as error:
        parsed, message = None, error.message
    if parsed is None:
        assert 0 < len(message) < 600
        return
    assert 1 <= len(parsed.images) <= 4
    assert parsed.several or len(parsed.images) == 1
