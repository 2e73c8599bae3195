from __future__ import annotations

import io
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from handler.config import Limits
from handler.errors import InvalidImage, RequestError, TooLarge, UnsupportedImage
from handler.geometry import Uint8
from handler.image import FORMATS, MEMORY, decode, read_header
from tests.hostile.files import (
    bmp32,
    picture_tags,
    scans,
    segment,
    simple_tiff,
    swapped,
    tags_that_claim_one_value,
    text_bomb,
    tiff,
    with_segments,
)
from tests.support import chunk, png, saved

# Of damage, and of what does no harm: the handler silences them too.
pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")

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


@pytest.mark.parametrize(
    ("format", "how"),
    [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("WEBP", {"lossless": True})],
)
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
    "1 in TIFF": (saved(pixels("1", 0, 255), "TIFF", compression="group4"), [(0, 0, 0), (255, 255, 255)]),
    "TIFF whose zero is white": (simple_tiff(2, 1, b"\x07\xff", photometric=0), [(248, 248, 248), (0, 0, 0)]),
    "P in TIFF": (saved(palette(COLOURS, [[1, 0]]), "TIFF"), [COLOURS[1], COLOURS[0]]),
    "RGBA in TIFF": (
        saved(pixels("RGBA", (10, 20, 30, 255), (10, 20, 30, 0)), "TIFF"),
        [(10, 20, 30), (255, 255, 255)],
    ),
    "CMYK in TIFF": (simple_tiff(2, 1, bytes((0, 255, 0, 0, 255, 0, 0, 255)), (8,) * 4, 5), [(255, 0, 255), (0, 0, 0)]),
    "BMP with alpha": (bmp32(2, 1, bytes((30, 20, 10, 255, 30, 20, 10, 0))), [(10, 20, 30), (255, 255, 255)]),
    "BMP whose alpha is zero everywhere": (
        bmp32(2, 1, bytes((30, 20, 10, 0, 60, 50, 40, 0))),
        [(10, 20, 30), (40, 50, 60)],
    ),
    "BMP of 32 bits without alpha": (
        bmp32(2, 1, bytes((30, 20, 10, 0, 60, 50, 40, 9)), masks=False),
        [(10, 20, 30), (40, 50, 60)],
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
    "TIFF": simple_tiff(60_000, 60_000, bytes(64)),
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


#: Of the samples 0x1234, 0x80ff and 0xfffe the upper bytes: never rounded up, so that 0x80ff stays 0x80.
DEEP = {
    "PNG, grey": (png(3, 1, 16, 0, b"\0\x12\x34\x80\xff\xff\xfe"), [(18,) * 3, (128,) * 3, (255,) * 3]),
    "PNG, RGB": (png(1, 1, 16, 2, b"\0\x12\x34\x80\xff\xff\xfe"), [(18, 128, 255)]),
    "PNG, grey with alpha": (png(1, 1, 16, 4, b"\0\x12\x34\xff\xff"), [(18, 18, 18)]),
    "PNG, RGBA": (png(1, 1, 16, 6, b"\0\x12\x34\x80\xff\xff\xfe\xff\xff"), [(18, 128, 255)]),
    "TIFF, RGB": (simple_tiff(1, 1, b"\x34\x12\xff\x80\xfe\xff", (16,) * 3, 2), [(18, 128, 255)]),
    "TIFF, RGB, big-endian": (simple_tiff(1, 1, b"\x12\x34\x80\xff\xff\xfe", (16,) * 3, 2, ">"), [(18, 128, 255)]),
    "TIFF, grey": (simple_tiff(2, 1, b"\x34\x12\xff\x80", (16,)), [(18,) * 3, (128,) * 3]),
    "TIFF, grey, big-endian": (simple_tiff(2, 1, b"\x12\x34\x80\xff", (16,), order=">"), [(18,) * 3, (128,) * 3]),
    "TIFF, grey whose zero is white": (simple_tiff(2, 1, b"\x34\x12\xff\x80", (16,), 0), [(237,) * 3, (127,) * 3]),
}


@pytest.mark.parametrize(("data", "expected"), DEEP.values(), ids=DEEP)
def test_of_sixteen_bits_the_upper_eight_are_taken(data: bytes, expected: list[tuple[int, int, int]]) -> None:
    np.testing.assert_array_equal(decode(data, LIMITS).array, [expected])


REFUSED_SAMPLES = {
    "float": (tiff(picture_tags(1, 1, (32,), length=4) | {339: ("H", (3,))}, bytes(4)), "TIFF has samples of 32 bits"),
    "32 bits": (simple_tiff(1, 1, bytes(4), (32,)), "TIFF has samples of 32 bits"),
    "signed": (tiff(picture_tags(1, 1, (16,), length=2) | {339: ("H", (2,))}, bytes(2)), "signed or float"),
    "12 bits": (simple_tiff(2, 1, bytes(3), (12,)), "TIFF has samples of 12 bits"),
    "12 bits in JPEG": (
        saved(Image.new("L", (8, 8)), "JPEG").replace(b"\xff\xc0\x00\x0b\x08", b"\xff\xc0\x00\x0b\x0c"),
        "JPEG has samples of 12 bits",
    ),
    "16 bits and a clear grey": (png(1, 1, 16, 0, b"\0\x12\x34", chunk(b"tRNS", b"\x12\x34")), "one clear colour"),
    "16 bits and a clear colour": (png(1, 1, 16, 2, bytes(7), chunk(b"tRNS", bytes(6))), "one clear colour"),
    "64 bits": (simple_tiff(1, 1, bytes(8), (64,)), "TIFF's first page has samples of a kind"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED_SAMPLES.values(), ids=REFUSED_SAMPLES)
def test_samples_without_a_rule_are_refused_by_their_kind(data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedImage, match=message):
        decode(data, LIMITS)


def test_a_picture_that_no_memory_is_left_for_is_too_large(noise: Uint8, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(TooLarge, match="more memory than there is"):
        decode(saved(Image.fromarray(noise), "PNG"), LIMITS)


@pytest.mark.skipif("AVIF" not in FORMATS, reason="Pillow's build has no AVIF")
@pytest.mark.parametrize("orientation", SIDES)
def test_avif_is_read_upright(orientation: int) -> None:
    stored = np.zeros((32, 48, 3), np.uint8)
    stored[:16, :24] = 255
    decoded = decode(saved(Image.fromarray(stored), "AVIF", quality=100, exif=turned_by(orientation)), LIMITS)
    assert decoded.format == "AVIF"
    assert np.abs(decoded.array.astype(int) - upright(stored, orientation)).max() <= 12


@pytest.mark.skipif("AVIF" not in FORMATS, reason="Pillow's build has no AVIF")
def test_an_animated_avif_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime")]
    decoded = decode(saved(frames[0], "AVIF", save_all=True, append_images=frames[1:], quality=100), LIMITS).array
    assert np.abs(decoded.astype(int) - (255, 0, 0)).max() <= 4


@pytest.mark.skipif("HEIF" not in FORMATS, reason="pillow-heif is not installed: pip install '.[heif]'")
@pytest.mark.parametrize("orientation", SIDES)
def test_heic_is_read_upright_where_pillow_heif_is_installed(orientation: int) -> None:
    stored = np.zeros((64, 96, 3), np.uint8)
    stored[:32, :48] = 255
    decoded = decode(saved(Image.fromarray(stored), "HEIF", quality=-1, exif=turned_by(orientation)), LIMITS)
    assert decoded.format == "HEIF"
    assert np.abs(decoded.array.astype(int) - upright(stored, orientation)).max() <= 12


@pytest.mark.skipif("HEIF" in FORMATS, reason="pillow-heif is installed")
@pytest.mark.parametrize("brand", [b"heic", b"heix", b"hevc"])
def test_heic_names_the_package_that_is_missing(brand: bytes) -> None:
    with pytest.raises(UnsupportedImage, match="HEIC, for which this server lacks pillow-heif"):
        decode(b"\0\0\0\x18ftyp" + brand + bytes(32), LIMITS)


@pytest.mark.parametrize("orientation", [*SIDES, 0, 9, 65535])
def test_tiff_is_turned_by_its_own_tag_once(noise: Uint8, orientation: int) -> None:
    data = saved(Image.fromarray(noise), "TIFF", tiffinfo={0x0112: orientation})
    expected = upright(noise, orientation) if orientation in SIDES else noise
    np.testing.assert_array_equal(decode(data, LIMITS).array, expected)


def test_orientation_in_a_tiffs_xmp_is_not_applied() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert decode(saved(Image.new("RGB", (4, 2)), "TIFF", tiffinfo={700: xmp}), LIMITS).array.shape == (2, 4, 3)


def test_a_tiff_gives_its_first_page() -> None:
    pages = [Image.new("RGB", (4, 3), colour) for colour in ("red", "lime")]
    assert (decode(saved(pages[0], "TIFF", save_all=True, append_images=pages[1:]), LIMITS).array == (255, 0, 0)).all()


@pytest.mark.parametrize("next_directory", [10, 8, 1, 2**32 - 1])
def test_a_tiff_whose_pages_go_in_a_circle_is_read_once(next_directory: int) -> None:
    data = tiff(picture_tags(2, 1, length=2), b"\x01\x02", next_directory=next_directory)
    np.testing.assert_array_equal(decode(data, LIMITS).array, [[(1,) * 3, (2,) * 3]])


def claims(entries: int, size: int, format: str) -> bytes:
    """A file of a format whose tags claim the same bytes again and again."""
    block = tags_that_claim_one_value(entries, size)
    picture = Image.new("RGB", (16, 16), (200, 10, 10))
    if format == "TIFF":
        return block
    if format == "JPEG":
        return with_segments(saved(picture, "JPEG"), segment(0xE1, b"Exif\0\0" + block))
    if format == "MPO":
        return with_segments(saved(picture, "JPEG"), segment(0xE2, b"MPF\0" + block))
    if format == "PNG":
        return saved(picture, "PNG", exif=b"Exif\0\0" + block)
    filler = (b"II*\0\x08\0\0\0" + bytes(6) + b"filler" * len(block))[: len(block)]
    return swapped(saved(picture, format, exif=filler), filler, block)


#: TIFF and AVIF are read by their tags; to the others they are an EXIF block, which does no harm.
CLAIMS = {
    "TIFF": (claims(50_000, 2_000_000, "TIFF"), "again and again"),
    "AVIF": (claims(50_000, 2_000_000, "AVIF"), "again and again"),
    "PNG": (claims(50_000, 2_000_000, "PNG"), None),
    "WEBP": (claims(50_000, 2_000_000, "WEBP"), None),
    "JPEG": (claims(5_000, 65_000, "JPEG"), None),
    "MPO": (claims(5_000, 65_000, "MPO"), None),
}


@pytest.mark.parametrize("format", [format for format in CLAIMS if format == "MPO" or format in FORMATS])
def test_tags_that_claim_the_same_bytes_again_and_again_take_no_memory(format: str) -> None:
    data, message = CLAIMS[format]
    tracemalloc.start()
    try:
        if message:
            with pytest.raises(InvalidImage, match=message):
                decode(data, LIMITS)
        else:
            assert decode(data, LIMITS).array.shape == (16, 16, 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # As Pillow reads them: 100 GB, and 325 MB of 64 kB.
    assert peak < 10 * len(data) + 1_000_000


def test_a_tiff_of_millions_of_numbers_is_refused_before_they_become_objects() -> None:
    data = tiff(picture_tags(2, 1, length=2) | {282: ("Q", (0x100000001,) * 400_000)}, b"\x01\x02")
    with pytest.raises(InvalidImage, match="3,200,028 bytes of numbers"):
        decode(data, LIMITS)


def test_a_tiffs_tiles_are_held_to_the_limit_too() -> None:
    tags = {tag: value for tag, value in picture_tags(1, 1, compression=8).items() if tag not in (273, 278, 279)}
    pixels = zlib.compress(bytes(100_000))
    tags |= {322: ("I", (65_520,)), 323: ("I", (65_520,)), 324: ("I", (8,)), 325: ("I", (len(pixels),))}
    with pytest.raises(TooLarge, match="tiles of 4,292,870,400 pixels"):
        decode(tiff(tags, pixels), LIMITS)


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_scans_of_a_jpeg_are_counted_before_they_are_decoded(format: str) -> None:
    """Each of them costs a pass over all pixels, and fits into a few bytes."""
    jpeg = saved(PICTURE, "JPEG", progressive=True)
    few, many = scans(jpeg, 80), scans(jpeg, 120)
    if format == "TIFF":
        tags = picture_tags(40, 24, (8, 8, 8), 6, 7)
        few, many = (tiff(tags | {279: ("I", (len(each),))}, each) for each in (few, many))
    decode(few, LIMITS)
    with pytest.raises(TooLarge, match=r"has 1\d\d scans: at most 100"):
        decode(many, LIMITS)


def test_a_tiff_of_many_jpeg_strips_has_a_scan_each() -> None:
    striped = saved(PICTURE.resize((40, 2400)), "TIFF", compression="jpeg", strip_size=40 * 3 * 16)
    assert striped.count(b"\xff\xda") >= 150
    assert decode(striped, LIMITS).array.shape == (2400, 40, 3)


def test_arithmetic_coding_is_read() -> None:
    jpeg = saved(Image.new("RGB", (64, 48)), "JPEG").replace(b"\xff\xc0", b"\xff\xc9", 1)
    assert decode(jpeg, LIMITS).array.shape == (48, 64, 3)


TEXT = {
    "one too large": (chunk(b"zTXt", text_bomb(2_000_000)), "too large"),
    "too many": (chunk(b"zTXt", text_bomb(1_000_000)) * 70, "Too much memory used in text"),
    "colour profile": (chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(50_000_000))), "too large"),
}


@pytest.mark.parametrize(("chunks", "message"), TEXT.values(), ids=TEXT)
def test_what_a_png_packs_beside_its_pixels_is_bounded(chunks: bytes, message: str) -> None:
    with pytest.raises(InvalidImage, match=message):
        decode(png(1, 1, 8, 2, bytes(4), chunks), LIMITS)
    assert decode(png(1, 1, 8, 2, bytes(4), chunk(b"zTXt", text_bomb(900_000))), LIMITS).array.shape == (1, 1, 3)


@pytest.mark.parametrize(
    "data", [saved(Image.new("L", (65_535, 1)), "PNG"), saved(Image.new("L", (1, 65_500)), "JPEG")]
)
def test_the_longest_sides_are_read(data: bytes) -> None:
    header = read_header(data, LIMITS)
    assert decode(data, LIMITS).array.shape == (header.height, header.width, 3)


def test_a_header_tells_what_decoding_takes(noise: Uint8) -> None:
    header = read_header(saved(Image.fromarray(noise), "WEBP"), LIMITS)
    assert (header.width, header.height, header.format, header.pixels) == (7, 5, "WEBP", 35)
    assert header.memory == 35 * MEMORY["WEBP"]
    assert set(FORMATS) | {"MPO"} <= set(MEMORY)


OTHERS = {
    "PDF": saved(Image.new("RGB", (4, 4)), "PDF"),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "JPEG XL": b"\xff\x0a" + bytes(32),
    "JPEG 2000": saved(Image.new("RGB", (32, 32)), "JPEG2000"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_pictures_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedImage, match=f"the image is {name}: JPEG, PNG, WebP, GIF, BMP, TIFF"):
        decode(OTHERS[name], LIMITS)


PICTURE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (24, 40, 3), np.uint8))
WHOLE = {format: saved(PICTURE, format) for format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")}
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
