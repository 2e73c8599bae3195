"""Frames as they are sent."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
from PIL import Image

from clients.errors import UsageError
from clients.watch.frame import Frame


@pytest.mark.parametrize("form", ["yuv420p10le", "gray16le", "rgba", "yuva420p", "gbrp16le", "nv12", "bgr8"])
def test_every_form_of_pixels_has_a_picture(form: str) -> None:
    grey = np.full((48, 64, 3), 128, np.uint8)
    raw = av.VideoFrame.from_ndarray(grey, format="rgb24").reformat(format=form)
    with Image.open(io.BytesIO(Frame(0, 0.0, 0.0, raw).picture(90))) as picture:  # type: ignore[arg-type]
        assert (picture.size, picture.mode) == ((64, 48), "RGB")
        assert np.abs(np.asarray(picture, int) - 128).max() < 40


def test_a_frame_that_has_no_jpeg_is_its_own_fault() -> None:
    raw = av.VideoFrame.from_ndarray(np.zeros((2, 65_502, 3), np.uint8), format="rgb24")
    with pytest.raises(UsageError, match="65502x2 rgb24"):
        Frame(0, 0.0, 0.0, raw).picture(90)
