from __future__ import annotations

import io
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from handler.config import Limits
from handler.errors import InvalidImage, RequestError, TooLarge, UnsupportedImage
from handler.geometry import Uint8
from handler.image import decode
from tests.support import chunk, png, saved

LIMITS = Limits()
#: EXIF 2.3, tag 274: at which side of the upright picture the stored row 0 and column 0 lie.
SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


@pytest.fixture(scope="module")
def noise() -> Uint8:
    """[5, 7, 3]: no two pixels alike."""
    return np.random.default_rng(0).permutation(105).reshape(5, 7, 3).astype(np.uint8)


def exif(kind: int, value: bytes) -> bytes:
    """An EXIF block whose one entry is the orientation, of this TIFF type, big-endian."""
    return b"Exif\0\0MM\0*" + struct.pack(">IHHHI4sI", 8, 1, 0x0112, kind, 1, value, 0)


def turned_by(orientation: int) -> bytes:
    return exif(3, struct.pack(">H2x", orientation))


def upright(stored: Uint8, orientation: int) -> Uint8:
    """The stored picture turned by the words of the standard, pixel by pixel."""
    rows, columns = stored.shape[:2]
    row_side, column_side = SIDES[orientation]
    swapped = row_side in ("left", "right")
    turned = np.zeros((columns, rows, 3) if swapped else (rows, columns, 3), np.uint8)
    for row in range(rows):
        for column in range(columns):
            along = row if row_side in ("top", "left") else rows - 1 - row
            across = column if column_side in ("top", "left") else columns - 1 - column
            turned[(across, along) if swapped else (along, across)] = stored[row, column]
    return turned


@pytest.mark.parametrize(("format", "how"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})])
def test_formats_without_loss_come_back_exactly(noise: Uint8, format: str, how: dict[str, bool]) -> None:
    decoded = decode(saved(Image.fromarray(noise), format, **how), LIMITS)
    np.testing.assert_array_equal(decoded.array, noise)
    assert decoded.array.dtype == np.uint8
    assert decoded.array.flags.c_contiguous
    assert decoded.format == format


def test_bytearray_is_taken_as_bytes_are(noise: Uint8) -> None:
    np.testing.assert_array_equal(decode(bytearray(saved(Image.fromarray(noise), "PNG")), LIMITS).array, noise)


def test_jpeg_is_rgb_in_rows_and_columns() -> None:
    array = np.zeros((32, 48, 3), np.uint8)
    array[:16] = 250, 10, 20
    array[16:, :16] = 10, 240, 30
    decoded = decode(saved(Image.fromarray(array), "JPEG", quality=100, subsampling=0), LIMITS)
    assert decoded.format == "JPEG"
    assert np.abs(decoded.array.astype(int) - array).max() <= 4


def palette(colours: list[tuple[int, int, int]], indices: list[list[int]]) -> Image.Image:
    picture = Image.fromarray(np.array(indices, np.uint8), "L")
    picture.putpalette([value for colour in colours for value in colour])
    return picture


def pixels(mode: str, *values: int | tuple[int, ...]) -> Image.Image:
    picture = Image.new(mode, (len(values), 1))
    picture.putdata(list(values))  # type: ignore[arg-type]
    return picture


COLOURS = [(10, 20, 30), (200, 0, 100)]
MODES = {
    "1": (saved(pixels("1", 0, 255), "PNG"), [(0, 0, 0), (255, 255, 255)]),
    "L": (saved(pixels("L", 7, 250), "PNG"), [(7, 7, 7), (250, 250, 250)]),
    "L with one clear grey": (saved(pixels("L", 7, 8), "PNG", transparency=7), [(255, 255, 255), (8, 8, 8)]),
    "LA": (saved(pixels("LA", (100, 255), (100, 0)), "PNG"), [(100, 100, 100), (255, 255, 255)]),
    # Half clear over white: 100 * 51/255 + 255 * 204/255.
    "LA, partly clear": (saved(pixels("LA", (100, 51)), "PNG"), [(224, 224, 224)]),
    "P": (saved(palette(COLOURS, [[1, 0]]), "PNG"), [COLOURS[1], COLOURS[0]]),
    "P with a clear index": (saved(palette(COLOURS, [[1, 0]]), "PNG", transparency=1), [(255, 255, 255), COLOURS[0]]),
    "P with alphas": (
        saved(palette(COLOURS, [[1, 0]]), "PNG", transparency=b"\xff\x33"),
        [(244, 204, 224), COLOURS[0]],
    ),
    "GIF with a clear index": (
        saved(palette(COLOURS, [[1, 0]]), "GIF", transparency=1),
        [(255, 255, 255), COLOURS[0]],
    ),
    "RGBA": (
        saved(pixels("RGBA", (10, 20, 30, 255), (10, 20, 30, 0), (0, 100, 255, 51)), "PNG"),
        [(10, 20, 30), (255, 255, 255), (204, 224, 255)],
    ),
    "RGBA in WebP": (
        saved(pixels("RGBA", (10, 20, 30, 255), (10, 20, 30, 0)), "WEBP", lossless=True, exact=True),
        [(10, 20, 30), (255, 255, 255)],
    ),
    "RGB with one clear colour": (
        saved(pixels("RGB", (1, 2, 3), (1, 2, 4)), "PNG", transparency=(1, 2, 3)),
        [(255, 255, 255), (1, 2, 4)],
    ),
}


