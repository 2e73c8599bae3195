"""An image's own size where plans have only the archive's: refused by name, not met by the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from handler import detectors
from handler.config import Settings
from handler.errors import InvalidOption
from handler.geometry import Uint8
from tests.fake_plans import pretend
from tests.handler.fake import CPU


def test_native_needs_a_profile(
    trt_folder: Path,
    trt_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    picture: Callable[[int, int, int], Uint8],
) -> None:
    pretend(monkeypatch)
    detector = detectors.load(trt_folder, trt_settings, CPU)
    native = dataclasses.replace(trt_settings.options, canvas="native")
    [within] = detector.detect([detector.prepare(picture(100, 110, 3), native)], np.inf)
    assert isinstance(within, detectors.Result)
    words = "canvas is 'native', 200x200 here, which engine trt has no plan for: this archive has auto, "
    with pytest.raises(InvalidOption, match=words):
        detector.prepare(picture(200, 200, 3), native)
    # Over 1500 px its values are no whole numbers, which no plan takes.
    with pytest.raises(InvalidOption):
        detector.prepare(np.zeros((1600, 1200, 3), np.uint8), native)
    for canvas in ("auto", *map(str, trt_settings.canvases)):
        detector.prepare(picture(200, 200, 3), dataclasses.replace(native, canvas=canvas))
