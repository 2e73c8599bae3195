"""Code that goes behind a detector in its archive, so that it fails by a picture's colour; all else is real."""

from __future__ import annotations

from tests.recovery.pictures import BROKEN, GREEDY, LONG, SLOW, SLOW_S

#: Behind handler/detectors/centerface.py.
OURS = f"""

_real_detect = CenterFace._detect


def _fake_detect(self, images):
    colours = {{tuple(map(int, image.array[0, 0])) for image in images}}
    if {BROKEN} in colours:
        raise EngineError("a fake fault of the engine")
    if {GREEDY} in colours:
        raise MemoryError("a fake lack of memory")
    if {SLOW} in colours:
        time.sleep({SLOW_S})
    return _real_detect(self, images)


CenterFace._detect = _fake_detect
"""

#: Behind tests/recovery/plain_handler.py.
PLAIN = f"""

import time

_real_detect = PlainHandler.detect


def _fake_detect(self, image):
    colour = image.getpixel((0, 0))
    if colour == {BROKEN}:
        raise RuntimeError("a fake fault of the engine")
    if colour == {GREEDY}:
        raise MemoryError("a fake lack of memory")
    if colour == {SLOW}:
        time.sleep({SLOW_S})
    if colour == {LONG}:
        return [[0.0, 0.0, 1.0, 1.0, 0.5]] * 20000
    return _real_detect(self, image)


PlainHandler.detect = _fake_detect
"""