@pytest.mark.parametrize(("data", "expected"), MODES.values(), ids=MODES)
def test_every_mode_has_its_rule(data: bytes, expected: list[tuple[int, int, int]]) -> None:
    decoded = decode(data, LIMITS).array
    assert decoded.shape == (1, len(expected), 3)
    assert (
        np.abs(decoded[0].astype(int) - np.array(expected)).max() <= 1
    )  # alphas are rounded by the format's own rules


@pytest.mark.parametrize("adobe", [True, False])
def test_cmyk_jpeg_is_read_as_printing_programs_write_it(adobe: bool) -> None:
    # Programs that write CMYK store it inverted, and mark that with Adobe's segment or not.
    inks = np.zeros((16, 32, 4), np.uint8)
    inks[:, :16] = 0, 200, 100, 50
    inks[:, 16:] = 255, 0, 0, 0
    data = saved(Image.fromarray(inks, "CMYK"), "JPEG", quality=100, subsampling=0)
    start = data.index(b"\xff\xee")
    assert data[start + 4 : start + 9] == b"Adobe"
    if not adobe:
        data = data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4], "big") :]
    expected = (255 - inks[..., :3].astype(float)) * (255 - inks[..., 3:].astype(float)) / 255
    assert np.abs(decode(data, LIMITS).array - expected).max() <= 3


@pytest.mark.parametrize("orientation", SIDES)
def test_exif_orientation_is_applied(noise: Uint8, orientation: int) -> None:
    data = saved(Image.fromarray(noise), "PNG", exif=turned_by(orientation))
    np.testing.assert_array_equal(decode(data, LIMITS).array, upright(noise, orientation))


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", SIDES)
def test_exif_orientation_is_applied_in_lossy_formats(format: str, orientation: int) -> None:
    stored = np.zeros((32, 48, 3), np.uint8)
    stored[:16, :24] = 255
    decoded = decode(saved(Image.fromarray(stored), format, quality=100, exif=turned_by(orientation)), LIMITS).array
    assert np.abs(decoded.astype(int) - upright(stored, orientation)).max() <= 12


def test_exif_after_the_pixels_of_a_png_counts_too(noise: Uint8) -> None:
    data = saved(Image.fromarray(noise), "PNG")
    end = data.index(b"IEND") - 4
    late = data[:end] + chunk(b"eXIf", turned_by(6).removeprefix(b"Exif\0\0")) + data[end:]
    np.testing.assert_array_equal(decode(late, LIMITS).array, upright(noise, 6))


