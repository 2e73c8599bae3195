"""Results of images that were answered before.

The same bytes under the same options by the same archive give the same faces, so they are looked for under the hash of
all three, and found before a byte is decoded. What is kept is the faces: no picture, and no error, which may pass.
Answers that show the picture (crops, an annotated one) need it decoded, and go past the cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections import OrderedDict

from handler.detectors import Result
from handler.options import Options

#: Bytes that a result without faces takes with its key and its place, on a 64-bit Python 3.11, rounded up; and that a
#: face adds: box, score and landmarks. tests/handler/test_cache.py measures both.
ENTRY_BYTES, FACE_BYTES = 1600, 60


class Cache:
    """The least recently used results go where a new one has no room. For any number of threads.

    Args:
        capacity: bytes; 0 keeps nothing, and no image has a key.
        archive: the hash of what computes the results.
    """

    def __init__(self, capacity: int, archive: bytes = b"") -> None:
        self._capacity = capacity
        self._archive = archive
        self._lock = threading.Lock()
        self._results: OrderedDict[bytes, Result] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of what is kept, as :func:`size` counts it."""
        return self._held

    def key(self, data: bytes | bytearray, options: Options) -> bytes | None:
        """Under which the result of an image is kept, [32] bytes; None where it is not.

        By a cryptographic hash: nobody can make an image that gets another one's answer.
        """
        if not self._capacity or options.crops or options.output == "image":
            return None
        # Both shapes of an answer are written from one result.
        asked = options if options.output == "json" else dataclasses.replace(options, output="json")
        digest = hashlib.sha256(self._archive)
        digest.update(f"{asked}\n".encode())
        digest.update(data)
        return digest.digest()

    def find(self, key: bytes) -> Result | None:
        """What is kept under it, which then is the last to go."""
        with self._lock:
            result = self._results.get(key)
            if result is not None:
                self._results.move_to_end(key)
            return result

    def keep(self, key: bytes, result: Result) -> int:
        """Keep what a later answer takes of a result, unless it is larger than the whole cache.

        Returns:
            How many others had to go.
        """
        result = again(result)
        if size(result) > self._capacity:
            return 0
        gone = 0
        with self._lock:
            former = self._results.pop(key, None)
            self._held += size(result) - (size(former) if former else 0)
            self._results[key] = result
            while self._held > self._capacity:
                _, oldest = self._results.popitem(last=False)
                self._held -= size(oldest)
                gone += 1
        return gone


def again(result: Result) -> Result:
    """A result as an answer tells it that nothing was run for: all its times are 0."""
    return dataclasses.replace(result, timing_ms=dict.fromkeys(result.timing_ms, 0.0), levels=(), runs=())


def size(result: Result) -> int:
    """Bytes that it takes in the cache."""
    return ENTRY_BYTES + FACE_BYTES * len(result.detections)
