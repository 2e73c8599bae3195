from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from clients import Answer, AsyncClient, Face, InvalidImage, Model
from webui.detection import SHOWN, Seen, detected


class FakeClient:
    """Answers what a test says, in the photographs' order."""

    def __init__(self, *found: Answer | InvalidImage) -> None:
        self.found = found

    async def detect_each(self, photographs: list[Path], **_: Any) -> AsyncIterator[Answer | InvalidImage]:
        for each in self.found:
            yield each


def answer(width: int, height: int) -> Answer:
    jpeg = io.BytesIO()
    Image.new("RGB", (112, 112)).save(jpeg, "JPEG")
    face = Face((10.0, 10.0, 40.0, 40.0), 0.9, None, jpeg.getvalue())
    return Answer(Model("m", "1", "w", "ort", "fp32"), width, height, "c", 1.0, (face,), {}, 1, True)


def found(paths: list[Path], folder: Path, *answers: Answer | InvalidImage) -> list[Seen]:
    async def collect() -> list[Seen]:
        client = cast(AsyncClient, FakeClient(*answers))
        return [each async for each in detected(client, paths, {}, folder)]

    return asyncio.run(collect())


def picture(path: Path, width: int, height: int) -> Path:
    Image.new("RGB", (width, height), "white").save(path)
    return path


def test_large_pictures_are_shown_smaller_and_kept_whole(tmp_path: Path) -> None:
    paths = [picture(tmp_path / "large.png", 2 * SHOWN, SHOWN), picture(tmp_path / "small.jpg", 64, 48)]
    large, small = found(paths, tmp_path, answer(2 * SHOWN, SHOWN), answer(64, 48))
    assert large.preview is not None
    assert large.result.drawn is not None
    with Image.open(large.preview) as shown, Image.open(large.result.drawn) as whole:
        assert shown.size == (SHOWN, SHOWN // 2)
        assert whole.size == (2 * SHOWN, SHOWN)
        assert whole.format == "PNG"
        assert whole.getpixel((10, 25)) == (0, 230, 90)
    assert small.preview == small.result.drawn
    [(number, crop)] = small.crops
    assert number == 1
    with Image.open(crop) as face:
        assert face.size == (112, 112)


def test_what_cannot_be_drawn_keeps_its_answer_and_errors_stay_alone(tmp_path: Path) -> None:
    unread = tmp_path / "a.heic"
    unread.write_bytes(b"of a kind that Pillow does not read")
    gone = tmp_path / "gone.jpg"
    error = InvalidImage("damaged")
    drawn = picture(tmp_path / "b.jpg", 64, 48)
    seen = found([unread, gone, drawn, drawn], tmp_path, answer(64, 48), answer(64, 48), error, answer(64, 48))
    assert [each.result.drawn is None for each in seen] == [True, True, True, False]
    assert [each.result.found is error for each in seen] == [False, False, True, False]
    assert len(seen[0].crops) == 1


def test_a_folder_that_cannot_be_written_is_no_picture_left_out(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        found([picture(tmp_path / "a.jpg", 64, 48)], tmp_path / "missing", answer(64, 48))