ODD_EXIF = {
    "0": turned_by(0),
    "9": turned_by(9),
    "65535": turned_by(65535),
    "text": exif(2, b"6\0\0\0"),
    "a fraction": exif(11, struct.pack(">f", 6)),
    "an unknown type": exif(99, struct.pack(">H2x", 6)),
    "noise": b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\xff\xff",
    "cut": b"Exif\0\0II*",
    "another block": b"hello",
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("block", ODD_EXIF.values(), ids=ODD_EXIF)
def test_odd_exif_counts_as_upright(noise: Uint8, block: bytes) -> None:
    data = saved(Image.fromarray(noise), "PNG", exif=block)
    np.testing.assert_array_equal(decode(data, LIMITS).array, noise)


def test_orientation_in_xmp_is_not_applied_as_in_browsers() -> None:
    stored = np.zeros((16, 32, 3), np.uint8)
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert decode(saved(Image.fromarray(stored), "JPEG", xmp=xmp), LIMITS).array.shape == (16, 32, 3)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_animations_give_their_first_frame(format: str) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
    data = saved(frames[0], format, save_all=True, append_images=frames[1:], duration=50, lossless=True)
    with Image.open(io.BytesIO(data)) as reread:
        assert getattr(reread, "n_frames", 1) == 3
    decoded = decode(data, LIMITS).array
    assert decoded.shape == (6, 8, 3)
    assert (decoded == (255, 0, 0)).all()


def test_multi_picture_jpeg_gives_its_first_picture_upright() -> None:
    first, second = Image.new("RGB", (32, 16), (250, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 250))
    decoded = decode(saved(first, "MPO", save_all=True, append_images=[second], exif=turned_by(6)), LIMITS)
    assert decoded.format == "MPO"
    assert decoded.array.shape == (32, 16, 3)
    assert np.abs(decoded.array.astype(int) - (250, 0, 0)).max() <= 4


def test_more_bytes_than_the_limit_are_refused(noise: Uint8) -> None:
    data = saved(Image.fromarray(noise), "PNG")
    decode(data, Limits(bytes=len(data)))
    with pytest.raises(TooLarge, match=f"has {len(data):,} bytes: at most {len(data) - 1:,}"):
        decode(data, Limits(bytes=len(data) - 1))


def test_more_pixels_than_the_limit_are_refused(noise: Uint8) -> None:
    data = saved(Image.fromarray(noise), "PNG")
    decode(data, Limits(pixels=35))
    with pytest.raises(TooLarge, match="7x5, 35 pixels: at most 34"):
        decode(data, Limits(pixels=34))


def gif_with_frame(side: int) -> bytes:
    """Its screen has one pixel, its frame far more."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00;"


def webp_with_canvas(side: int) -> bytes:
    """Its frame has one pixel, its canvas far more."""
    frame = saved(Image.new("RGB", (1, 1)), "WEBP", lossless=True)[12:]
    parts = b"VP8X" + struct.pack("<IB3x", 10, 2) + 2 * (side - 1).to_bytes(3, "little")
    parts += b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    frame = bytes(12) + (100).to_bytes(3, "little") + b"\0" + frame
    parts += b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts


BOMBS = {
    "PNG": png(60_000, 60_000, 8, 2),
    "PNG just over": png(10_000, 5_001, 8, 2),
    "PNG of the largest size": png(2**31 - 1, 2**31 - 1, 1, 0),
    "PNG between Pillow's limits": png(10_000, 12_000, 8, 2),
    "GIF": gif_with_frame(60_000),
    "WebP": webp_with_canvas(60_000),
    "BMP": b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 50_000, 50_000, 1, 24, 0, 0, 0, 0, 0, 0),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # the handler silences Pillow's own
@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_by_their_header(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise AssertionError("a pixel was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    started = time.perf_counter()
    with pytest.raises(TooLarge, match="pixels"):
        decode(data, LIMITS)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(("colour", "samples"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_a_sample_are_refused_by_their_kind(colour: int, samples: int) -> None:
    with pytest.raises(UnsupportedImage, match=r"PNG has samples of over 8 bits.*8-bit images are taken"):
        decode(png(1, 1, 16, colour, b"\0" + b"\x80\0" * samples), LIMITS)


def test_a_picture_that_no_memory_is_left_for_is_too_large(noise: Uint8, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(TooLarge, match="more memory than there is"):
        decode(saved(Image.fromarray(noise), "PNG"), LIMITS)


OTHERS = {
    "TIFF": saved(Image.new("RGB", (4, 4)), "TIFF"),
    "TIFF, big-endian": b"MM\0*" + bytes(32),
    "AVIF": b"\0\0\0\x20ftypavif" + bytes(32),
    "HEIC": b"\0\0\0\x18ftypheic" + bytes(32),
    "HEIF": b"\0\0\0\x18ftypmif1" + bytes(32),
    "PDF": saved(Image.new("RGB", (4, 4)), "PDF"),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "JPEG XL": b"\xff\x0a" + bytes(32),
    "JPEG 2000": saved(Image.new("RGB", (32, 32)), "JPEG2000"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_pictures_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedImage, match=f"the image is {name.partition(',')[0]}: JPEG, PNG, WebP, GIF and BMP"):
        decode(OTHERS[name], LIMITS)


PICTURE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (24, 40, 3), np.uint8))
WHOLE = {format: saved(PICTURE, format) for format in ("JPEG", "PNG", "WEBP", "GIF", "BMP")}
DAMAGED = {
    "nothing": (b"", "empty: 0 bytes"),
    "text": (b"hello, world", "no image of a kind that is taken .* begin with b'hello, w'"),
    "HTML": (b"<!DOCTYPE html><title>404</title>", "no image of a kind"),
    "zeros": (bytes(1000), "the 1,000 bytes are no image"),
    "an empty picture": (png(0, 10, 8, 2), "no image of a kind"),
    **{f"half a {name}": (data[: len(data) // 2], "damaged: OSError") for name, data in WHOLE.items() if name != "GIF"},
}


@pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_picture_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidImage, match=message) as refused:
        decode(data, LIMITS)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("format", WHOLE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damage_never_gets_past_the_error_tree(format: str, data: st.DataObject) -> None:
    content = bytearray(WHOLE[format])
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        # A low limit: damage can make a header claim anything.
        array = decode(content, Limits(pixels=1_000_000)).array
    except RequestError:
        return
    assert array.dtype == np.uint8
    assert array.ndim == 3
    assert array.shape[2] == 3
