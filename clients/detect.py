"""``mogface detect``: many images to the server, their results in the images' order."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from tqdm import tqdm

from clients.answer import Answer
from clients.client import Client
from clients.errors import (
    BadAnswer,
    ClientError,
    InvalidOption,
    InvalidRequest,
    NotAuthorised,
    NotFound,
    Unreachable,
)
from clients.files import naming
from clients.outputs import Files, Written, names_of
from clients.results import Result, Results
from clients.sources import Source
from clients.streams import STDOUT
from clients.wire import Option, Picture

#: Errors that every image would meet: a run ends at the first.
ENDING = (BadAnswer, InvalidOption, InvalidRequest, NotAuthorised, NotFound, Unreachable)
#: Failed images that are told of on the error stream; all are in the results.
_NAMED_FAILURES = 10
_ROW = "{:>6} {:>7} {:>11} {:>9}  {}"


@dataclass
class Stop:
    """Whether the run is to end; a context manager in which signals say so.

    The first SIGINT or SIGTERM lets what was sent be answered and sends nothing more, so that no image is asked twice
    when the run goes on; the second one ends the process's wait too.
    """

    number: int = 0
    _before: dict[int, Callable[[int, FrameType | None], object] | int | None] = field(default_factory=dict)

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        print("\nmogface detect: waiting for what was sent; once more to end at once", file=sys.stderr)

    def __exit__(self, *reason: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def detect(
    client: Client, model: str, asked: Sequence[Source], options: Mapping[str, Option], written: Written, out: IO[bytes]
) -> int:
    """Ask for each image's faces once and write every result, in the order of the images.

    Args:
        client: to ask with.
        model: that it asks.
        asked: the images.
        options: of the server.
        written: where results go.
        out: the standard output.

    Returns:
        The exit code: 0, or 1 where an image failed; 128 and a signal's number where one ended the run.

    Raises:
        ClientError: one of ``ENDING``, which every image would meet, or a UsageError before anything is sent.
        OSError: something that cannot be written, of more than one image, with its name.
    """
    files = Files(written, names_of([source.path for source in asked]))
    if written.crops:
        options = {**options, "crops": True}
    with contextlib.ExitStack() as stack:
        results = None
        if written.output:
            results = stack.enter_context(Results(written.output, lambda result: files.keeps(result, model)))
        kept = results.kept if results else {}
        stop = stack.enter_context(Stop())
        bar = stack.enter_context(
            # None: only where the error stream is a terminal.
            tqdm(total=len(asked), unit="image", disable=None, dynamic_ncols=True, file=sys.stderr)
        )
        if written.table:
            _tell(out, _ROW.format("faces", "best", "size", "ms", "path").encode() + b"\n")
        done = failed = 0
        try:
            for source, outcome in _outcomes(client, asked, kept, options, stop):
                if isinstance(outcome, ENDING):
                    if done:
                        print(_stopped(done, asked, written), file=sys.stderr)
                    raise outcome
                if isinstance(outcome, Result):
                    result = outcome
                    failed += not files.complete(source, result)
                else:
                    result = Result.of(source.path, files.write(source, outcome))
                    if results:
                        results.add(result)
                    else:
                        _tell(out, _row(result) if written.table else result.line())
                done += 1
                if result.error is not None:
                    failed += 1
                    if failed <= _NAMED_FAILURES and not written.table:
                        bar.write(_failure(result), file=sys.stderr)
                bar.set_postfix(failed=failed, refresh=False)
                bar.update(1)
        finally:
            if results:
                results.arrange([source.path for source in asked])
    if stop.number and done < len(asked):
        print(_stopped(done, asked, written), file=sys.stderr)
        return 128 + stop.number
    if results:
        told = f"mogface detect: {len(asked)} images, {failed} failed; {written.output}"
        before = sum(source.path in kept for source in asked)
        print(told + (f" had {before} of them from an earlier run" if before else ""), file=sys.stderr)
    elif failed:
        print(f"mogface detect: {failed} of {len(asked)} images failed", file=sys.stderr)
    return 1 if failed else 0


def _outcomes(
    client: Client, asked: Sequence[Source], kept: Mapping[str, Result], options: Mapping[str, Option], stop: Stop
) -> Iterator[tuple[Source, Answer | ClientError | Result]]:
    """Each source with its result of an earlier run, its own error or what the server says, in their order."""

    def images() -> Iterator[Picture]:
        for source in asked:
            if stop.number:
                return
            if source.path not in kept and source.error is None:
                yield source.image

    answers = client.detect_each(images(), **options)
    for source in asked:
        if source.path in kept:
            yield source, kept[source.path]
        elif source.error is not None:
            yield source, source.error
        else:
            try:
                yield source, next(answers)
            except StopIteration:
                # Stopped before this one was sent.
                return


def _tell(out: IO[bytes], line: bytes) -> None:
    with naming(STDOUT):
        out.write(line)
        out.flush()


def _row(result: Result) -> bytes:
    # Names may have line ends and bytes that are no text.
    path = json.dumps(result.path)[1:-1]
    if result.answer is None:
        assert result.error is not None
        row = _ROW.format("-", "-", "-", "-", f"{path}: {result.error['type']}: {result.error['message']}")
    else:
        answer = result.answer
        best = f"{max(face.score for face in answer.faces):.3f}" if answer.faces else "-"
        size = f"{answer.width}x{answer.height}"
        row = _ROW.format(len(answer.faces), best, size, f"{sum(answer.timing_ms.values()):.1f}", path)
    return row.encode("utf-8", "backslashreplace") + b"\n"


def _failure(result: Result) -> str:
    """One line, whatever the file's name holds."""
    assert result.error is not None
    told = f"{json.dumps(result.path)[1:-1]}: {result.error['type']}: {result.error['message']}"
    return "mogface detect: " + told.encode("utf-8", "backslashreplace").decode("utf-8")


def _stopped(done: int, asked: Sequence[Source], written: Written) -> str:
    told = f"mogface detect: stopped after {done} of {len(asked)} images."
    if written.output:
        return f"{told} {written.output} is whole: the same command goes on from there."
    return f"{told} With --output FILE the same command would go on from there."
