"""WIDER FACE's files: annotations, the easy, medium and hard subsets, results.

The data set is not passed on with this project: whoever has it names its folder, in which the official
downloads lie unpacked, in whatever folders they make: ``WIDER_val``, ``wider_face_split``, ``eval_tools``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from archive.average_precision import Bools, Float64
from archive.files import whole
from handler.detections import Detections
from handler.errors import ArtifactError, ConfigError, EnvironmentFault

ANNOTATIONS = "wider_face_val_bbx_gt.txt"
FACES = "wider_face_val.mat"
SUBSETS = ("easy", "medium", "hard")
#: x y w h blur expression illumination invalid occlusion pose.
_NUMBERS = 10
#: Event and name.
Picture = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """One annotated picture.

    Attributes:
        event: its folder, such as ``0--Parade``.
        name: of its file, without the suffix.
        faces: [G, 4] float64, x y w h, px.
    """

    event: str
    name: str
    faces: Float64

    @property
    def result(self) -> Path:
        """Of its file of results, below their folder."""
        return Path(self.event) / f"{self.name}.txt"


@dataclass(frozen=True)
class Dataset:
    """The validation set.

    Attributes:
        images: the folder of events.
        entries: in the order of the annotations.
        subsets: by name, for each entry [G] bool: the faces that count.
    """

    images: Path
    entries: tuple[Entry, ...]
    subsets: dict[str, list[Bools]]

    @classmethod
    def load(cls, folder: Path) -> Dataset:
        """The set in a folder.

        Raises:
            ConfigError: a file is missing, with where it is to be had.
            ArtifactError: a file of another form, or two that contradict each other.
            EnvironmentFault: scipy, which reads the subsets, is missing.
        """
        annotations = _find(folder, ANNOTATIONS, "wider_face_split.zip")
        entries = tuple(read_annotations(annotations))
        if not entries:
            raise ArtifactError(f"{annotations} lists no picture")
        first = _find(folder, f"{entries[0].event}/{entries[0].name}.jpg", "WIDER_val.zip")
        matlab = _find(folder, FACES, "eval_tools.zip")
        faces = read_faces(matlab)
        counts = {(entry.event, entry.name): len(entry.faces) for entry in entries}
        if {key: len(boxes) for key, boxes in faces.items()} != counts:
            raise ArtifactError(f"{matlab} and {annotations} have different pictures, or numbers of faces on them")
        masks = {name: read_subset(_find(folder, f"wider_{name}_val.mat", "eval_tools.zip"), faces) for name in SUBSETS}
        # The numbers of a subset are of the faces as MATLAB's file has them.
        entries = tuple(dataclasses.replace(entry, faces=faces[entry.event, entry.name]) for entry in entries)
        subsets = {name: [masks[name][entry.event, entry.name] for entry in entries] for name in SUBSETS}
        return cls(first.parents[1], entries, subsets)

    def path(self, entry: Entry) -> Path:
        """Of an entry's picture."""
        return self.images / entry.event / f"{entry.name}.jpg"


def _find(folder: Path, name: str, download: str) -> Path:
    """The file of this name, or path's end, nearest the folder."""
    found = [path for path in folder.rglob(name) if path.is_file()]
    if not found:
        raise ConfigError(
            f"{folder} has no {name} at any depth: unpack {download} of WIDER FACE (shuoyang1213.me/WIDERFACE) into it"
        )
    return min(found, key=lambda path: (len(path.parts), str(path)))


