"""Requests and replies as bytes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clients import errors, wire
from clients.errors import BadAnswer, ClientError, UsageError
from tests.clients.test_answer import TEXT

PNG = b"\x89PNG\r\n\x1a\n"


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def test_a_request_in_both_forms() -> None:
    request = wire.Request(b"IMAGE", {"score_threshold": "0.5", "crops": "true"})
    assert request.headers == {
        "Content-Type": "application/octet-stream",
        "X-Face-Score-Threshold": "0.5",
        "X-Face-Crops": "true",
    }
    assert request.fields == {"image": b"IMAGE", "score_threshold": b"0.5", "crops": b"true"}


def test_options_become_text() -> None:
    given = {"a": True, "b": False, "c": 5, "d": 0.25, "e": "480x640", "f": np.float32(0.5), "g": np.bool_(True)}
    assert wire.options(given) == {
        "a": "true",
        "b": "false",
        "c": "5",
        "d": "0.25",
        "e": "480x640",
        "f": "0.5",
        "g": "true",
    }


@pytest.mark.parametrize("value", [None, [1], b"0.5", "a\r\nX-Face-Crops: true", "naïve"])
def test_values_that_cannot_be_sent(value: object) -> None:
    with pytest.raises(UsageError, match=r"option canvas is .*: expected true or false, a number or ASCII text"):
        wire.options({"canvas": value})


@pytest.mark.parametrize("value", [10**5000, -(10**5000), [10**5000]], ids=["large", "small", "inside"])
def test_numbers_that_python_does_not_print(value: object) -> None:
    with pytest.raises(UsageError, match="option max_faces"):
        wire.options({"max_faces": value})


def test_paths() -> None:
    assert wire.path("predictions", "a/b c", "1.0") == "/predictions/a%2Fb%20c/1.0"
    with pytest.raises(UsageError, match=r"'models/\\udcff' cannot be sent: surrogates not allowed"):
        wire.path("models", "\udcff")


def test_a_damaged_pil_image_is_named_whatever_its_decoder_raises() -> None:
    class Broken(Image.Image):
        def load(self) -> None:
            raise SyntaxError("broken PNG file")

    image = Broken()
    image._mode, image._size = "RGB", (4, 4)
    with pytest.raises(UsageError, match="image cannot be written as PNG: SyntaxError: broken PNG file"):
        wire.encode(image)


@pytest.mark.parametrize("name", ["", "Canvas", "a-b", "a b", "a:", "é", "image", "image2", "images", "data", "file_3"])
def test_names_that_cannot_be_sent(name: str) -> None:
    """Over gRPC an option called image2 would be a second image."""
    with pytest.raises(UsageError, match="expected a name such as score_threshold"):
        wire.options({name: 1})


def test_bytes_go_as_they_are(tmp_path: Path) -> None:
    assert wire.encode(b"anything") == b"anything"
    (tmp_path / "a").write_bytes(b"content")
    assert wire.encode(tmp_path / "a") == b"content"


def test_pixels_go_without_loss() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    data = wire.encode(pixels)
    assert data.startswith(PNG)
    np.testing.assert_array_equal(np.asarray(opened(data)), pixels)
    # A view with strides of its own, such as BGR turned round.
    np.testing.assert_array_equal(np.asarray(opened(wire.encode(pixels[:, ::-1, ::-1]))), pixels[:, ::-1, ::-1])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_pil_images_keep_their_mode(mode: str) -> None:
    image = Image.new(mode, (5, 4))
    assert (opened(wire.encode(image)).mode, opened(wire.encode(image)).size) == (mode, (5, 4))


def test_a_pil_image_keeps_its_orientation() -> None:
    photo = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (5, 4)).save(photo, "JPEG", exif=exif)
    assert opened(wire.encode(opened(photo.getvalue()))).getexif()[0x0112] == 6


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Path("/nowhere/a.jpg"), r"image /nowhere/a\.jpg cannot be read: No such file or directory"),
        (Path("/"), "image / is no regular file"),
        ("a.jpg", r"image is a str: expected bytes, a pathlib\.Path, a PIL image or a uint8 array"),
        (np.zeros((4, 5, 3)), r"image is float64 \[4, 5, 3\]: an array must be uint8 \[H, W, 3\], RGB"),
        (np.zeros((4, 5), np.uint8), r"image is uint8 \[4, 5\]"),
        (np.zeros((4, 5, 4), np.uint8), r"image is uint8 \[4, 5, 4\]"),
        (np.zeros((0, 5, 3), np.uint8), r"image is uint8 \[0, 5, 3\]"),
        (Image.new("CMYK", (4, 4)), "image has the mode CMYK, which PNG cannot hold"),
        (Image.new("F", (4, 4)), "image has the mode F"),
    ],
)
def test_what_is_no_image(image: wire.Picture, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wire.encode(image)


def test_an_answer() -> None:
    answer = wire.answer(200, TEXT.encode())
    assert (answer.width, len(answer.faces)) == (64, 2)


def told(code: int, type: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "type": type, "message": message}}).encode()


def torchserve(code: int, type: str, message: str) -> bytes:
    return json.dumps({"code": code, "type": type, "message": message}, indent=2).encode()


NO_WORKER = 'Model "m" has no worker to serve inference request. Please use scale workers API to add workers.'


def refused(status: int, body: bytes) -> ClientError:
    """What both readers raise for a reply."""
    raised = []
    for read in (wire.answer, wire.picture):
        with pytest.raises(ClientError) as caught:
            read(status, body)
        raised.append(caught.value)
    first, second = raised
    assert (type(first), first.status, first.type, first.message) == (
        type(second),
        second.status,
        second.type,
        second.message,
    )
    return first


@pytest.mark.parametrize(
    ("code", "type", "kind"),
    [
        (400, "invalid_request", errors.InvalidRequest),
        (400, "invalid_option", errors.InvalidOption),
        (400, "invalid_image", errors.InvalidImage),
        (413, "too_large", errors.TooLarge),
        (415, "unsupported_image", errors.UnsupportedImage),
        (500, "engine", errors.ServerFault),
        (500, "internal", errors.ServerFault),
        (503, "deadline", errors.DeadlineMissed),
        (503, "out_of_memory", errors.OutOfMemory),
    ],
)
@pytest.mark.parametrize("over_grpc", [False, True])
def test_the_servers_own_errors(code: int, type: str, kind: type[ClientError], over_grpc: bool) -> None:
    """gRPC loses the status; the body says it."""
    error = refused(200 if over_grpc else code, told(code, type, "why"))
    assert error.__class__ is kind
    assert (error.status, error.type, error.message) == (code, type, "why")


@pytest.mark.parametrize(
    ("code", "name", "message", "kind", "type"),
    [
        (400, "InvalidKeyException", "no token", errors.NotAuthorised, "not_authorised"),
        (404, "ModelNotFoundException", "no m", errors.NotFound, "not_found"),
        (404, "ModelVersionNotFoundException", "no 7", errors.NotFound, "not_found"),
        (503, "ServiceUnavailableException", NO_WORKER, errors.QueueFull, "queue_full"),
        (500, "InternalServerException", "Worker died.", errors.WorkerDied, "worker_died"),
        (503, "InternalServerException", "Prediction failed", errors.ServerFault, "InternalServerException"),
        (507, "InternalServerException", "Out of resources", errors.ServerFault, "InternalServerException"),
        (409, "ConflictStatusException", "twice", errors.Refused, "refused"),
    ],
)
def test_torchserves_errors(code: int, name: str, message: str, kind: type[ClientError], type: str) -> None:
    error = refused(code, torchserve(code, name, message))
    assert error.__class__ is kind
    assert (error.status, error.type, error.message) == (code, type, message)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"who?", errors.NotAuthorised),
        (413, b"", errors.TooLarge),
        (418, b"tea", errors.Refused),
        (429, b"slow down", errors.QueueFull),
        (500, b"[1]", errors.ServerFault),
        (502, b"<html>", errors.Unreachable),
        (503, b"<html>", errors.Unavailable),
    ],
)
def test_errors_of_any_proxy(status: int, body: bytes, kind: type[ClientError]) -> None:
    error = refused(status, body)
    assert error.__class__ is kind
    expected = body.decode() or "the server answered with status 413 and nothing else"
    assert (error.status, error.message) == (status, expected)


@pytest.mark.parametrize(
    ("status", "type", "kind"),
    [
        (401, "not_authorised", errors.NotAuthorised),
        (404, "not_found", errors.NotFound),
        (405, "method_not_allowed", errors.Refused),
        (413, "too_large", errors.TooLarge),
        (429, "rate_limited", errors.QueueFull),
        (502, "unavailable", errors.Unavailable),
        (504, "unavailable", errors.Unavailable),
    ],
)
def test_errors_of_the_projects_nginx(status: int, type: str, kind: type[ClientError]) -> None:
    """Of those with a status of 5xx only ``unavailable`` may be sent again, else it would be a fault of the server."""
    error = refused(status, told(status, type, "why"))
    assert error.__class__ is kind
    assert (error.status, error.message, error.retryable) == (status, "why", status in (429, 502, 504))


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[1]", b'{"results": []}', b'{"scores": [], "boxes": []}', TEXT.replace("1.25", "NaN").encode()],
)
def test_success_that_is_no_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        wire.answer(200, body)


@pytest.mark.parametrize("body", [PNG + b"...", b"\xff\xd8\xff\xe0..."])
def test_pictures_come_back_as_they_are(body: bytes) -> None:
    assert wire.picture(200, body) == body


@pytest.mark.parametrize("body", [b"", b"GIF89a", b"{}"])
def test_what_is_no_picture(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        wire.picture(200, body)


def test_files_that_are_none_and_too_large_ones_are_not_read(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large.jpg"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="no regular file"):
        wire.encode(pipe)
    with pytest.raises(errors.TooLarge, match=r"has 1,099,511,627,776 bytes: at most 100"):
        wire.encode(large, 100)
    with pytest.raises(UsageError, match="cannot be read"):
        wire.encode(Path("a\0b"))
