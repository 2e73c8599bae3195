"""The actor that holds a detector: a part's number in, its files written, its counts out.

The detector is the archive's own code, as the server runs it: nothing here imports ``handler`` before the archive is
unpacked and comes first on the path. So a face is the same number by number whichever of the two found it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from bulk import reading
from bulk.errors import JobStopped
from bulk.job import Counts, Folder
from bulk.listing import Columns
from bulk.schema import Row
from bulk.store import Store

#: A deadline is for callers who wait; nobody waits for one image of a bulk job. The longest that settings take.
_DEADLINE_S = 86_399.0
#: Times that a part is begun: Ray runs it again without end where each time the process or the node is lost.
_ATTEMPTS = 4
#: Between two reports of how far a part is.
_REPORT_S = 1.0


@dataclass(frozen=True)
class Work:
    """What every worker has to know.

    Attributes:
        store: of the output.
        form: of the output.
        columns: of Parquet input.
        options: of the detector.
        name: of the model.
        version: of the archive.
        key: that no other archive has: the hash of its list of hashes.
        batch: images that go through the detector's pipeline together.
        threads: cores of one worker.
    """

    store: Store
    form: str
    columns: Columns
    options: Mapping[str, Any]
    name: str
    version: str
    key: str
    batch: int
    threads: int


class Worker:
    """For Ray Data: one row ``{"part": N}`` -> one row of its counts.

    Args:
        work: what is to be done.
        archive: reference to the .mar's bytes, [size] uint8. In a list, which Ray does not look into.
        tally: actor that is told how far a part is.
    """

    def __init__(self, work: Work, archive: list[Any], tally: Any) -> None:
        self._work = work
        self._folder = Folder(work.store, work.form)
        self._listing = self._folder.listing()
        self._tally = tally
        try:
            folder = unpacked(ray.get(archive[0]), work.key)
            self._detector: _Detector | str = _Detector(folder, work)
        # Raised here Ray would try without end; as its parts' fault it is told of.
        except Exception as error:  # noqa: BLE001
            self._detector = _told(error)

    def __call__(self, batch: dict[str, npt.NDArray[np.int64]]) -> dict[str, Any]:
        """Run the parts that are not done yet."""
        numbers = [int(number) for number in batch["part"]]
        # After a node is lost Ray runs again what it may have run: what is done stays as it is.
        counts = [self._folder.counts(number) or self._finished(number) for number in numbers]
        return {"part": numbers, "images": [each.images for each in counts]}

    def _finished(self, number: int) -> Counts:
        try:
            return self._run(number)
        # Whatever it is, it must not end the job: the part is not done, and its run says why.
        except Exception as error:  # noqa: BLE001
            self._tally.fault.remote(number, _told(error))
            return Counts()

    def _run(self, number: int) -> Counts:
        if isinstance(self._detector, str):
            raise JobStopped(f"no detector on {platform.node()}: {self._detector}")
        if ray.get(self._tally.begin.remote(number)) > _ATTEMPTS:
            raise JobStopped(
                f"its worker's process was lost {_ATTEMPTS} times, as by a crash of a decoder or an engine, or for "
                "want of memory"
            )
        pieces = self._listing.part(number)
        found = reading.images(pieces, self._work.columns, self._detector.bytes_limit)
        rows: list[Row] = []
        reported = 0.0
        with ThreadPoolExecutor(1) as reader:
            # The next batch is read while this one is answered; no third is in memory.
            ahead = reader.submit(self._batch, found)
            while batch := ahead.result():
                ahead = reader.submit(self._batch, found)
                rows += self._answered(batch)
                if time.monotonic() - reported > _REPORT_S:
                    reported = time.monotonic()
                    self._report(number, rows)
        expected = sum(piece.images for piece in pieces)
        if len(rows) != expected:
            raise JobStopped(f"part {number} has {len(rows)} images, and had {expected} when it was listed")
        self._report(number, rows)
        return self._folder.write(number, rows)

    def _batch(self, found: Iterator[tuple[str, bytes | str]]) -> list[tuple[str, bytes | str]]:
        return list(islice(found, self._work.batch))

    def _answered(self, batch: Sequence[tuple[str, bytes | str]]) -> list[Row]:
        assert isinstance(self._detector, _Detector)
        answers = iter(self._detector.answer([data for _, data in batch if isinstance(data, bytes)]))
        return [
            Row.of(path, *next(answers)) if isinstance(data, bytes) else Row.unread(path, data) for path, data in batch
        ]

    def _report(self, number: int, rows: Sequence[Row]) -> None:
        self._tally.report.remote(number, len(rows), sum(row.error is not None for row in rows))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, JobStopped) else f"{type(error).__name__}: {error}"


def unpacked(archive: npt.NDArray[np.uint8], key: str, temporary: Path | None = None) -> Path:
    """The archive's files, in a folder of this user's that all workers of a node share and later jobs find again.

    A worker is killed when it is not needed any more, so that a folder of its own would stay for ever.

    Args:
        archive: [size] uint8.
        key: of the archive.
        temporary: in which it lies; the machine's own where None.

    Raises:
        JobStopped: somebody else could write there.
    """
    mine = (temporary or Path(tempfile.gettempdir())) / f"mogface-bulk-{os.getuid()}"
    mine.mkdir(mode=0o700, exist_ok=True)
    found = mine.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or mine.is_symlink():
        raise JobStopped(f"{mine} can be written by others, and code is run from it: remove it")
    folder = mine / key
    if not folder.exists():
        draft = Path(tempfile.mkdtemp(dir=mine))
        packed = draft / "packed.mar"
        archive.tofile(packed)
        with zipfile.ZipFile(packed) as file:
            file.extractall(draft)
        packed.unlink()
        try:
            draft.rename(folder)
        except OSError:
            # Another worker was first.
            shutil.rmtree(draft)
    return folder


class _Detector:
    """The archive's pipeline, out of its folder."""

    def __init__(self, folder: Path, work: Work) -> None:
        # Ray gives an actor a process that may have imported another handler before.
        for name in [name for name in sys.modules if name.partition(".")[0] == "handler"]:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        import torch

        from handler import allocator, artifacts, cuda, device
        from handler.config import FILE, Settings
        from handler.pipeline import Pipeline
        from handler.request import Request

        strays = [
            module.__name__
            for module in list(sys.modules.values())
            if module.__name__.partition(".")[0] == "handler" and not str(module.__file__).startswith(str(folder))
        ]
        if strays:
            raise JobStopped(f"{', '.join(strays)} came from elsewhere than the archive")
        allocator.return_freed_memory()
        # Of odd metadata and large pictures, which are answered for.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        logging.getLogger("PIL").setLevel(logging.CRITICAL)
        artifacts.check(folder)
        settings = dataclasses.replace(
            Settings.load(folder / FILE),
            threads=work.threads,
            decode_threads=work.threads,
            deadline_s=_DEADLINE_S,
            log_requests=False,
        )
        self.bytes_limit = settings.limits.bytes
        # Ray shows an actor its own GPU alone.
        self._device = device.choose(settings.device, None)
        self._alive, self._request, self._torch = cuda.alive, Request, torch
        self._headers = {f"X-Face-{name.replace('_', '-')}": str(value) for name, value in work.options.items()}
        self._pipeline = Pipeline.load(folder, settings, work.name, work.version, self._device)

    def answer(self, images: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Status and body of each, as the server would send them."""
        if not images:
            return []
        requests = [self._request({"body": data}, self._headers, "") for data in images]
        with self._torch.inference_mode():
            responses = self._pipeline.answer(requests)
        if not self._alive(self._device):
            # Only a new process can use the GPU again: Ray starts one, which runs this part from its beginning.
            os._exit(3)
        return [(response.status, response.body) for response in responses]
