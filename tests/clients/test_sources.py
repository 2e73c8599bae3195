"""Which images a command line names."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from clients.errors import UsageError
from clients.sources import Source, sources


def paths(*words: str, stdin: bytes = b"", apart: tuple[Path, ...] = ()) -> list[str]:
    return [source.path for source in sources(words, io.BytesIO(stdin), apart)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.jpg", "a.PNG", "c/d.jpeg", "c/e.webp", "c/a/f.gif", "g.bmp", "notes.txt", "h.tiff", ".hidden.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"-")
    return tmp_path


def test_a_folder_by_name_with_those_below_it(tree: Path) -> None:
    expected = [".hidden.jpg", "a.PNG", "b.jpg", "c/a/f.gif", "c/d.jpeg", "c/e.webp", "g.bmp", "h.tiff"]
    assert paths(str(tree)) == [str(tree / name) for name in expected]


def test_a_folder_without_a_picture_is_said(tree: Path) -> None:
    (tree / "empty" / "below").mkdir(parents=True)
    (tree / "empty" / "below" / "notes.txt").write_bytes(b"-")
    with pytest.raises(UsageError, match="empty holds no picture"):
        paths(str(tree / "empty"))


def test_a_named_file_whatever_it_is_called(tree: Path) -> None:
    assert paths(str(tree / "h.tiff"), str(tree / "notes.txt")) == [str(tree / "h.tiff"), str(tree / "notes.txt")]


def test_patterns(tree: Path) -> None:
    assert paths(f"{tree}/**/*.jp*g") == [str(tree / "b.jpg"), str(tree / "c" / "d.jpeg")]
    # As from a shell: what fits is named, and a folder that fits is searched.
    assert paths(f"{tree}/[ch]*") == [str(tree / name) for name in ("c/a/f.gif", "c/d.jpeg", "c/e.webp", "h.tiff")]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tree: Path) -> None:
    (tree / "[1].jpg").write_bytes(b"-")
    (tree / "1.jpg").write_bytes(b"-")
    assert paths(f"{tree}/[1].jpg") == [f"{tree}/[1].jpg"]


def test_no_image_twice(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert paths("b.jpg", "./b.jpg", "c/../b.jpg", str(tree / "b.jpg"), "b.*") == ["b.jpg"]
    assert paths("b.jpg", ".")[0] == "b.jpg"
    assert paths("b.jpg", ".").count("b.jpg") == 1
    assert paths("c/") == paths("c") == ["c/a/f.gif", "c/d.jpeg", "c/e.webp"]


def test_the_standard_input_is_read_once() -> None:
    first, *rest = sources(["-", "-"], io.BytesIO(b"picture"))
    assert (first, rest) == (Source("-", b"picture"), [])
    assert first.read() == first.image == b"picture"


@pytest.mark.parametrize("word", ["missing.jpg", "nobody/*.jpg", ""])
def test_words_that_name_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="names no file, no folder and no pattern"):
        paths(word)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names alone")
def test_names_with_line_ends_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    names = [b"line\nend.jpg", b"\xff\xfe.jpg", "grün.jpg".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    found = sources([str(tmp_path)], io.BytesIO())
    assert [os.fsencode(Path(source.path).name) for source in found] == sorted(names)
    assert [source.read() for source in found] == sorted(names)


def test_links_to_folders_are_followed_and_never_round_and_round(tree: Path) -> None:
    other = tree / "z"
    other.mkdir()
    (other / "loop").symlink_to(tree)
    (other / "self").symlink_to("self")
    (other / "self.jpg").symlink_to("self.jpg")
    (other / "again").symlink_to(tree / "c" / "a")
    found = sources([str(tree)], io.BytesIO())
    names = [os.path.relpath(source.path, tree) for source in found]
    assert names.count("z/again/f.gif") == 1
    assert not [name for name in names if name.startswith("z/loop")]
    [broken] = [source for source in found if source.path.endswith("self.jpg")]
    assert broken.error is not None
    assert "cannot be read" in broken.error.message


def test_what_is_found_and_no_file_is_told_of_instead_of_waited_for(tree: Path) -> None:
    os.mkfifo(tree / "pipe.jpg")
    (tree / "gone.jpg").symlink_to(tree / "nothing")
    errors = {Path(source.path).name: source.error for source in sources([str(tree)], io.BytesIO()) if source.error}
    assert set(errors) == {"pipe.jpg", "gone.jpg"}
    assert "is no regular file" in str(errors["pipe.jpg"])
    assert "No such file" in str(errors["gone.jpg"])


def test_a_folder_that_cannot_be_read_is_told_of(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def fake_scandir(folder: os.PathLike[str]) -> os.DirEntry[str]:
        """Fake: root, who runs tests in containers, may read every folder."""
        if os.fspath(folder).endswith("/c"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)  # type: ignore[return-value]

    monkeypatch.setattr(os, "scandir", fake_scandir)
    [refused] = [source for source in sources([str(tree)], io.BytesIO()) if source.error]
    assert (refused.path, str(refused.error)) == (
        str(tree / "c"),
        f"folder {tree / 'c'} cannot be read: Permission denied",
    )


def test_a_file_that_is_gone_when_it_is_its_turn(tree: Path) -> None:
    [source] = sources([str(tree / "b.jpg")], io.BytesIO())
    (tree / "b.jpg").unlink()
    with pytest.raises(UsageError, match=r"b\.jpg cannot be read: No such file"):
        source.read()


def test_what_is_written_is_not_found_by_the_next_run(tree: Path) -> None:
    for folder in (tree / "out", tree / "c" / "a" / "out", tree):
        with pytest.raises(UsageError, match=r"lies inside .* choose a folder elsewhere"):
            paths(str(tree), apart=(folder,))
    assert paths(str(tree / "c"), apart=(tree / "out",))
