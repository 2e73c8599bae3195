"""Aligned faces: 112x112 crops by the five-point template that face recognition networks expect."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from handler.geometry import Float32, Uint8

SIZE = 112
#: Where right eye, left eye, nose and mouth corners lie in a crop, in its pixels (x, y): the template that
#: ArcFace's authors published with their 112x112 training crops.
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


def similarity(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The turn, scale and shift that bring ``source`` points nearest to ``target`` points, by least squares.

    Without reflection. In complex numbers the fit is one division (the planar case of Umeyama, 1991).

    Args:
        source: [N, 2] x, y.
        target: [N, 2] x, y.

    Returns:
        [2, 3], to be multiplied with (x, y, 1).
    """
    z, w = source @ [1, 1j], target @ [1, 1j]
    z0, w0 = z.mean(), w.mean()
    spread = np.sum(np.abs(z - z0) ** 2)
    turn = np.sum(np.conj(z - z0) * (w - w0)) / spread if spread > 0 else 1.0 + 0j
    shift = w0 - turn * z0
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def align(image: Uint8, landmarks: Float32) -> Image.Image:
    """One face as a 112x112 RGB picture; black where the crop leaves the image.

    Args:
        image: [H, W, 3] uint8 RGB, upright.
        landmarks: [5, 2] float32, source px, finite.
    """
    # Pillow asks, for each pixel of the crop, where it lies in the image: the inverse map. It counts from
    # pixel edges, landmarks from pixel centres: half a pixel on either side.
    inverse = similarity(TEMPLATE, landmarks.astype(np.float64))
    inverse[:, 2] += 0.5 - inverse[:, :2] @ [0.5, 0.5]
    # The face's part of the image alone: a whole photograph would be converted anew for each face.
    factor = max(1, int(np.hypot(inverse[0, 0], inverse[1, 0])))
    size = np.array([image.shape[1], image.shape[0]])
    corners = np.array([[x, y, 1] for x in (0, SIZE) for y in (0, SIZE)]) @ inverse.T
    # Bicubic sampling looks two pixels further.
    low = np.clip(np.floor(corners.min(axis=0)) - 2 * factor - 1, 0, size - 1).astype(int)
    high = np.clip(np.ceil(corners.max(axis=0)) + 2 * factor + 1, low + 1, size).astype(int)
    picture = Image.fromarray(image[low[1] : high[1], low[0] : high[0]])
    inverse[:, 2] -= low
    # Sampling skips pixels where it shrinks: a large face is averaged down by a whole number first.
    if factor > 1:
        picture = picture.reduce(factor)
        inverse /= factor
    coefficients = tuple(inverse.ravel().tolist())
    return picture.transform((SIZE, SIZE), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC)
