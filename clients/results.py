"""The results of a run: one line of JSON an image, in a file that an interrupted run goes on with.

A line is ``{"path": ..., "answer": {...}}`` or ``{"path": ..., "error": {"code", "type", "message"}}``, in ASCII. A
name that is not UTF-8 has its odd bytes as lone surrogates, ``\\udc80`` to ``\\udcff``, which Python's ``os.fsencode``
turns back. Lines are added to the file as answers come, so that nothing is lost however the run ends; at the end they
are put into the order of the images.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from clients.answer import Answer
from clients.errors import BadAnswer, ClientError, InvalidImage, TooLarge, UnsupportedImage, UsageError
from clients.files import naming, whole

#: Errors of the image itself: the same image is not asked again for them.
FINAL = (InvalidImage, TooLarge, UnsupportedImage)
_FINAL = {kind("").type for kind in FINAL}
#: Of every error's values.
_ERRORS = tuple({"code": code, "type": str, "message": str} for code in (int, type(None)))
#: Of every line.
_BEGIN = b'{"path":'


@dataclass(frozen=True)
class Result:
    """What became of one image.

    Attributes:
        path: as its source tells it.
        answer: of the server, or
        error: ``code`` (of HTTP, or None), ``type`` and ``message``.
    """

    path: str
    answer: Answer | None = None
    error: dict[str, Any] | None = None

    @classmethod
    def of(cls, path: str, outcome: Answer | ClientError) -> Result:
        """From what the client gave. A line has no room for crops: they are files."""
        if isinstance(outcome, ClientError):
            return cls(path, error={"code": outcome.status, "type": outcome.type, "message": outcome.message})
        return cls(path, replace(outcome, crops=False))

    @classmethod
    def parse(cls, line: bytes) -> Result:
        """From a line of a file.

        Raises:
            BadAnswer: it is none.
        """
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"the line is no JSON: {error}") from error
        if not isinstance(value, dict) or not isinstance(value.get("path"), str) or len(value) != 2:
            raise BadAnswer('expected {"path", "answer"} or {"path", "error"}')
        if "answer" in value:
            return cls(value["path"], Answer.parse(value["answer"]))
        told = value.get("error")
        if not isinstance(told, dict) or {name: type(told[name]) for name in told} not in _ERRORS:
            raise BadAnswer('expected an error of "code", a number or null, and the texts "type" and "message"')
        return cls(value["path"], error=told)

    @property
    def final(self) -> bool:
        """Whether asking again would say the same."""
        return self.error is None or self.error["type"] in _FINAL

    def line(self) -> bytes:
        """One line, its end included."""
        told = {"error": self.error} if self.answer is None else {"answer": self.answer.to_json()}
        return json.dumps({"path": self.path, **told}, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


@dataclass
class Results:
    """A file of results that is being added to; a context manager.

    Args:
        path: of the file; what an earlier run left there is kept, but for what can be asked again.
        keep: which of the rest is kept; all of it where None.

    Attributes:
        kept: path to result, of what is there already.

    Raises:
        UsageError: the file holds something else, or cannot be written.
    """

    path: Path
    keep: Callable[[Result], bool] | None = None
    kept: dict[str, Result] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _file: IO[bytes] | None = None

    def __enter__(self) -> Results:
        if self.path.exists() and not self.path.is_file():
            raise UsageError(
                f"{self.path} is no regular file: results go on in one; without --output they go to stdout"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            lines = _lines(self.path.read_bytes())
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read and written: {error.strerror or error}") from error
        try:
            self._keep(lines)
            if list(map(Result.line, self.kept.values())) != lines:
                self._replace([result.line() for result in self.kept.values()])
        except BaseException:
            self.__exit__()
            raise
        self._order = list(self.kept)
        return self

    def _keep(self, lines: Sequence[bytes]) -> None:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n") and line[: len(_BEGIN)] == _BEGIN[: len(line)]:
                # The last one, cut when a run was killed. Any other text is not this command's to remove.
                return
            try:
                result = Result.parse(line)
            except BadAnswer as error:
                raise UsageError(
                    f"{self.path}, line {number}: {error.message}; it is no file of results: choose another"
                ) from error
            if result.final and result.path not in self.kept and (self.keep is None or self.keep(result)):
                self.kept[result.path] = result

    def add(self, result: Result) -> None:
        """One more, on the disk before this returns, as far as this process can see to it."""
        assert self._file is not None
        with naming(self.path):
            self._file.write(result.line())
            self._file.flush()
        self._order.append(result.path)

    def arrange(self, paths: Sequence[str]) -> None:
        """Put the lines into this order; those of other images stay before them."""
        wanted = {path: index for index, path in enumerate(paths)}
        order = sorted(self._order, key=lambda path: wanted.get(path, -1))
        if order != self._order:
            # A last one without its end was being written when the disk was full.
            whole_ones = [line for line in _lines(self.path.read_bytes()) if line.endswith(b"\n")]
            lines = {json.loads(line)["path"]: line for line in whole_ones}
            self._replace([lines[path] for path in order])
            self._order = order

    def _open(self) -> None:
        self._file = self.path.open("ab")
        try:
            # Two runs would ask for every image twice. The lock ends with the process.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            self._file = None
            raise UsageError(f"{self.path} is being written by another run: wait for it, or choose another") from error

        if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
            # Another run put a new file in its place between the opening and the lock.
            self._file.close()
            self._open()

    def _replace(self, lines: Sequence[bytes]) -> None:
        before = self._file
        # Where the path is a link, its file is the one to be replaced.
        with whole(Path(os.path.realpath(self.path))) as draft:
            draft.writelines(lines)
        # The old file's lock is kept until the new one is locked: no other run comes between them unseen.
        try:
            self._open()
        finally:
            if before is not None:
                with naming(self.path):
                    before.close()

    def __exit__(self, *reason: object) -> None:
        if self._file is not None:
            with naming(self.path):
                self._file.close()


def _lines(data: bytes) -> list[bytes]:
    """At line feeds alone, which are kept; splitlines() would also split at others that a file may hold."""
    return re.findall(rb"[^\n]*\n|[^\n]+$", data)
