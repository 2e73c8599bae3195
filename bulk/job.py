"""A job: what is asked, kept beside the output, so that only the same job goes on there.

The output folder holds ``job.json`` (what was asked), ``listing.parquet`` (its images), and for each part
``errors/part-N``, ``faces/part-N`` and ``done/part-N.json``, written in this order. A part is done when its last file
is there. Each name belongs to one part and is written whole, so that a part that is run twice, on two machines even,
leaves no double; and one that was not finished is run again, so that there is no hole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from bulk.errors import JobStopped, UsageError
from bulk.listing import Columns, Listing, Piece, dump
from bulk.schema import Row, errors_file, faces_file
from bulk.store import Store

JOB, LISTING, SUMMARY = "job.json", "listing.parquet", "summary.json"
_DONE = "done"
_FORMAT = 1


@dataclass(frozen=True)
class Job:
    """What is asked.

    Attributes:
        input: as it was given; a local path is absolute.
        archive: name, version, weights, engine, precision, and the hash of its list of files.
        options: of the detector; the archive's own where not named.
        form: of the output, ``parquet`` or ``jsonl``.
        columns: of Parquet input.
        part_images: images a part.
    """

    input: str
    archive: Mapping[str, str]
    options: Mapping[str, Any]
    form: str
    columns: Columns
    part_images: int

    def dump(self) -> bytes:
        """As ``job.json`` has it."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1).encode("utf-8")


@dataclass(frozen=True)
class Counts:
    """Of a part, or of a job.

    Attributes:
        images: that were gone through.
        failed: of these, those in ``errors``.
        again: of these, those whose fault was not the image's.
        faces: found on the others.
    """

    images: int = 0
    failed: int = 0
    again: int = 0
    faces: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Counts)))


@dataclass(frozen=True)
class Remaining:
    """What of a job is left.

    Attributes:
        images: of the whole job.
        parts: numbers of those that are to be run.
        before: counts of those that are not.
    """

    images: int
    parts: Sequence[int]
    before: Counts


class Folder:
    """A job's output.

    Args:
        store: where it lies.
        form: of the output.
    """

    def __init__(self, store: Store, form: str) -> None:
        self.store = store
        self._form = form

    def has(self, job: Job) -> bool:
        """Whether this job was begun here.

        Raises:
            UsageError: another job was, or something else lies here.
        """
        if not self.store.has(JOB):
            # What is left of a start that was cut off before job.json is this listing alone.
            others = [name for name in self.store.names("") if name != LISTING]
            if others:
                raise UsageError(f"{self.store.url} holds {others[0]} and no {JOB}: choose a new or empty folder")
            return False
        asked = json.loads(job.dump())
        found = json.loads(self.store.read(JOB))
        for name in asked.keys() | found.keys():
            if asked.get(name) != found.get(name):
                raise UsageError(
                    f"{self.store.url} is another job's: its {name} is {found.get(name)}, and {asked.get(name)} is "
                    "asked now; give the same command to go on, or choose another folder"
                )
        return True

    def begin(self, job: Job, parts: Sequence[Sequence[Piece]]) -> None:
        """Write the listing, then the job, whose file says that both are whole."""
        self.store.write(LISTING, dump(parts))
        self.store.write(JOB, job.dump())

    def listing(self) -> Listing:
        """The job's images."""
        return Listing(self.store.read(LISTING))

    def done(self) -> dict[int, Counts]:
        """Counts of each part that is done."""
        found = self.store.read_all(_DONE)
        return {int(name[len("part-") : -len(".json")]): Counts(**json.loads(data)) for name, data in found.items()}

    def remaining(self) -> Remaining:
        """Parts that are not done, and those with images that failed by no fault of their own: they are asked again."""
        listing, done = self.listing(), self.done()
        parts = [number for number in range(len(listing)) if number not in done or done[number].again]
        before = sum((done[number] for number in done.keys() - set(parts)), Counts())
        return Remaining(listing.images, parts, before)

    def reopen(self, parts: Sequence[int]) -> None:
        """Have these parts not be done: of those that are asked again what was done before would pass for the new.

        Raises:
            OSError: what says that they are done cannot be removed.
        """
        for number in self.done().keys() & set(parts):
            self.store.remove(f"{_DONE}/{_part(number)}.json")

    def total(self) -> Counts:
        """Of the whole job, once nothing remains.

        Raises:
            JobStopped: there are fewer images than were listed.
        """
        counts, images = sum(self.done().values(), Counts()), self.listing().images
        if counts.images != images:
            raise JobStopped(f"{self.store.url} has {counts.images} images of {images}: was a file removed meanwhile?")
        return counts

    def counts(self, number: int) -> Counts | None:
        """Of a part; None where it is not done."""
        name = f"{_part(number)}.json"
        if not self.store.has(f"{_DONE}/{name}"):
            return None
        return Counts(**json.loads(self.store.read(f"{_DONE}/{name}")))

    def write(self, number: int, rows: Sequence[Row]) -> Counts:
        """A part's files, the one that says it is done last.

        Raises:
            OSError: they cannot be written.
        """
        failed = [row for row in rows if row.error is not None]
        counts = Counts(len(rows), len(failed), sum(row.again for row in rows), sum(row.faces for row in rows))
        # One with no such rows is written too: what an earlier run left there must not stay.
        self.store.write(f"errors/{_part(number)}.{self._form}", errors_file(rows, self._form))
        self.store.write(f"faces/{_part(number)}.{self._form}", faces_file(rows, self._form))
        self.store.write(f"{_DONE}/{_part(number)}.json", json.dumps(asdict(counts)).encode("utf-8"))
        return counts


def _part(number: int) -> str:
    return f"part-{number:07}"