def read_annotations(path: Path) -> Iterator[Entry]:
    """The pictures of ``wider_face_val_bbx_gt.txt``.

    For each: a line with its path; one with the number of its faces; and a line of ten numbers a face. One
    without faces has a line of zeros all the same.

    Raises:
        ArtifactError: another form; it names the line.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    row = 0
    while row < len(lines):
        if not lines[row].strip():
            row += 1
            continue
        event, _, file = lines[row].strip().partition("/")
        try:
            count = int(lines[row + 1])
            end = row + 2 + max(1, count)
            rows = [[float(number) for number in line.split()] for line in lines[row + 2 : end]]
            if not file.endswith(".jpg") or count < 0 or [len(each) for each in rows] != [_NUMBERS] * max(1, count):
                raise ValueError
        except (ValueError, IndexError) as error:
            expected = f"a path, a count and so many lines of {_NUMBERS} numbers"
            raise ArtifactError(f"{path}, from line {row + 1}: expected {expected}") from error
        yield Entry(event, file.removesuffix(".jpg"), np.array(rows[:count], np.float64).reshape(-1, _NUMBERS)[:, :4])
        row = end


def read_faces(path: Path) -> dict[Picture, Float64]:
    """``wider_face_val.mat``: cells a picture in cells an event, names in ``file_list``, faces in ``face_bbx_list``.

    Returns:
        By event and name, in the file's order, [G, 4] float64, x y w h, px.

    Raises:
        ArtifactError: another form.
        EnvironmentFault: scipy is missing.
    """
    with _as_artifact(path):
        events, files, boxes = _cells(path, "event_list", "file_list", "face_bbx_list")
        return {
            (str(event[0]), str(name[0])): np.array(faces, np.float64).reshape(-1, 4)
            for event, names, rows in zip(events, files, boxes, strict=True)
            for name, faces in zip(names[:, 0], rows[:, 0], strict=True)
        }


def read_subset(path: Path, faces: Mapping[Picture, Float64]) -> dict[Picture, Bools]:
    """``wider_easy_val.mat`` and the like: in ``gt_list``, the numbers, from 1, of the faces that count.

    Args:
        path: of the file.
        faces: of :func:`read_faces`, in whose order the pictures are.

    Returns:
        By event and name [G] bool.

    Raises:
        ArtifactError: another form, another number of pictures, or a number that no face has.
        EnvironmentFault: scipy is missing.
    """
    masks = {}
    with _as_artifact(path):
        (cells,) = _cells(path, "gt_list")
        numbers = [each.reshape(-1).astype(np.int64) for event in cells for each in event[:, 0]]
        for (picture, boxes), kept in zip(faces.items(), numbers, strict=True):
            if len(kept) and not 1 <= kept.min() <= kept.max() <= len(boxes):
                raise ValueError(f"{'/'.join(picture)} has no face {kept.max()}")
            masks[picture] = np.zeros(len(boxes), np.bool_)
            masks[picture][kept - 1] = True
    return masks


def _cells(path: Path, *names: str) -> list[npt.NDArray[np.object_]]:
    """Columns of cells of a MATLAB file."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise EnvironmentFault("WIDER's .mat files need the package scipy: pip install '.[evaluate]'") from error
    content: dict[str, Any] = loadmat(path)
    return [content[name][:, 0] for name in names]


@contextlib.contextmanager
def _as_artifact(path: Path) -> Iterator[None]:
    try:
        yield
    except EnvironmentFault:
        raise
    except Exception as error:  # scipy raises nearly anything on damaged files
        raise ArtifactError(f"{path}: not WIDER's form: {type(error).__name__}: {error}") from error


def rows(faces: Detections) -> Float64:
    """[N, 5] float64, x y w h score, as WIDER has them: inclusive corners make a width of x2 - x1 + 1."""
    boxes = faces.boxes.astype(np.float64)
    return np.column_stack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2] + 1, faces.scores.astype(np.float64)])


def write_result(path: Path, name: str, found: Float64) -> None:
    """A picture's file of results: its name, the number of faces, and x y w h score a line.

    Args:
        path: of the file.
        name: of the picture.
        found: [N, 5] float64, by falling score.
    """
    lines = [name, str(len(found))]
    # 1/1000 px, and scores finer than float32 tells them apart: rounding must not make ties.
    lines += [" ".join(f"{value:.3f}" for value in row[:4]) + f" {row[4]:.9f}" for row in found]
    with whole(path) as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_result(path: Path) -> Float64:
    """[N, 5] float64 of a file of results.

    Raises:
        ArtifactError: it is missing or of another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        count = int(lines[1])
        if len(lines) != count + 2:
            raise ValueError(f"{len(lines) - 2} lines where {count} are announced")
        # All at once: a set has two million numbers.
        found = np.array(" ".join(lines[2:]).split(), np.float64).reshape(count, 5)
    except (OSError, ValueError, IndexError) as error:
        raise ArtifactError(f"{path}: expected a name, a count and so many lines x y w h score: {error}") from error
    if not np.isfinite(found).all():
        raise ArtifactError(f"{path}: holds numbers that are not finite")
    return found
