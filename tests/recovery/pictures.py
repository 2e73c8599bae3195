"""What is sent: portraits, each of a size of its own, and pictures by which something goes wrong."""

from __future__ import annotations

import numpy as np
from PIL import Image

from tests.photographs import HOPPER
from tests.support import saved

#: Pictures of one colour, by which the fakes fail over one image, lack memory for it, or take so many seconds.
BROKEN, GREEDY, SLOW = (255, 0, 255), (255, 255, 0), (0, 255, 255)
#: Eight of them are more than a batch may take.
SLOW_S = 1.0
#: The answer to it is over every limit: the plain handler's by a fake, this project's as an annotated picture.
LONG = (0, 0, 255)


def photograph(number: int) -> bytes:
    """A portrait as PNG, of a size of its own."""
    with Image.open(HOPPER.path) as picture:
        head = picture.convert("RGB").crop((175, 131, 357, 336))
        return saved(head.resize((120 + 8 * number, 144)), "PNG")


def coloured(colour: tuple[int, int, int]) -> bytes:
    """A picture of one colour as PNG."""
    return saved(Image.new("RGB", (160, 160), colour), "PNG")


def damaged() -> bytes:
    """A PNG that ends in its midst."""
    data = photograph(0)
    return data[: len(data) // 2]


def noise() -> bytes:
    """A PNG that nothing compresses: 0.5 MB; its first pixel has the colour LONG."""
    pixels = np.random.default_rng(0).integers(0, 256, (420, 420, 3), np.uint8)
    pixels[0, 0] = LONG
    return saved(Image.fromarray(pixels), "PNG")
