"""Photographs to results: asked of the server together, drawn one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from clients import Answer, AsyncClient, ClientError, UsageError
from clients.draw import annotate, encode, upright
from clients.wire import Option
from webui.results import Result

#: px; of the longer side of what the page shows. What is downloaded has the photograph's own size.
SHOWN = 1600


@dataclass(frozen=True)
class Seen:
    """A photograph as the page shows it.

    Attributes:
        result: what became of it.
        preview: the file of its annotated picture, ``SHOWN`` px at most; None where nothing is drawn.
        crops: files of its aligned faces, each with the number of its face, from 1.
    """

    result: Result
    preview: Path | None = None
    crops: tuple[tuple[int, Path], ...] = ()


async def detected(
    client: AsyncClient, photographs: Sequence[Path], options: Mapping[str, Option], folder: Path
) -> AsyncIterator[Seen]:
    """Each photograph's result, in their order; one that fails ends no other.

    Args:
        client: shared by everyone who has the page open, so that the server batches what they send.
        photographs: their files.
        options: the server's.
        folder: where pictures are written.

    Raises:
        UsageError: the options cannot be sent.
        OSError: a picture cannot be written.
    """
    number = 0
    async for found in client.detect_each(photographs, **options):
        path, number = photographs[number], number + 1
        if isinstance(found, ClientError):
            yield Seen(Result(path.name, found))
        else:
            # Decoding and encoding keep a core busy: beside the event loop, one photograph of a run at a time.
            yield await asyncio.to_thread(_drawn, path, found, folder / f"{number:03d}")


def _drawn(path: Path, answer: Answer, folder: Path) -> Seen:
    folder.mkdir()
    crops = []
    for number, face in enumerate(answer.faces, 1):
        if face.crop is not None:
            crop = folder / f"{path.stem}-{number}.jpg"
            crop.write_bytes(face.crop)
            crops.append((number, crop))
    lossless = path.suffix.lower() in (".png", ".bmp", ".gif", ".tif", ".tiff")
    try:
        picture = annotate(upright(path.read_bytes()), answer)
        encoded = encode(picture, lossless)
    except (UsageError, FileNotFoundError):
        # A kind that the server reads and this process does not, such as HEIC, or a file that was swept meanwhile: the
        # report says that it is not drawn.
        return Seen(Result(path.name, answer), None, tuple(crops))
    full = folder / f"{path.stem}-faces{'.png' if lossless else '.jpg'}"
    full.write_bytes(encoded)
    preview = full
    if max(picture.size) > SHOWN:
        picture.thumbnail((SHOWN, SHOWN), Image.Resampling.BOX)
        preview = folder / "preview.jpg"
        preview.write_bytes(encode(picture, lossless=False))
    return Seen(Result(path.name, answer, full), preview, tuple(crops))
