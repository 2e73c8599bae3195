"""Tables of results worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from load_tests import report

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "benchmark" / "results.json"


def record(system: str, turn: int, rate: float, latencies: list[float], **other: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"system": system, "model": "centerface", "clients": 8, "offered_rate": 0.0}
    found |= {"round": turn, "rate": rate}
    found |= {"latencies_ms": latencies, "stdev_ms": 1.0, "cpu_s_an_image": 0.1 * (turn + 1), "pss_mb": 100.0 + turn}
    return found | other


def results(*records: dict[str, Any]) -> dict[str, Any]:
    return {"machine": "a machine", "triton": "a triton", "records": list(records)}


ALL = results(
    record("one", 0, 10.0, [100.0, 200.0]),
    record("two", 0, 30.0, [10.0]),
    record("one", 1, 20.0, [300.0]),
    record("two", 1, 20.0, [30.0]),
    record("one", 2, 10.0, [400.0]),
    record("two", 2, 50.0, [20.0]),
    record("one", 0, 5.0, [7.0], clients=0, offered_rate=5.5),
    record("one", 0, 1.0, [9.0], clients=1),
)


def test_medians_and_ratios_within_a_round() -> None:
    found = {(row.load, row.system): row for row in report.rows(ALL)}
    one, two = found["8 clients", "one"], found["8 clients", "two"]
    assert (one.rate, two.rate) == (10, 30)
    # 30/10, 20/20, 50/10: not 30 over 10, which are of different rounds.
    assert list(two.ratio or ()) == [1, 3, 5]
    assert (one.ratio, one.p50_ms, one.latencies, one.rounds) == (None, 250, 4, 3)
    assert two.cpu_s == pytest.approx(0.2)
    assert two.pss_mb == 102


def test_the_order_is_by_load() -> None:
    loads = list(dict.fromkeys(row.load for row in report.rows(ALL)))
    assert loads == ["1 client", "8 clients", "5.5 a second"]


def test_a_round_without_the_first_system_has_no_ratio() -> None:
    rows = report.rows(results(record("one", 0, 10.0, [1.0]), record("two", 1, 10.0, [1.0])))
    assert rows[1].ratio is None


def test_the_files(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(ALL))
    markdown, picture = report.write(tmp_path / "results.json", tmp_path)
    text = markdown.read_text()
    assert "| 8 clients | two | 30 | 20 | 29 | 30 | 1 | 3 | 0.2 | 102 | 3.00 (1.00 .. 5.00) |" in text.splitlines()
    assert "a machine, a triton" in text
    with Image.open(picture) as image:
        assert image.size[0] > 500


def test_readme_is_rewritten_between_its_marks(tmp_path: Path) -> None:
    file, readme = tmp_path / "results.json", tmp_path / "README.md"
    file.write_text(json.dumps(ALL))
    readme.write_text(f"before\n\n{report.BEGIN}\nold \\1\n{report.END}\n\nafter\n")
    assert report.rewrite(file, readme)
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| CenterFace, 640x480, 8 clients | 10 / 397 ms | 30 / 30 ms / x3.00 |" in text.splitlines()
    assert "| one | 7 | 7 | 1.0 |" in text.splitlines()
    assert not report.rewrite(file, readme)


@pytest.mark.parametrize("text", ["", report.BEGIN, f"{report.END}{report.BEGIN}", f"{report.BEGIN}{report.END}" * 2])
def test_a_readme_without_marks_is_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(json.dumps(ALL))
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(ValueError, match="once each"):
        report.rewrite(tmp_path / "results.json", tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == text


def test_readme_shows_the_committed_results(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(report.BEGIN) == readme.count(report.END) == 1
    if not RESULTS.exists():
        pytest.skip(f"{RESULTS} is not committed")
    copy = tmp_path / "README.md"
    copy.write_text(readme, encoding="utf-8")
    assert not report.rewrite(RESULTS, copy), "run `python -m load_tests bench --table docs/benchmark/results.json`"
