"""What a run writes beside its results: annotated pictures, and faces that are cut out."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients import draw
from clients.answer import Answer
from clients.errors import ClientError, UsageError
from clients.files import whole
from clients.results import Result
from clients.sources import Source

#: Formats whose annotated picture keeps the file's name; others become PNG.
_NAMED = (".jpg", ".jpeg", ".png")
#: Of a crop.
_CROP = re.compile(r"\d{4,}\.jpg")
#: What is in the way of one image's files alone; a full disk, for one, is in the way of all.
_OF_THE_NAME = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EILSEQ, errno.EINVAL}


@dataclass(frozen=True)
class Written:
    """Where a run's results go.

    Attributes:
        output: file of results, to go on with; None for ``stdout``.
        table: rows for people instead of JSON, on ``stdout`` alone.
        pictures: folder of annotated pictures.
        crops: folder of cut-out faces.

    Raises:
        UsageError: a table and an output file, one folder for both, or a folder that is none.
    """

    output: Path | None = None
    table: bool = False
    pictures: Path | None = None
    crops: Path | None = None

    def __post_init__(self) -> None:
        if self.table and self.output:
            raise UsageError("--format table is for stdout: a run goes on with a file of JSON lines alone")
        for flag, folder in (("--pictures", self.pictures), ("--crops", self.crops)):
            if folder:
                there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
                if not there.is_dir():
                    raise UsageError(f"{flag} {folder}: {there} is no folder; choose another")
        if self.pictures and self.crops and os.path.realpath(self.pictures) == os.path.realpath(self.crops):
            raise UsageError(
                f"--pictures and --crops are both {self.pictures}: an image has a file there and a folder of the same "
                "name; choose two folders"
            )


@dataclass(frozen=True)
class Files:
    """The pictures and crops of a run.

    Attributes:
        written: where they go.
        names: image to its files' path inside those folders; see :func:`names_of`.

    Raises:
        UsageError: two images would have one annotated picture, or it would take an image's own place.
    """

    written: Written
    names: Mapping[str, Path]

    def __post_init__(self) -> None:
        if not self.written.pictures:
            return
        images = {_identity(path) for path in self.names} - {None}
        seen: set[Path] = set()
        for path in map(self.picture, self.names):
            if path in seen:
                raise UsageError(f"two images would have the annotated picture {path}: rename one")
            if _identity(path) in images:
                raise UsageError(f"--pictures would write over the image {path}: choose another folder")
            seen.add(path)

    def keeps(self, result: Result, model: str) -> bool:
        """Whether a result of an earlier run does: crops come with answers alone."""
        if result.answer is None or result.path not in self.names:
            return True
        if result.answer.model.name != model:
            raise UsageError(
                f"{self.written.output} has answers of {result.answer.model.name}, and {model} is asked now: choose "
                "another file"
            )
        return not (self.written.crops and any(face.landmarks for face in result.answer.faces)) or (
            os.path.isdir(self.crops(result.path))
        )

    def complete(self, source: Source, result: Result) -> bool:
        """The annotated picture of an image that was answered in an earlier run, where it is not there yet.

        Returns:
            Whether it is there now, as far as it is wanted.

        Raises:
            OSError: as of :meth:`write`.
        """
        if self.written.pictures and result.answer:
            try:
                with _alone():
                    if not self.picture(source.path).exists():
                        self._draw(source, result.answer)
            except UsageError as error:
                print(f"mogface detect: {source.path}: {error.message}", file=sys.stderr)
                return False
        return True

    def write(self, source: Source, outcome: Answer | ClientError) -> Answer | ClientError:
        """What belongs to an answer, before its line is written.

        Returns:
            The outcome, or the error of what this image alone cannot have: a picture that cannot be drawn, a name that
            is too long.

        Raises:
            OSError: what every image would meet, as a full disk, with the file's name.
        """
        if isinstance(outcome, ClientError):
            return outcome
        try:
            with _alone():
                if self.written.pictures:
                    self._draw(source, outcome)
                if self.written.crops:
                    self._cut(self.crops(source.path), outcome)
        except UsageError as error:
            return error
        return outcome

    def picture(self, path: str) -> Path:
        """The file of an image's annotated picture."""
        assert self.written.pictures is not None
        name = self.names[path]
        return self.written.pictures / (name if name.suffix.lower() in _NAMED else name.with_name(name.name + ".png"))

    def crops(self, path: str) -> Path:
        """The folder of an image's crops."""
        assert self.written.crops is not None
        return self.written.crops / self.names[path]

    def _draw(self, source: Source, answer: Answer) -> None:
        path = self.picture(source.path)
        drawn = draw.annotate(draw.upright(source.read()), answer)
        data = draw.encode(drawn, lossless=path.suffix.lower() == ".png")
        with whole(path) as file:
            file.write(data)

    @staticmethod
    def _cut(folder: Path, answer: Answer) -> None:
        crops = {f"{index:04}.jpg": face.crop for index, face in enumerate(answer.faces) if face.crop is not None}
        for name, data in crops.items():
            with whole(folder / name) as file:
                file.write(data)
        # Of an earlier run, with other options or another picture under this name: these faces are not in the answer.
        for path in folder.iterdir() if folder.is_dir() else ():
            if _CROP.fullmatch(path.name) and path.name not in crops:
                path.unlink()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Translates what one image alone meets."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_NAME:
            raise
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Of a file, by whatever name; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def names_of(paths: Sequence[str]) -> dict[str, Path]:
    """Where each image's files go inside a folder: as the images lie under the folder that holds them all."""
    files = {path: os.path.abspath(path if path != "-" else "stdin") for path in paths}
    if not files:
        return {}
    top = os.path.commonpath([os.path.dirname(file) for file in files.values()])
    return {path: Path(os.path.relpath(file, top)) for path, file in files.items()}
