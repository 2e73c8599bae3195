from __future__ import annotations

import dataclasses
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from handler.cache import ENTRY_BYTES, FACE_BYTES, Cache, size
from handler.detections import Detections, no_landmarks
from handler.detectors import Result
from handler.detectors.base import Run
from handler.geometry import Canvas, place
from handler.options import NAMES, Options

OPTIONS = Options(score_threshold=0.5, nms_threshold=0.3)
DATA = b"the bytes of a picture"
#: Another value of each option.
OTHERS: dict[str, Any] = {
    "score_threshold": 0.51,
    "nms_threshold": 0.31,
    "max_faces": 3,
    "order": "size",
    "min_face_size": 9,
    "canvas": "64x64",
    "landmarks": True,
}


def result(faces: int = 1) -> Result:
    boxes = np.tile(np.array([1, 2, 30, 40], np.float32), (faces, 1))
    found = Detections(boxes, np.full(faces, 0.5, np.float32), no_landmarks(faces), 60, 90)
    timing = {"preprocess": 1.5, "network": 40.0, "postprocess": 0.5, "landmarks": 3.0}
    return Result(found, place(60, 90, Canvas(64, 96)), timing, (4, 8), (Run(1, {"network": 0.04}),))


def of(results: int, faces: int = 1) -> Cache:
    """With room for so many."""
    return Cache(results * (ENTRY_BYTES + faces * FACE_BYTES))


def test_what_is_kept_is_found_without_its_times() -> None:
    cache, given = of(1), result()
    assert cache.find(b"k") is None
    assert cache.keep(b"k", given) == 0
    found = cache.find(b"k")
    assert found is not None
    assert found.detections is given.detections
    assert found.placement == given.placement
    assert found.timing_ms == {"preprocess": 0, "network": 0, "postprocess": 0, "landmarks": 0}
    assert (found.levels, found.runs) == ((), ())


def test_every_option_is_known_here() -> None:
    assert {*OTHERS, "crops", "output"} == set(NAMES)


@pytest.mark.parametrize("name", OTHERS)
def test_another_option_is_another_key(name: str) -> None:
    cache = of(1)
    assert cache.key(DATA, OPTIONS) == cache.key(bytearray(DATA), dataclasses.replace(OPTIONS)) is not None
    assert cache.key(DATA, dataclasses.replace(OPTIONS, **{name: OTHERS[name]})) != cache.key(DATA, OPTIONS)


def test_another_image_or_archive_is_another_key() -> None:
    size = ENTRY_BYTES * 2
    keys = [Cache(size, archive).key(data, OPTIONS) for archive in (b"a", b"b") for data in (DATA, DATA + b"\0", b"")]
    assert len(set(keys)) == 6
    assert {len(key) for key in keys if key} == {32}


def test_both_shapes_of_an_answer_share_a_key() -> None:
    cache = of(1)
    assert cache.key(DATA, dataclasses.replace(OPTIONS, output="modelscope")) == cache.key(DATA, OPTIONS)


@pytest.mark.parametrize("shown", [{"crops": True}, {"output": "image"}])
def test_what_shows_the_picture_has_no_key(shown: dict[str, Any]) -> None:
    assert of(1).key(DATA, dataclasses.replace(OPTIONS, **shown)) is None


def test_no_capacity_no_key() -> None:
    assert Cache(0).key(DATA, OPTIONS) is None


def test_the_least_recently_used_goes() -> None:
    cache = of(3)
    for key in (b"a", b"b", b"c"):
        assert cache.keep(key, result()) == 0
    assert cache.find(b"a") is not None
    assert cache.keep(b"d", result()) == 1
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.find(key)] == [b"a", b"c", b"d"]


def test_one_large_result_takes_the_place_of_several() -> None:
    cache = of(4)
    for key in (b"a", b"b", b"c", b"d"):
        cache.keep(key, result())
    faces = (ENTRY_BYTES + 2 * FACE_BYTES) // FACE_BYTES
    assert cache.keep(b"large", result(faces)) == 2
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.find(key)] == [b"c", b"d"]


def test_a_result_that_never_fits_pushes_none_out() -> None:
    cache = of(2)
    cache.keep(b"a", result())
    assert cache.keep(b"huge", result(200)) == 0
    assert cache.find(b"huge") is None
    assert cache.find(b"a") is not None


def test_the_same_key_is_held_once() -> None:
    cache = of(10)
    for faces in (1, 5, 2):
        cache.keep(b"a", result(faces))
    assert cache.held == size(result(2))


def test_sizes_are_what_python_takes() -> None:
    """A bound on bytes is none if an entry takes more than it is counted as; and wastes memory if far less."""
    for faces in (0, 1, 20):
        count = 500
        cache = of(count, faces)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            # All that an entry keeps alive is new, as it is when it comes out of a request.
            cache.keep(number.to_bytes(32, "big"), result(faces))
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert cache.held == count * (ENTRY_BYTES + faces * FACE_BYTES)
        assert 0.75 * cache.held < taken <= cache.held, f"{taken / count:.0f} bytes an entry of {faces} faces"


def test_many_threads() -> None:
    cache, failed = of(8), []

    def work(seed: int) -> None:
        try:
            for number in range(800):
                key = bytes([(number * seed) % 20])
                found = cache.find(key)
                assert found is None or len(found.detections) == key[0]
                cache.keep(key, result(key[0]))
        except BaseException as error:  # noqa: BLE001 - told below, by the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    kept = [found for key in range(20) if (found := cache.find(bytes([key])))]
    assert cache.held == sum(map(size, kept)) > 0
    assert cache.held <= 8 * (ENTRY_BYTES + FACE_BYTES)
