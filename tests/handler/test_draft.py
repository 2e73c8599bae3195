"""JPEGs decoded at a lower resolution: where they may be, and that faces lie where they lie in the full picture."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handler import loader
from handler.config import Limits, Settings
from handler.detectors.centerface import CenterFace
from handler.detectors.mogface import MogFace
from handler.geometry import Canvas, Float32, Reduced, Uint8, letterbox, place
from handler.image import Least, decode
from handler.loader import DRAFT
from handler.pipeline import Pipeline
from handler.request import Request
from tests.handler.fake import FakeDetector
from tests.handler.test_image import turned_by, upright
from tests.handler.test_pipeline import MODEL, body, pipeline
from tests.support import saved

LIMITS = Limits()
CANVAS = Canvas(64, 64)
ORIENTATIONS = range(1, 9)


def at_least(height: int, width: int) -> Least:
    return lambda *upright: (height, width)


def twice(canvas: Canvas) -> Least:
    def least(height: int, width: int) -> tuple[int, int]:
        rows, columns = place(height, width, canvas).content
        return DRAFT * rows, DRAFT * columns

    return least


def stored(height: int, width: int, orientation: int, mode: str = "RGB", **how: Any) -> tuple[bytes, Float32]:
    """A JPEG with one bright spot, and the spot's centre in the upright picture, (x, y) px."""
    rows, columns = np.ogrid[:height, :width]
    y, x = 0.8 * height, 0.7 * width
    spot = 255 * np.exp(-(((rows - y) / (height / 16)) ** 2) - ((columns - x) / (width / 16)) ** 2)
    array = np.repeat(spot.astype(np.uint8)[:, :, None], 3, 2)
    data = saved(Image.fromarray(array).convert(mode), "JPEG", quality=95, exif=turned_by(orientation), **how)
    # Where the standard's words put that pixel, shown on a picture of as many pixels.
    across, down = (width - 1 - x, height - 1 - y)
    centre = {
        1: (x, y),
        2: (across, y),
        3: (across, down),
        4: (x, down),
        5: (y, x),
        6: (down, x),
        7: (down, across),
        8: (y, across),
    }[orientation]
    return data, np.array(centre, np.float32)


def centre(array: Uint8) -> Float32:
    """Of the spot, (x, y) px."""
    weights = np.maximum(array[:, :, 0].astype(float) - 40, 0)
    rows, columns = np.indices(weights.shape)
    return np.array([np.average(columns, weights=weights), np.average(rows, weights=weights)], np.float32)


def test_the_centres_here_are_the_standards() -> None:
    """Against tests.handler.test_image, which turns pixel by pixel."""
    for orientation in ORIENTATIONS:
        _, expected = stored(40, 60, orientation)
        marked = np.zeros((40, 60, 3), np.uint8)
        marked[32, 42] = 255
        turned = upright(marked, orientation)
        [[y, x]] = np.argwhere(turned[:, :, 0])
        assert tuple(expected) == (x, y), orientation


