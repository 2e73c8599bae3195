"""Thousands of hostile images, the same in every run, each with the status that is documented for it.

Nothing of it is stored: it is made by seeded code out of the photographs in tests.photographs and of files.py.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from handler.config import Limits
from handler.image import FORMATS
from tests.hostile import files
from tests.photographs import HOPPER
from tests.support import chunk, png, saved

#: What EXIF calls upright is 1; these lay width and height the other way.
_LYING = (5, 6, 7, 8)


@dataclass(frozen=True)
class Hostile:
    """One image as bytes.

    Attributes:
        name: of its kind, and which of them.
        data: its bytes.
        status: of HTTP, that it has to be answered with.
        size: (width, height) of the answer where the status is 200.
    """

    name: str
    data: bytes
    status: int
    size: tuple[int, int] | None = None


def photograph(side: int = 96) -> Image.Image:
    """A face that fills most of the picture."""
    with Image.open(HOPPER.path) as file:
        return file.crop((175, 131, 357, 336)).resize((side, side + side // 4))


def whole() -> dict[str, bytes]:
    """One sound file of each format, small."""
    picture = photograph(64)
    made = {
        "JPEG": saved(picture, "JPEG", quality=80),
        "JPEG, progressive": saved(picture, "JPEG", quality=80, progressive=True),
        "PNG": saved(picture.convert("P"), "PNG"),
        "PNG, interlaced": _interlaced(picture),
        "WEBP": saved(picture, "WEBP", quality=60),
        "GIF": saved(picture, "GIF"),
        "BMP": saved(picture.resize((32, 40)), "BMP"),
        "TIFF": saved(picture.resize((32, 40)), "TIFF", compression="tiff_lzw"),
    }
    if "AVIF" in FORMATS:
        made["AVIF"] = saved(picture, "AVIF", quality=60, speed=10)
    return made


def _interlaced(picture: Image.Image) -> bytes:
    """Adam7, which Pillow reads and does not write: grey, each pass by itself."""
    grey = np.asarray(picture.convert("L"))
    rows = b""
    for top, left, down, across in (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ):
        rows += b"".join(b"\0" + row.tobytes() for row in grey[top::down, left::across])
    data = bytearray(png(picture.width, picture.height, 8, 0, rows))
    # The header's last byte; its check sum follows.
    data[28] = 1
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def read_plainly(name: str, data: bytes, limits: Limits) -> Hostile:
    """What damaged bytes have to be answered, by Pillow alone.

    Args:
        name: see Hostile.
        data: likewise.
        limits: of the server.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status, size = _read_plainly(data, limits)
    return Hostile(name, data, status, size)


def _read_plainly(data: bytes, limits: Limits) -> tuple[int, tuple[int, int] | None]:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > limits.pixels:
                return 413, None
            if picture.mode in ("I", "F") or (picture.format == "PNG" and data[24] == 16 and _clear(picture)):
                return 415, None
            if picture.format == "TIFF" and picture.tag_v2.get(258, (8,))[0] == 12:  # type: ignore[attr-defined]
                return 415, None
            picture.load()
            turned = picture.format != "TIFF" and _orientation(picture) in _LYING
            return 200, (picture.height, picture.width) if turned else picture.size
    except Image.DecompressionBombError:
        return 413, None
    except UnidentifiedImageError:
        # A TIFF that is not understood cannot be told from one of a kind that is not taken.
        kind = data[:4] in (b"II*\0", b"MM\0*") or data[4:12] in (b"ftypheic", b"ftypheix")
        return 415 if kind else 400, None
    except Exception:  # noqa: BLE001 - whatever a reader raises, the bytes are at fault
        return 400, None


def _clear(picture: Image.Image) -> bool:
    return "transparency" in picture.info


def _orientation(picture: Image.Image) -> int:
    exif = Image.Exif()
    try:
        exif.load(picture.info.get("exif", b""))
        return int(exif.get(0x0112, 1))
    except Exception:  # noqa: BLE001 - what cannot be read is upright
        return 1


def truncated(limits: Limits) -> Iterator[Hostile]:
    """Every format, cut at every 64th byte."""
    for format, data in whole().items():
        for end in range(64, len(data), 64):
            yield read_plainly(f"{format} cut at {end} of {len(data)}", data[:end], limits)


def flipped(limits: Limits, each: int, seed: int = 0) -> Iterator[Hostile]:
    """Every format with a bit or a few turned over; half of them in the first 100 bytes, where headers are.

    Args:
        limits: of the server.
        each: so many a format.
        seed: of the places.
    """
    rng = np.random.default_rng(seed)
    for format, data in whole().items():
        for number in range(each):
            changed = bytearray(data)
            until = min(100, len(data)) if number % 2 else len(data)
            for place in rng.integers(0, until, int(rng.integers(1, 4))):
                changed[place] ^= 1 << int(rng.integers(8))
            yield read_plainly(f"{format} with bits turned, {number}", bytes(changed), limits)


