"""A source's frames, decoded in a thread of its own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av

from clients.errors import ClientError, UsageError
from clients.watch.frame import Frame, Picker
from clients.watch.slot import Slot
from clients.watch.sources import Kind, Source, frames_of
from clients.watch.tally import Tally

#: Without a word from a stream for so long, s, it is opened again. A camera's driver cannot be waited for less.
SILENT_S = 10.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
#: Over TCP, as lost packets would damage frames; no buffering in front of the decoder.
_RTSP = {"rtsp_transport": "tcp", "fflags": "nobuffer", "flags": "low_delay"}
#: Frames of a source that tells no times, a second.
_RATE = 25.0
#: A clock that may be set anew, and jumps by more, s, has been.
_JUMP_S = 10.0
#: FFmpeg's mark of formats whose clock may be set anew, as transport streams': AVFMT_TS_DISCONT of its avformat.h.
_DISCONTINUOUS = 0x0200
_MESSAGE = 200


@dataclass(frozen=True)
class Reading:
    """What of each source is read.

    Attributes:
        every: of so many frames the first is asked for.
        fps: at most so many are, a second of the source's clock; None for all.
        until_s: of its clock, where it ends; None for its end.
        rate: frames a second of folders.
    """

    every: int = 1
    fps: float | None = None
    until_s: float | None = None
    rate: float = _RATE

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every is {self.every}: expected 1 or more frames")
        for name in ("fps", "until_s", "rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name} is {value}: expected a number over 0")


class Reader:
    """Decodes a source into its slot until it ends; cameras and streams are opened again, with back-off.

    Args:
        source: that is read.
        slot: for the frames that are asked for; closed at the end.
        tally: of the source.
        reading: what is asked for.
    """

    def __init__(self, source: Source, slot: Slot, tally: Tally, reading: Reading) -> None:
        # A daemon: a stream that says nothing holds its thread for SILENT_S, a camera for ever.
        self._thread = threading.Thread(target=self._run, name=f"watch {source.name}", daemon=True)
        self._source = source
        self._slot = slot
        self._tally = tally
        self._reading = reading
        self._picker = Picker(reading.every, reading.fps)
        self._stopped = threading.Event()
        self._started = 0.0
        self._index = 0
        self._last = float("-inf")

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()
        self._slot.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait = _FIRST_WAIT_S
        try:
            while not self._stopped.is_set():
                before = self._index
                try:
                    whole = self._read()
                    if whole and not self._index:
                        raise UsageError("no frame of it could be decoded")
                except Exception as error:  # noqa: BLE001 - decoders of damaged streams raise nearly anything
                    whole, self._tally.error = True, _told(error, self._source)
                if not (whole and self._source.lasting) or self._stopped.is_set():
                    break
                # Many cameras that went away together do not come back together.
                wait = _FIRST_WAIT_S if self._index > before else min(2 * wait, _LONGEST_WAIT_S)
                self._tally.state = "away"
                self._stopped.wait(wait * random.uniform(0.5, 1))
        finally:
            self._tally.state = "failed" if self._tally.error else "ended"
            self._slot.close()

    def _read(self) -> bool:
        """Open the source once and read it.

        Returns:
            Whether it ended by itself; else no more of it is wanted.
        """
        clock = _Clock(self._source.lasting)
        for told, raw in self._frames(clock):
            if self._stopped.is_set():
                return False
            arrived = time.monotonic()
            if not self._index:
                self._started = arrived
            # Of one that is opened again the clock went on meanwhile; what it sent in a burst is ahead of it.
            begin = max(arrived - self._started, self._last + 1 / _RATE)
            at = max(clock.read(told, begin), self._last + 1e-6)
            if self._reading.until_s is not None and at >= self._reading.until_s:
                return False
            if self._source.live and not self._source.lasting:
                # A file that plays as a camera does.
                self._stopped.wait(self._started + at - arrived)
                arrived = time.monotonic()
            frame = Frame(self._index, at, arrived, raw)
            self._index, self._last = self._index + 1, at
            self._tally.count(read=1)
            self._tally.state, self._tally.error = "playing", None
            if self._picker.wants(frame.index, at):
                self._tally.count(asked=1)
                if not self._slot.put(frame):
                    return False
                self._tally.dropped = self._slot.dropped
        return True

    def _frames(self, clock: _Clock) -> Iterator[tuple[float | None, av.VideoFrame | Path]]:
        """Frames with the times they tell, s."""
        if self._source.kind is Kind.FOLDER:
            self._tally.count(opened=1)
            for index, path in enumerate(frames_of(Path(self._source.address))):
                yield index / self._reading.rate, path
            return
        container = av.open(
            self._source.address,
            format="v4l2" if self._source.kind is Kind.CAMERA else None,
            options=_RTSP if self._source.address.startswith("rtsp") else {},
            timeout=SILENT_S if self._source.kind is Kind.STREAM else None,
        )
        with container:
            self._tally.count(opened=1)
            if not container.streams.video:
                raise UsageError("it has no video")
            stream = container.streams.video[0]
            clock.step = 1 / float(stream.guessed_rate or _RATE)
            clock.resets |= bool(container.format.flags & _DISCONTINUOUS)
            # Of one picture too, where it is cut into slices; by the frame several pictures would wait.
            stream.thread_type = "SLICE" if self._source.live else "AUTO"
            for packet in container.demux(stream):
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:
                    self._tally.count(damaged=1)
                    continue
                for frame in frames:
                    yield frame.time, frame


class _Clock:
    """A stream's times as seconds since the source's first frame.

    Args:
        resets: whether the stream's clock may be set anew, as a camera's is; elsewhere a gap is a gap.

    Attributes:
        step: between frames whose stream tells no times, s.
    """

    def __init__(self, resets: bool) -> None:
        self.resets = resets
        self.step = 1 / _RATE
        self._next: float | None = None
        self._offset: float | None = None

    def read(self, told: float | None, begin: float) -> float:
        """The time of the next frame, whose stream tells it, or not.

        Args:
            told: by the stream, s.
            begin: the time of the first one, s.
        """
        at = begin if self._next is None else self._next
        if told is not None:
            if self._offset is None or (self.resets and abs(told + self._offset - at) > _JUMP_S):
                self._offset = at - told
            at = told + self._offset
        self._next = at + self.step
        return at


def _told(error: Exception, source: Source) -> str:
    """In a line, without the address, which may hold a password; an OSError's own text quotes it in its way."""
    said = error.strerror if isinstance(error, OSError | av.error.FFmpegError) else None
    text = error.message if isinstance(error, ClientError) else f"{type(error).__name__}: {said or error}"
    return " ".join(text.replace(source.address, source.name).split())[:_MESSAGE]
