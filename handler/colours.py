"""Every mode of a picture -> RGB of 8 bits; the rules are those of :mod:`handler.image`."""

from __future__ import annotations

import numpy as np
from PIL import Image, TiffImagePlugin

from handler import tags


def rgb(picture: Image.Image) -> Image.Image:
    """Pillow's picture in RGB; what is transparent shows white."""
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I;16"):
        samples = np.asarray(picture)
        # Pillow inverts a TIFF whose zero is white, but not at 16 bits.
        if picture.format == "TIFF" and tags.number(picture, TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0) == 0:
            samples = ~samples
        return Image.fromarray((samples >> 8).astype(np.uint8)).convert("RGB")
    if picture.format == "BMP" and picture.mode == "RGBA" and picture.getchannel("A").getextrema() == (0, 0):
        return picture.convert("RGB")
    if picture.mode in ("LA", "RGBA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = (
            picture
            if picture.mode in ("LA", "RGBA") and "transparency" not in picture.info
            else picture.convert("RGBA")
        )
        white = Image.new("RGB", layer.size, "white")
        white.paste(layer, mask=layer)
        return white
    return picture.convert("RGB")
