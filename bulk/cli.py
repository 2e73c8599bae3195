"""``mogface-bulk INPUT OUTPUT``: faces of a whole collection."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bulk.arguments import OPTIONS, parser
from bulk.cluster import Wish, connected, layout
from bulk.errors import BulkError, UsageError
from bulk.job import SUMMARY, Counts, Folder, Job, Remaining
from bulk.listing import Columns, parts
from bulk.store import Store, is_local, opened
from handler import artifacts
from handler.config import FILE, Settings
from handler.errors import ArtifactError, MogFaceError

DONE, FAILED, USAGE, STOPPED, INTERRUPTED = 0, 1, 2, 3, 130
#: Images that go through a worker together where the archive's engine takes one at a time: their decoding overlaps.
_BATCH = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job, or go on with it; its exit code, with the reason of any but 0 on the error stream."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except (UsageError, MogFaceError) as error:
        return _failed(error, USAGE)
    except (BulkError, OSError) as error:
        return _failed(error, STOPPED)
    except KeyboardInterrupt:
        return _failed("interrupted; the same command goes on where it was", INTERRUPTED)


def _run(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    said, settings = _archive(options.archive)
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    # Refused here, where it is wrong for every image.
    settings.options.updated(given, settings.canvases)
    filesystem, path = opened(options.input)
    source = path if is_local(filesystem) else options.input
    store = Store(options.output)
    _apart(source, store)
    columns = Columns(options.column, options.id_column)
    job = Job(source, said, given, options.format, columns, options.part_images)
    folder = Folder(store, job.form)
    if not folder.has(job):
        print(f"mogface-bulk: listing {source} ...", file=sys.stderr, flush=True)
        folder.begin(job, parts(source, columns, job.part_images))
    remaining = folder.remaining()
    if remaining.parts:
        _on_cluster(options, job, folder, settings, remaining)
    return _told(store, folder.total(), time.monotonic() - begun)


def _on_cluster(
    options: argparse.Namespace, job: Job, folder: Folder, settings: Settings, remaining: Remaining
) -> None:
    with connected(options.address, options.archive.stat().st_size) as nodes:
        # Here, as they import Ray, which reads its settings then; and a wrong command is told of at once.
        from bulk.run import run
        from bulk.worker import Work

        name, version, key = (job.archive[each] for each in ("name", "version", "artifacts"))
        wish = Wish(options.workers, options.workers_per_gpu, options.threads)
        laid = layout(nodes, wish, on_gpus=settings.device != "cpu")
        on = f"{len(nodes)} nodes" if options.address else "this machine"
        where = f"{laid.workers} workers of {laid.threads} cores" + (f" and {laid.gpus:g} GPU" if laid.gpus else "")
        print(f"mogface-bulk: {name} on {on}, {where}", file=sys.stderr, flush=True)
        batch = options.batch or max(_BATCH, settings.engine_batch)
        work = Work(folder.store, job.form, job.columns, job.options, name, version, key, batch, laid.threads)
        run(work, laid, options.archive, remaining)


def _archive(mar: Path) -> tuple[dict[str, str], Settings]:
    """What an archive says of itself, and its settings."""
    try:
        with zipfile.ZipFile(mar) as file, tempfile.TemporaryDirectory() as scratch:
            listed = file.read(artifacts.FILE)
            said = json.loads(listed)
            kept = {key: str(said[key]) for key in ("name", "version", "weights", "engine", "precision")}
            settings = Settings.load(Path(file.extract(FILE, scratch)))
    except (OSError, zipfile.BadZipFile, ValueError, LookupError, TypeError) as error:
        raise ArtifactError(
            f"{mar} is no archive of `mogface-archive build`: {error}; `make build` makes model_store/centerface.mar"
        ) from error
    # The list has every file's hash: with it two archives of one name are told apart.
    return {**kept, "artifacts": hashlib.sha256(listed).hexdigest()}, settings


def _apart(source: str, store: Store) -> None:
    if f"{store.url}/".startswith(f"{source.rstrip('/')}/"):
        raise UsageError(
            f"output {store.url} lies inside {source}, which is searched for images: choose a folder elsewhere"
        )


def _told(store: Store, counts: Counts, seconds: float) -> int:
    store.write(SUMMARY, json.dumps(asdict(counts), indent=1).encode("utf-8"))
    store.tidy()
    print(
        f"mogface-bulk: {counts.images:,} images, {counts.faces:,} faces, {counts.failed:,} failed, "
        f"{seconds:.1f} s; {store.url}",
        file=sys.stderr,
    )
    if counts.again:
        print(
            f"mogface-bulk: {counts.again:,} failed by no fault of their own: the same command asks for them once more",
            file=sys.stderr,
        )
    return FAILED if counts.failed else DONE


def _failed(error: object, code: int) -> int:
    print(f"mogface-bulk: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