def wrong_magic(limits: Limits) -> Iterator[Hostile]:
    """Each format under the first bytes of each other."""
    sound = whole()
    for format, data in sound.items():
        for other, its in sound.items():
            if other != format:
                yield read_plainly(f"{format} that begins as {other}", its[:12] + data[12:], limits)


def no_images(limits: Limits, seed: int = 0) -> Iterator[Hostile]:
    """Bytes that are no picture, of any length."""
    rng = np.random.default_rng(seed)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("face.jpg", saved(photograph(16), "JPEG"))
    kinds = {
        "text": b"hello, world\n" * 20,
        "HTML": b"<!DOCTYPE html><html><img src='face.jpg'></html>",
        "zip": archive.getvalue(),
        "gzip": gzip.compress(bytes(100_000)),
        "nothing": b"",
        "zeros": bytes(10_000),
        "as many zeros as are taken": bytes(limits.bytes),
        "JSON": b'{"image": "aGVsbG8="}',
        "script": b"#!/bin/sh\nrm -rf /\n",
        "ELF": b"\x7fELF" + bytes(60),
        "a path": b"/etc/passwd",
        "an address": b"http://169.254.169.254/latest/meta-data/",
        "UTF-16": "hello".encode("utf-16"),
    }
    for name, data in kinds.items():
        yield Hostile(name, data, 400)
    yield Hostile("one byte more than is taken", bytes(limits.bytes + 1), 413)
    for number in range(200):
        noise = rng.integers(0, 256, int(rng.integers(1, 400)), np.uint8)
        # Never by chance one of the magic numbers.
        noise[0] = 0x7F
        yield Hostile(f"noise {number}", noise.tobytes(), 400)