def far(data: bytes, expected: Float32, canvas: Canvas, *, ignoring: bool = False) -> float:
    """How far the spot is from where it lies, on the canvas, px."""
    decoded = decode(data, LIMITS, twice(canvas))
    assert decoded.reduced is not None
    reduced = decoded.reduced
    if ignoring:
        # What a picture would show that is stretched over all of its rounded sides.
        reduced = Reduced(reduced.source, (0, 0, *decoded.picture.size))
    placement = place(*reduced.source, canvas)
    found = centre(letterbox(decoded.picture, placement, (0, 0, 0), reduced))
    # Pixel numbers count centres, the scale edges: half a pixel on either side.
    scales = np.array([placement.scale_x, placement.scale_y], np.float32)
    return float(np.abs(found + 0.5 - (expected + 0.5) * scales).max())


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize(("height", "width"), [(1025, 1537), (1031, 1543), (1024, 1536)])
def test_faces_lie_where_they_lie_in_the_full_picture(height: int, width: int, orientation: int) -> None:
    """To a fiftieth of a canvas pixel, however it is turned and whatever the rounding of its sides."""
    data, expected = stored(height, width, orientation)
    assert far(data, expected, CANVAS) < 0.02


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_rounding_of_sides_would_show(orientation: int) -> None:
    """The same measure, without the box: 129 of 1025 px by 8 is a stretch by 7 px, half a canvas pixel."""
    data, expected = stored(1025, 1537, orientation)
    assert far(data, expected, CANVAS, ignoring=True) > 0.1


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(
    ("least", "scale"),
    [((1, 1), 8), ((128, 192), 8), ((129, 192), 4), ((128, 193), 4), ((513, 768), 1), ((9999, 9), 1)],
)
def test_no_smaller_than_asked(least: tuple[int, int], scale: int, orientation: int) -> None:
    height, width = (1024, 1536) if orientation == 1 else (1536, 1024)
    decoded = decode(stored(height, width, orientation)[0], LIMITS, at_least(*least))
    assert decoded.picture.size == (1536 // scale, 1024 // scale)
    assert (decoded.reduced is None) == (scale == 1)
    if decoded.reduced:
        assert decoded.reduced == Reduced((1024, 1536), (0, 0, 1536 / scale, 1024 / scale))
    assert scale == 1 or decoded.array.shape[0] >= least[0]
    assert scale == 1 or decoded.array.shape[1] >= least[1]


@pytest.mark.parametrize("how", [{"mode": "L"}, {"mode": "CMYK"}, {"progressive": True}, {"subsampling": 0}])
def test_every_kind_of_jpeg(how: dict[str, Any]) -> None:
    data, expected = stored(1025, 1537, 6, **how)
    if how.get("mode") != "CMYK":
        assert far(data, expected, CANVAS) < 0.02
    reduced, full = decode(data, LIMITS, twice(CANVAS)), decode(data, LIMITS)
    assert reduced.picture.mode == full.picture.mode == "RGB"
    shrunk = full.picture.resize(reduced.picture.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(shrunk).astype(int) - reduced.array).mean() < 2


def test_of_several_pictures_the_first() -> None:
    data = io.BytesIO()
    first, second = (Image.fromarray(np.full((1024, 1536, 3), level, np.uint8)) for level in (80, 200))
    first.save(data, "MPO", save_all=True, append_images=[second])
    decoded = decode(data.getvalue(), LIMITS, at_least(200, 200))
    assert (decoded.format, decoded.picture.size) == ("MPO", (1536 // 4, 1024 // 4))
    assert abs(int(decoded.array.mean()) - 80) <= 2


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "BMP"])
def test_other_formats_are_decoded_whole(format: str) -> None:
    data = saved(Image.fromarray(np.zeros((512, 512, 3), np.uint8)), format)
    decoded = decode(data, LIMITS, at_least(1, 1))
    assert (decoded.picture.size, decoded.reduced) == ((512, 512), None)


# In a pipeline.


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of every picture as it is decoded, (width, height)."""
    found: list[tuple[int, int]] = []

    def spy(*args: Any) -> Any:
        decoded = decode(*args)
        found.append(decoded.picture.size)
        return decoded

    monkeypatch.setattr(loader, "decode", spy)
    return found


def photograph(height: int = 480, width: int = 720) -> bytes:
    return saved(Image.fromarray(np.full((height, width, 3), 90, np.uint8)), "JPEG")


def asked(**headers: str) -> Request:
    return Request({"body": photograph()}, {f"X-Face-{name}": value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        # The canvas shows 64x96 of 480x720, of which twice as much is 128x192: a half is enough, a quarter is not.
        ({}, (360, 240)),
        ({"Score_Threshold": "0.1", "Landmarks": "true", "Output": "modelscope"}, (360, 240)),
        ({"Canvas": "64x64"}, (180, 120)),
        ({"Canvas": "128x128"}, (360, 240)),
        ({"Canvas": "native"}, (720, 480)),
        ({"Crops": "true"}, (720, 480)),
        ({"Output": "image"}, (720, 480)),
    ],
)
def test_where_it_may_be(headers: dict[str, str], size: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    fake = FakeDetector()
    full, draft = (pipeline(fake, draft=draft).answer([asked(**headers)])[0] for draft in (False, True))
    assert sizes == [(720, 480), size]
    if headers.get("Output") == "image":
        assert full.body == draft.body
    elif "Output" not in headers:
        for content in (told := [body(full), body(draft)]):
            content.pop("timing_ms")
            for face in content["faces"]:
                # The fake's score is a grey level, which a JPEG decoded otherwise may round otherwise.
                assert abs(face.pop("score") - 90 / 255) < 0.01
        # The size of the full picture, its canvas, its scale, and where the box lies in it.
        assert told[0] == told[1]


@pytest.mark.parametrize(("landmarks", "size"), [("false", (360, 240)), ("true", (720, 480))])
def test_landmarks_that_are_found_in_the_full_picture_need_it(
    landmarks: str, size: tuple[int, int], sizes: list[tuple[int, int]]
) -> None:
    assert MogFace.landmarks_on_source
    fake = FakeDetector()
    fake.landmarks_on_source = True
    pipeline(fake, draft=True).answer([asked(Landmarks=landmarks)])
    assert sizes == [size]


def test_off_unless_the_archive_says_so(sizes: list[tuple[int, int]]) -> None:
    assert not Settings("centerface", "none", FakeDetector().settings.options).draft
    pipeline(FakeDetector()).answer([asked()])
    assert sizes == [(720, 480)]


def test_a_real_face_stays(centerface: CenterFace, centerface_settings: Settings, astronaut: Uint8) -> None:
    """A photograph four times as large as the canvas: a shift of a pixel there is a quarter on the canvas."""
    page = Image.fromarray(astronaut[:256, 100:356]).resize((1025, 1025), Image.Resampling.BICUBIC)
    data = saved(page, "JPEG", quality=95)
    full, draft = (
        body(Pipeline(centerface, settings, MODEL).answer([Request({"body": data}, {})])[0])
        for settings in (centerface_settings, dataclasses.replace(centerface_settings, draft=True))
    )
    assert draft["image"] == full["image"] == {"width": 1025, "height": 1025}
    [one], [other] = full["faces"], draft["faces"]
    assert one != other
    assert np.abs(np.subtract(one["box"], other["box"])).max() < 1.5
    assert abs(one["score"] - other["score"]) < 0.01
    for name, point in one["landmarks"].items():
        assert np.abs(np.subtract(point, other["landmarks"][name])).max() < 1.5
