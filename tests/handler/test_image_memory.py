"""What decoding takes a pixel, in a process of its own, on the costliest kinds of each format."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from handler.image import FORMATS, MEMORY
from tests.handler.test_image import turned_by
from tests.hostile.files import bmp32
from tests.support import png, saved

SIDE = 2000
#: A process's own noise, and what libraries take whatever a picture's size.
SLACK = 6_000_000
_MEASURE = """
import sys
from pathlib import Path
from handler.config import Limits
from handler.image import decode
def status(field):
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":")]
    return int(line.split()[1]) * 1024
small, large = (Path(path).read_bytes() for path in sys.argv[1:3])
# Codecs are loaded, and memory that is freed goes back at once.
decode(small, Limits())
# The peak starts anew.
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
array = decode(large, Limits(bytes=10**9)).array
print(status("VmHWM") - before, *array.shape)
"""


def noise(channels: int, mode: str, side: int) -> Image.Image:
    piece = np.random.default_rng(0).integers(0, 256, (50, 50, channels), np.uint8)
    array = np.tile(piece, (side // 50, side // 50, 1))
    return Image.fromarray(array[..., 0] if channels == 1 else array, mode)


TURNED = turned_by(6)
COSTLY: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "JPEG, turned": ("JPEG", lambda side: saved(noise(3, "RGB", side), "JPEG", exif=TURNED)),
    "JPEG, 10 scans": ("JPEG", lambda side: saved(noise(3, "RGB", side), "JPEG", quality=20, progressive=True)),
    "JPEG, CMYK, turned": (
        "JPEG",
        lambda side: saved(noise(4, "CMYK", side), "JPEG", quality=50, progressive=True, exif=TURNED),
    ),
    "PNG, RGBA, turned": ("PNG", lambda side: saved(noise(4, "RGBA", side), "PNG", compress_level=1, exif=TURNED)),
    "PNG, 16 bits with alpha": ("PNG", lambda side: png(side, side, 16, 6, bytes(8 * side + 1) * side)),
    "PNG, 16 bits, grey": ("PNG", lambda side: png(side, side, 16, 0, bytes(2 * side + 1) * side)),
    "PNG, palette with alphas": ("PNG", lambda side: saved(noise(1, "P", side), "PNG", transparency=b"\x10" * 256)),
    "GIF": ("GIF", lambda side: saved(noise(1, "L", side), "GIF", transparency=1)),
    "BMP": ("BMP", lambda side: bmp32(side, side, bytes(4 * side * side))),
    "TIFF, RGBA, turned": (
        "TIFF",
        lambda side: saved(noise(4, "RGBA", side), "TIFF", compression="tiff_lzw", tiffinfo={0x0112: 6}),
    ),
    "TIFF, JPEG within": ("TIFF", lambda side: saved(noise(3, "RGB", side), "TIFF", compression="jpeg")),
    "WebP": ("WEBP", lambda side: saved(noise(3, "RGB", side), "WEBP", quality=10, method=0)),
    "WebP, alpha, turned": (
        "WEBP",
        lambda side: saved(noise(4, "RGBA", side), "WEBP", lossless=True, quality=0, method=0, exif=TURNED),
    ),
    "AVIF, alpha, turned": (
        "AVIF",
        lambda side: saved(noise(4, "RGBA", side), "AVIF", speed=10, quality=20, subsampling="4:4:4", exif=TURNED),
    ),
    "HEIC, alpha": ("HEIF", lambda side: saved(noise(4, "RGBA", side), "HEIF", quality=20)),
}


def test_every_format_is_measured() -> None:
    assert {format for format, _ in COSTLY.values()} == set(MEMORY) - {"MPO"}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize("kind", COSTLY)
def test_decoding_takes_no_more_than_is_said(kind: str, tmp_path: Path) -> None:
    format, make = COSTLY[kind]
    if format not in FORMATS:
        pytest.skip(f"no {format} here")
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(make(50))
    large.write_bytes(make(SIDE))
    command = [sys.executable, "-c", _MEASURE, str(small), str(large)]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    peak, *shape = map(int, result.stdout.split())
    assert shape == [SIDE, SIDE, 3]
    # The file lies in memory too: as it came, and in the copy that its reader makes.
    said = MEMORY[format] * SIDE * SIDE + 2 * large.stat().st_size + SLACK
    assert SIDE * SIDE * 3 < peak < said, f"{peak / SIDE / SIDE:.1f} bytes a pixel"