def other_kinds() -> Iterator[Hostile]:
    """Pictures that are told from what is no picture."""
    boxes = {"heic": 415, "heix": 415} if "HEIF" not in FORMATS else {}
    for brand, status in boxes.items():
        yield Hostile(brand, b"\0\0\0\x18ftyp" + brand.encode() + bytes(40), status)
    yield Hostile("PDF", saved(photograph(16), "PDF"), 415)
    yield Hostile("SVG", b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>', 415)
    yield Hostile("JPEG 2000", saved(photograph(32), "JPEG2000"), 415)
    yield Hostile("float TIFF", files.tiff(files.picture_tags(1, 1, (32,)) | {339: ("H", (3,))}, bytes(4)), 415)
    yield Hostile("16 bits", png(1, 1, 16, 2, b"\0\x12\x34\x80\xff\xff\xfe"), 200, (1, 1))
    yield Hostile("16 bits and a clear colour", png(1, 1, 16, 2, bytes(7), chunk(b"tRNS", bytes(6))), 415)


def bombs(limits: Limits) -> Iterator[Hostile]:
    """Small files that unpack to a lot."""
    side = int(limits.pixels**0.5)
    over = side + 1
    grey: npt.NDArray[np.uint8] = np.zeros((side, side), np.uint8)
    yield Hostile("PNG of as many pixels as are taken", saved(Image.fromarray(grey), "PNG"), 200, (side, side))
    yield Hostile("PNG of more", png(over, over, 1, 0, bytes((over + 7) // 8 + 1) * over), 413)
    for width, height in ((60_000, 60_000), (2**31 - 1, 2**31 - 1), (2**31 - 1, 1)):
        yield Hostile(f"PNG {width}x{height}", png(width, height, 8, 2), 413)
    yield Hostile("GIF whose frame is larger than its screen", files.gif(1, 1, 1, (60_000, 60_000)), 413)
    yield Hostile("GIF screen", files.gif(60_000, 60_000), 413)
    yield Hostile("GIF of 30,000 frames", files.gif(8, 8, 30_000), 200, (8, 8))
    yield Hostile("BMP", files.bmp32(60_000, 60_000, bytes(64)), 413)
    yield Hostile("TIFF", files.simple_tiff(60_000, 60_000, bytes(64)), 413)
    packed = zlib.compress(bytes(1_000_000), 9)
    tags = {tag: value for tag, value in files.picture_tags(1, 1, compression=8).items() if tag not in (273, 278, 279)}
    tags |= {322: ("I", (65_520,)), 323: ("I", (65_520,)), 324: ("I", (8,)), 325: ("I", (len(packed),))}
    yield Hostile("TIFF of one pixel in a tile of 4 gigapixels", files.tiff(tags, packed), 413)
    claims = files.tags_that_claim_one_value(50_000, 900_000)
    yield Hostile("TIFF whose tags claim the same bytes", claims, 400)
    numbers = files.picture_tags(2, 1, length=2) | {282: ("Q", (1,) * 200_000)}
    yield Hostile("TIFF of many numbers", files.tiff(numbers, b"\x01\x02"), 400)
    for there in (8, 10, 2**32 - 1):
        circle = files.tiff(files.picture_tags(2, 1, length=2), b"\x01\x02", next_directory=there)
        yield Hostile(f"TIFF whose pages go in a circle, {there}", circle, 200, (2, 1))
    picture = photograph(32)
    jpeg = saved(picture, "JPEG", progressive=True)
    yield Hostile("JPEG of 3,000 scans", files.scans(jpeg, 3_000), 413)
    block = b"Exif\0\0" + files.tags_that_claim_one_value(5_000, 65_000)
    for name, segment in {
        "EXIF that claims the same bytes": files.segment(0xE1, block),
        "multi-picture index that claims the same bytes": files.segment(0xE2, b"MPF\0" + block[6:]),
        "1 MB of EXIF": files.segment(0xE1, b"Exif\0\0" + bytes(65_000)) * 15,
        "1 MB of ICC": b"".join(
            files.segment(0xE2, b"ICC_PROFILE\0" + bytes((1 + number, 15)) + bytes(65_000)) for number in range(15)
        ),
        "1 MB of XMP": files.segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<x>" * 21_000) * 15,
        "comments": files.segment(0xFE, b"c" * 65_000) * 15,
    }.items():
        yield Hostile(f"JPEG with {name}", files.with_segments(jpeg, segment), 200, picture.size)
    text = chunk(b"zTXt", files.text_bomb(900_000))
    yield Hostile("PNG with 9 MB of text in 9 kB", png(1, 1, 8, 2, bytes(4), text * 10), 200, (1, 1))
    yield Hostile("PNG with 72 MB of text in 80 kB", png(1, 1, 8, 2, bytes(4), text * 80), 400)
    yield Hostile("PNG with text too large", png(1, 1, 8, 2, bytes(4), chunk(b"zTXt", files.text_bomb(2 << 20))), 400)
    profile = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(50_000_000), 9))
    yield Hostile("PNG with a colour profile of 50 MB", png(1, 1, 8, 2, bytes(4), profile), 400)


def extremes() -> Iterator[Hostile]:
    """Sizes and codings at the edge of what formats have."""
    for format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(["AVIF"] if "AVIF" in FORMATS else [])):
        yield Hostile(f"{format} of one pixel", saved(Image.new("RGB", (1, 1), "red"), format), 200, (1, 1))
    for size in ((1, 65_535), (65_535, 1)):
        yield Hostile(f"PNG {size}", saved(Image.new("L", size), "PNG"), 200, size)
    yield Hostile("JPEG of 1x65500", saved(Image.new("L", (1, 65_500)), "JPEG"), 200, (1, 65_500))
    yield Hostile("WebP of 1x16383", saved(Image.new("RGB", (1, 16_383)), "WEBP"), 200, (1, 16_383))
    picture = photograph(32)
    arithmetic = saved(picture, "JPEG").replace(b"\xff\xc0", b"\xff\xc9", 1)
    yield Hostile("JPEG, arithmetic", arithmetic, 200, picture.size)
    yield Hostile("JPEG, lossless", saved(picture, "JPEG").replace(b"\xff\xc0", b"\xff\xc3", 1), 400)
    yield Hostile("JPEG of 12 bits", saved(picture, "JPEG").replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), 415)
    yield Hostile("PNG without pixels", png(0, 0, 8, 2), 400)
    for format in whole():
        yield Hostile(f"{format}, whole", whole()[format], 200, _size(whole()[format]))
    for format in ("GIF", "WEBP", "PNG"):
        frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
        data = saved(frames[0], format, save_all=True, append_images=frames[1:])
        yield Hostile(f"{format}, animated", data, 200, (8, 6))


def _size(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as picture:
        return picture.size


def claimed(data: bytes) -> int:
    """Pixels that a file says it has; 0 where it cannot be read so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                return picture.width * picture.height
        except Exception:  # noqa: BLE001 - whatever a reader raises
            return 0


def images(limits: Limits) -> list[Hostile]:
    """All of them.

    Args:
        limits: of the server, by which bombs are sized.
    """
    made = [
        *truncated(limits),
        *flipped(limits, 260),
        *wrong_magic(limits),
        *no_images(limits),
        *other_kinds(),
        *bombs(limits),
        *extremes(),
    ]
    assert len({each.name for each in made}) == len(made)
    return made
