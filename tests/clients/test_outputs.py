"""The pictures and crops of a run."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from clients.errors import InvalidImage, UsageError
from clients.outputs import Files, Written, names_of
from clients.results import Result
from clients.sources import Source
from tests.clients.test_draw import answer

CROP = b"\xff\xd8\xff crop"


def test_a_table_is_no_file_to_go_on_with() -> None:
    with pytest.raises(UsageError, match="--format table is for stdout"):
        Written(Path("faces.jsonl"), table=True)


def test_files_lie_as_the_images_do_under_the_folder_that_holds_them_all() -> None:
    assert names_of(["p/a.jpg", "p/q/a.jpg", "r/a.jpg"]) == {
        "p/a.jpg": Path("p/a.jpg"),
        "p/q/a.jpg": Path("p/q/a.jpg"),
        "r/a.jpg": Path("r/a.jpg"),
    }
    assert names_of(["/x/p/a.jpg", "/x/p/q/b.jpg"]) == {"/x/p/a.jpg": Path("a.jpg"), "/x/p/q/b.jpg": Path("q/b.jpg")}
    assert names_of(["../a.jpg", "b.jpg"])["../a.jpg"] == Path("a.jpg"), "never out of the folder"
    assert names_of(["-"]) == {"-": Path("stdin")}
    assert names_of([]) == {}


def test_pictures_keep_their_names_where_the_format_is_kept() -> None:
    names = ["a.jpg", "b.JPEG", "c.png", "d.gif", "e.webp", "f"]
    files = Files(Written(pictures=Path("out")), names_of(names))
    expected = ["a.jpg", "b.JPEG", "c.png", "d.gif.png", "e.webp.png", "f.png"]
    assert [str(files.picture(name)) for name in names] == [f"out/{name}" for name in expected]


def test_two_pictures_of_one_name_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match=r"out/a\.gif\.png: rename one"):
        Files(Written(pictures=Path("out")), names_of(["a.gif", "a.gif.png"]))


def test_a_picture_that_changed_fails_and_its_answer_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (100, 80)).save(path)
    source, found = Source(str(path)), answer(100, 80, (1, 2, 30, 40))
    files = Files(Written(pictures=tmp_path / "out"), names_of([str(path)]))
    assert files.complete(source, Result.of(str(path), found))
    assert (tmp_path / "out" / "a.png").is_file()
    (tmp_path / "out" / "a.png").unlink()
    Image.new("RGB", (80, 100)).save(path)
    assert not files.complete(source, Result.of(str(path), found))
    assert "it changed since it was sent" in capsys.readouterr().err
    assert isinstance(files.write(source, found), UsageError)
    path.unlink()
    assert "cannot be read" in str(files.write(source, found))
    assert not (tmp_path / "out" / "a.png").exists()


def stored(path: Path, size: tuple[int, int] = (100, 80), kind: str | None = None) -> Source:
    Image.new("RGB", size).save(path, kind)
    return Source(str(path))


def test_a_folder_for_both_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    for pictures, crops in (("out", "out"), ("out", "a/../out"), ("out", "link")):
        with pytest.raises(UsageError, match=r"--pictures and --crops are both .*out"):
            Written(pictures=tmp_path / pictures, crops=tmp_path / crops)
    Written(pictures=tmp_path / "out", crops=tmp_path / "out" / "crops")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"-")
    for given in (file, file / "below"):
        with pytest.raises(UsageError, match=rf"--pictures {given}: {file} is no folder; choose another"):
            Written(pictures=given)
        with pytest.raises(UsageError, match=rf"--crops {given}: {file} is no folder; choose another"):
            Written(crops=given)
    (tmp_path / "gone").symlink_to("nothing")
    with pytest.raises(UsageError, match="is no folder"):
        Written(crops=tmp_path / "gone")
    assert file.read_bytes() == b"-"


def test_no_image_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mogface detect a.jpg --pictures .``"""
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "a.jpg")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.jpg").symlink_to(tmp_path / "a.jpg")
    for images, folder in ((["a.jpg"], "."), (["out/b.jpg"], "out"), ([str(tmp_path / "a.jpg")], "out/..")):
        with pytest.raises(UsageError, match="--pictures would write over the image"):
            Files(Written(pictures=Path(folder)), names_of(images))
    Files(Written(pictures=Path("out")), names_of(["a.jpg"]))


