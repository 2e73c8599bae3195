"""``mogface watch``: the whole of a run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clients.client import AsyncClient
from clients.errors import UsageError
from clients.watch.follow import Seen, Sending, follow
from clients.watch.outputs import Crops, Lines, Output, Videos
from clients.watch.reader import Reading
from clients.watch.sources import Source
from clients.watch.table import show
from clients.watch.tally import Tally


@dataclass(frozen=True)
class Written:
    """Where results go.

    Attributes:
        output: file that lines are added to; None for ``stdout``.
        videos: folder of annotated videos.
        crops: folder of cut-out faces.
        blur: make faces in the videos unrecognisable.

    Raises:
        UsageError: ``blur`` without videos.
    """

    output: Path | None = None
    videos: Path | None = None
    crops: Path | None = None
    blur: bool = False

    def __post_init__(self) -> None:
        if self.blur and not self.videos:
            raise UsageError("--blur is of the videos: it needs --video FOLDER")

    def outputs(self, out: IO[bytes], sources: Sequence[Source]) -> list[Output]:
        """Opened, for these sources.

        Args:
            out: the standard output.
            sources: that write.

        Raises:
            UsageError: a file that cannot be written, or would take the place of a source.
        """
        self._spare(sources)
        folders = [folder for folder in (self.videos, self.crops) if folder]
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            if self.output:
                self.output.parent.mkdir(parents=True, exist_ok=True)
                out = self.output.open("ab")
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
        files = {source.name: source.file for source in sources}
        outputs: list[Output] = [Lines(out, self.output)]
        outputs += [Videos(self.videos, files, self.blur)] if self.videos else []
        outputs += [Crops(self.crops, files)] if self.crops else []
        return outputs

    def _spare(self, sources: Sequence[Source]) -> None:
        written = {self.output.resolve(): "--output"} if self.output else {}
        if self.crops:
            written |= {(self.crops / source.file).resolve(): "--crops" for source in sources}
        for source in sources:
            if source.lasting:
                continue
            path = Path(source.address).resolve()
            if path in written:
                raise UsageError(f"{written[path]} would write into {source.name}, which is watched: choose another")
            # By the whole folder, as a source goes on in further files.
            if self.videos and path.parent == self.videos.resolve() and path.suffix == ".mp4":
                raise UsageError(f"--video {self.videos} could replace {source.name}, which is watched: choose another")


def watch(
    client: Mapping[str, object], sources: Sequence[Source], reading: Reading, sending: Sending, written: Written
) -> int:
    """Watch until every source has ended, or SIGINT or SIGTERM; a second one does not wait for what was sent.

    Args:
        client: arguments of an AsyncClient.
        sources: to watch.
        reading: what of each is read.
        sending: how frames are sent.
        written: where results go.

    Returns:
        The exit code: 0, or 1 where a source could not be read or a frame had an error.

    Raises:
        ClientError: one that every frame would meet.
        OSError: a result that cannot be written; with its name.
        KeyboardInterrupt: told to end twice.
    """
    tallies = [Tally(source.name) for source in sources]
    outputs = written.outputs(sys.stdout.buffer, sources)
    # A table and lines would write over each other.
    live = sys.stderr.isatty() and (written.output is not None or not sys.stdout.isatty())

    def deliver(seen: Seen) -> None:
        for output in outputs:
            output.write(seen)

    async def run() -> None:
        ended = asyncio.Event()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task

        def end() -> None:
            if ended.is_set():
                task.cancel()
            ended.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        showing = asyncio.create_task(show(tallies, sys.stderr, live))
        try:
            async with AsyncClient(**client) as asked:  # type: ignore[arg-type]
                await follow(asked, sources, tallies, reading, sending, deliver, ended)
        finally:
            showing.cancel()
            await asyncio.wait([showing])

    try:
        with contextlib.ExitStack() as stack:
            for output in outputs:
                stack.callback(output.close)
            asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for tally in tallies:
            print(f"mogface watch: {tally.line()}", file=sys.stderr)
    # A camera that was away at the end is no fault; one that never came is.
    faults = [
        bool(tally.failed or (not tally.read if source.lasting else tally.error))
        for tally, source in zip(tallies, sources, strict=True)
    ]
    return int(any(faults))
