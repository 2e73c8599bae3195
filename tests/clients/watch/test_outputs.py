"""What a run leaves on the disk."""

from __future__ import annotations

import io
import json
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from clients import Answer, Face, Model, QueueFull
from clients.errors import ClientError
from clients.watch.follow import Seen
from clients.watch.frame import Frame
from clients.watch.outputs import Crops, Lines, Videos, blurred
from tests.films import SIZE, scenes


def seen(index: int, folder: Path, faces: Sequence[Face] = (), error: ClientError | None = None, side: int = 0) -> Seen:
    """A frame of noise and its outcome."""
    path = folder / f"{index}.png"
    width, height = SIZE[0] + side, SIZE[1]
    noise = np.random.default_rng(index).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(path)
    model = Model("centerface", "1.0", "w", "ort", "fp32")
    answer = Answer(model, width, height, "480x640", 1.0, tuple(faces), {}, 1, crops=True)
    return Seen("door", Frame(index, index / 10, time.monotonic(), path), error or answer, 0.25)


def test_a_line_a_frame(tmp_path: Path) -> None:
    out = io.BytesIO()
    lines = Lines(out)
    lines.write(seen(3, tmp_path, [Face((1, 2, 3, 4), 0.5)]))
    lines.write(seen(4, tmp_path, error=QueueFull("full")))
    lines.close()
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["source"], first["frame"], first["seconds"], first["lag_ms"]) == ("door", 3, 0.3, 250)
    assert abs(first["at"] - time.time()) < 5
    assert first["answer"]["faces"] == [{"box": [1, 2, 3, 4], "score": 0.5, "landmarks": None}]
    assert second["error"] == {"code": 503, "type": "queue_full", "message": "full"}
    assert "answer" not in second


def test_videos_have_the_frames_that_were_answered_at_their_times(tmp_path: Path) -> None:
    videos = Videos(tmp_path / "videos", {"door": "door"})
    for index in (0, 1, 5):
        videos.write(seen(index, tmp_path))
    videos.write(seen(6, tmp_path, error=QueueFull("full")))
    videos.write(seen(7, tmp_path, side=20))
    assert [path.name for path in (tmp_path / "videos").glob("*.mp4") if path.name[0] != "."] == ["door.mp4"]
    videos.close()
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["door.2.mp4", "door.mp4"]
    with av.open(str(tmp_path / "videos" / "door.mp4")) as container:
        frames = list(container.decode(video=0))
    assert np.allclose([frame.time for frame in frames], [0, 0.1, 0.5], atol=1e-3)
    assert [(frame.width, frame.height) for frame in frames] == [SIZE] * 3


def test_a_further_file_takes_no_other_sources_place(tmp_path: Path) -> None:
    videos = Videos(tmp_path / "videos", {"door": "door", "other door": "door.2"})
    videos.write(replace(seen(0, tmp_path), source="other door"))
    for index, side in enumerate((0, 20, 20, 40)):
        videos.write(seen(index, tmp_path, side=side))
    videos.close()
    widths = {}
    for path in (tmp_path / "videos").iterdir():
        with av.open(str(path)) as container:
            widths[path.name] = [frame.width for frame in container.decode(video=0)]
    width = SIZE[0]
    assert widths == {
        "door.mp4": [width],
        "door.2.mp4": [width],
        "door.3.mp4": [width + 20] * 2,
        "door.4.mp4": [width + 40],
    }


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file grows over 300 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_video_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path, full_disk: None) -> None:
    pictures, folder = tmp_path, tmp_path / "videos"
    with pytest.raises(OSError, match=r"door\.mp4"):
        fill(Videos(folder, {"door": "door"}), pictures)
    # Of another source what could be written is whole all the same.
    videos = Videos(folder, {"door": "door", "quiet": "quiet"})
    videos.write(replace(seen(0, pictures), source="quiet"))
    with pytest.raises(OSError, match=r"door\.mp4"):
        fill(videos, pictures)
    assert [path.name for path in folder.iterdir()] == ["quiet.mp4"]
    with av.open(str(folder / "quiet.mp4")) as container:
        assert len(list(container.decode(video=0))) == 1


def fill(videos: Videos, pictures: Path) -> None:
    """Frames until there is no room, then the end, as a run has them."""
    try:
        for index in range(40):
            videos.write(seen(index, pictures))
    finally:
        videos.close()


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (33, 17)])
def test_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    raw = av.VideoFrame.from_ndarray(np.zeros((size[1], size[0], 3), np.uint8), format="rgb24")
    videos = Videos(tmp_path, {"door": "door"})
    answer = Answer(Model("", "", "", "", ""), *size, "", 1.0, (), {}, 1)
    videos.write(Seen("door", Frame(0, 0.0, 0.0, raw), answer, 0.0))
    videos.close()
    with av.open(str(tmp_path / "door.mp4")) as container:
        [frame] = container.decode(video=0)
    assert (frame.width, frame.height) == (size[0] + 1, size[1] + 1)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    path = Path("/dev/full")
    lines = Lines(path.open("ab"), path)
    with pytest.raises(OSError, match="/dev/full"):
        lines.write(seen(0, tmp_path))
    with pytest.raises(OSError, match="standard output"), path.open("ab", buffering=0) as file:
        Lines(file).write(seen(0, tmp_path))
    with pytest.raises(OSError, match="/dev/full"):
        lines.close()


def test_crops_by_source_frame_and_face(tmp_path: Path) -> None:
    Crops(tmp_path / "crops", {"door": "door"}).write(
        seen(3, tmp_path, [Face((1, 2, 3, 4), 0.5, crop=b"jpeg"), Face((0, 0, 1, 1), 0.4)])
    )
    assert [path.relative_to(tmp_path).as_posix() for path in (tmp_path / "crops").rglob("*.jpg")] == [
        "crops/door/00000003-000.jpg"
    ]


def test_a_blurred_face_is_gone_and_the_rest_as_it_was() -> None:
    [(scene, box)] = scenes(1)
    picture = Image.fromarray(scene)
    answer = Answer(Model("", "", "", "", ""), *SIZE, "", 1.0, (Face(box, 0.9),), {}, 1)
    hidden = np.asarray(blurred(picture, answer), int)
    x1, y1, x2, y2 = map(int, box)
    face, before = hidden[y1:y2, x1:x2], scene[y1:y2, x1:x2].astype(int)
    # No edges are left: neighbouring pixels are nearly alike.
    assert np.abs(np.diff(face, axis=1)).mean() < 0.35 * np.abs(np.diff(before, axis=1)).mean()
    far = np.ones(scene.shape[:2], bool)
    far[max(0, y1 - 40) : y2 + 40, max(0, x1 - 40) : x2 + 40] = False
    assert (hidden[far] == scene[far]).all()
    # A face at the edge of the picture, and one without extent.
    for odd in ((-0.0, 0.0, 5.0, 5.0), (318.0, 238.0, 320.0, 240.0), (9.0, 9.0, 9.0, 9.0)):
        blurred(picture, Answer(Model("", "", "", "", ""), *SIZE, "", 1.0, (Face(odd, 0.9),), {}, 1))
