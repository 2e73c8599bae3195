"""Files of results: lines, and runs that go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.errors import InvalidImage, QueueFull, ServerFault, TooLarge, UnsupportedImage, UsageError
from clients.results import Result, Results
from tests.clients.test_draw import answer

FOUND = answer(100, 80, (1, 2, 3, 4))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def write(path: Path, *results: Result, rest: bytes = b"") -> None:
    path.write_bytes(b"".join(result.line() for result in results) + rest)


def test_lines_are_read_back_as_they_were() -> None:
    error = InvalidImage("no picture", status=400)
    for result in (Result.of("a.jpg", FOUND), Result.of("b\nc\udcff\u2028.jpg", error)):
        line = result.line()
        assert line.count(b"\n") == 1
        assert Result.parse(line) == result
    assert json.loads(Result.of("a.jpg", FOUND).line()) == {"path": "a.jpg", "answer": FOUND.to_json()}
    told = {"code": 400, "type": "invalid_image", "message": "no picture"}
    assert json.loads(Result.of("a.jpg", error).line()) == {"path": "a.jpg", "error": told}
    assert os.fsencode(Result.of("\udcff", error).path) == b"\xff"


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (InvalidImage("-"), True),
        (TooLarge("-"), True),
        (UnsupportedImage("-"), True),
        (QueueFull("-"), False),
        (ServerFault("-"), False),
        (UsageError("-"), False),
    ],
)
def test_which_errors_are_of_the_image_itself(error: Any, final: bool) -> None:
    assert Result.of("a.jpg", error).final is final


def test_a_new_file_in_the_order_of_the_images(tmp_path: Path) -> None:
    path = tmp_path / "new" / "faces.jsonl"
    with Results(path) as results:
        assert results.kept == {}
        for name in ("b", "a"):
            results.add(Result.of(name, FOUND))
            assert lines(path)[-1]["path"] == name, "on the disk at once"
        results.arrange(["a", "b"])
    assert [line["path"] for line in lines(path)] == ["a", "b"]


def test_what_can_be_asked_again_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "faces.jsonl"
    bad = Result.of("bad", InvalidImage("-", status=400))
    write(path, Result.of("a", FOUND), Result.of("full", QueueFull("-", status=503)), bad, Result.of("c", FOUND))
    with Results(path) as results:
        assert list(results.kept) == ["a", "bad", "c"]
        assert [line["path"] for line in lines(path)] == ["a", "bad", "c"]
        results.add(Result.of("full", FOUND))
        results.arrange(["a", "full", "bad", "c"])
    assert [line["path"] for line in lines(path)] == ["a", "full", "bad", "c"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_cut_last_line_is_mended(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "faces.jsonl"
    write(path, Result.of("a", FOUND), rest=Result.of("b", FOUND).line()[:cut])
    with Results(path) as results:
        assert list(results.kept) == ["a"]
        results.add(Result.of("b", FOUND))
    assert [line["path"] for line in lines(path)] == ["a", "b"]


def test_a_last_line_without_its_end_alone_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "faces.jsonl"
    write(path, rest=Result.of("a", FOUND).line()[:-1])
    with Results(path) as results:
        assert results.kept == {}
    assert path.read_bytes() == b""


def test_one_result_an_image(tmp_path: Path) -> None:
    path = tmp_path / "faces.jsonl"
    write(path, Result.of("a", FOUND), Result.of("b", FOUND), Result.of("a", FOUND))
    with Results(path):
        pass
    assert [line["path"] for line in lines(path)] == ["a", "b"]


def test_results_of_other_images_stay_in_front(tmp_path: Path) -> None:
    path = tmp_path / "faces.jsonl"
    write(path, Result.of("z", FOUND), Result.of("y", FOUND))
    with Results(path) as results:
        results.add(Result.of("a", FOUND))
        results.arrange(["a"])
    assert [line["path"] for line in lines(path)] == ["z", "y", "a"]


def test_what_is_not_to_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "faces.jsonl"
    write(path, Result.of("a", FOUND), Result.of("b", FOUND))
    with Results(path, keep=lambda result: result.path == "b") as results:
        assert list(results.kept) == ["b"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello\nworld\n", "line 1: the line is no JSON.* choose another"),
        (b'{"path": "a"}\n{}\n', "line 1: expected"),
        (b'{"path": "a", "answer": {}}\n\n', "line 1: the answer has no 'model'"),
        (b'{"path": "a", "error": {"code": 1}}\n\n', "line 1: expected an error"),
        (b'{"path": "a", "error": {"code": "1", "type": "a", "message": "b"}}\n\n', "line 1: expected an error"),
        (b'{"path": "a", "error": {"code": 1, "type": [], "message": "b"}}\n\n', "line 1: expected an error"),
        (b"[" * 100_000 + b"\n", "line 1: the line is no JSON"),
    ],
)
def test_a_file_of_something_else_is_not_touched(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words), Results(path):
        pass
    assert path.read_bytes() == content


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "faces.jsonl"
    write(path, Result.of("full", QueueFull("-")), Result.of("a", FOUND))
    with Results(path) as results:
        for name in ("b", "c"):
            with pytest.raises(UsageError, match="is being written by another run"), Results(path):
                pass
            results.add(Result.of(name, FOUND))
            results.arrange(["c", "b", "a"])
    with Results(path) as results:
        assert list(results.kept) == ["c", "b", "a"]


def test_a_folder_or_a_pipe_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="is no regular file"), Results(path):
            pass


@pytest.mark.parametrize("content", [b'{"a":1}', b"secret notes", b"notes\rmore\rlines", b'{"pat'[:1] + b"!"])
def test_a_file_that_is_not_a_runs_own_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "victim.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="choose another"), Results(file):
        pass
    assert file.read_bytes() == content


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "faces.jsonl"
    file.write_bytes(b"{")
    file.chmod(0o600)
    with Results(file):
        pass
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Both where lines are dropped and where they are put into order, which replace the file."""
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "faces.jsonl", tmp_path / "faces.jsonl"
    link.symlink_to("elsewhere/faces.jsonl")
    for _ in range(2):
        with Results(link) as results:
            for name in {"b", "a"} - set(results.kept):
                results.add(Result.of(name, FOUND))
            results.add(Result.of("full", QueueFull("-")))
            results.arrange(["a", "full", "b"])
        assert link.is_symlink()
        assert not target.is_symlink()
        assert [line["path"] for line in lines(target)] == ["a", "full", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "faces.jsonl"]
    assert list((tmp_path / "elsewhere").iterdir()) == [target]


def test_a_full_disk_is_named_and_what_was_written_stays(tmp_path: Path) -> None:
    """The kernel itself refuses, at a limit of the file's size."""
    path = tmp_path / "faces.jsonl"
    write(path, Result.of("b", FOUND), Result.of("a", FOUND))
    size = path.stat().st_size
    program = f"""
import resource, signal
from pathlib import Path
from clients.results import Results
from tests.clients.test_results import FOUND, Result
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with Results(Path({str(path)!r})) as results:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 100}, {size + 100}))
        try:
            results.add(Result.of("c", FOUND))
        finally:
            results.arrange(["a", "b", "c"])
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"[Errno 27] File too large: {str(path)!r}\n", done.stderr
    with Results(path) as results:
        assert list(results.kept) == ["a", "b"]