@pytest.mark.parametrize("length", [240, 255])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, length: int) -> None:
    source = stored(tmp_path / ("a" * (length - 4) + ".jpg"))
    found = answer(100, 80, (1, 2, 30, 40))
    found = replace(found, faces=(replace(found.faces[0], crop=CROP),))
    files = Files(Written(pictures=tmp_path / "out", crops=tmp_path / "cut"), names_of([source.path]))
    assert files.write(source, found) is found
    assert files.picture(source.path).is_file()
    assert (files.crops(source.path) / "0000.jpg").read_bytes() == CROP


def test_a_name_that_would_be_too_long_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture of a GIF becomes a PNG: four bytes more."""
    name = "a" * 251 + ".gif"
    source = stored(tmp_path / name)
    files = Files(Written(pictures=tmp_path / "out"), names_of([source.path]))
    found = answer(100, 80)
    error = files.write(source, found)
    assert isinstance(error, UsageError)
    assert error.message == f"{tmp_path}/out/{name}.png cannot be written: File name too long"
    assert list((tmp_path / "out").iterdir()) == []
    assert not files.complete(source, Result.of(source.path, found))
    assert f"{name}.png cannot be written: File name too long" in capsys.readouterr().err


def test_what_is_in_the_way_of_one_image_fails_it_alone(tmp_path: Path) -> None:
    source = stored(tmp_path / "a.jpg")
    found = answer(100, 80, (1, 2, 30, 40))
    found = replace(found, faces=(replace(found.faces[0], crop=CROP),))
    files = Files(Written(pictures=tmp_path / "out", crops=tmp_path / "cut"), names_of([source.path]))
    (tmp_path / "out" / "a.jpg").mkdir(parents=True)
    assert "out/a.jpg cannot be written: Is a directory" in str(files.write(source, found))
    (tmp_path / "out" / "a.jpg").rmdir()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.jpg").write_bytes(b"-")
    assert "cut/a.jpg/0000.jpg cannot be written" in str(files.write(source, found))


def test_a_picture_that_no_jpeg_holds_fails_alone(tmp_path: Path) -> None:
    source = stored(tmp_path / "wide.jpg", (66_000, 8), "PNG")
    files = Files(Written(pictures=tmp_path / "out"), names_of([source.path]))
    error = files.write(source, answer(66_000, 8))
    assert isinstance(error, UsageError)
    assert error.message.startswith("66000x8 px cannot be written as JPEG, which has 65500 at most")
    assert not (tmp_path / "out").exists()
    wide = stored(tmp_path / "wide.png", (66_000, 8))
    files = Files(Written(pictures=tmp_path / "out"), names_of([wide.path]))
    assert not isinstance(files.write(wide, answer(66_000, 8)), UsageError)


def test_a_full_disk_ends_the_run_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of the full disk: the kernel's own error, which has no file name."""
    source = stored(tmp_path / "a.jpg")
    files = Files(Written(pictures=tmp_path / "out"), names_of([source.path]))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*out/a\.jpg'"):
        files.write(source, answer(100, 80))
    assert list((tmp_path / "out").iterdir()) == []


def test_crops_that_this_run_has_no_longer_go(tmp_path: Path) -> None:
    source, other = Source(str(tmp_path / "a.jpg")), Source(str(tmp_path / "b.jpg"))
    box = (1, 2, 30, 40)
    found = answer(100, 80, box, box, box)
    three = replace(found, faces=tuple(replace(face, crop=CROP + b"%d" % n) for n, face in enumerate(found.faces)))
    files = Files(Written(crops=tmp_path / "cut"), names_of([source.path, other.path]))
    folder = tmp_path / "cut" / "a.jpg"
    files.write(source, three)
    files.write(other, three)
    (folder / "notes.txt").write_text("mine")
    assert sorted(path.name for path in folder.iterdir()) == ["0000.jpg", "0001.jpg", "0002.jpg", "notes.txt"]
    # The first of two faces has no landmarks, so no crop.
    two = replace(three, faces=(replace(three.faces[0], crop=None), replace(three.faces[1], crop=b"new")))
    files.write(source, two)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"0001.jpg": b"new", "notes.txt": b"mine"}
    files.write(source, replace(found, faces=()))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert len(list((tmp_path / "cut" / "b.jpg").iterdir())) == 3, "another image's stay"
    # Of an image that failed nothing is known.
    files.write(source, two)
    files.write(source, InvalidImage("-"))
    assert (folder / "0001.jpg").exists()
