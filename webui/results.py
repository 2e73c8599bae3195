"""What a run found, as tables and files: JSON, CSV, pictures."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients import LANDMARKS, Answer, ClientError
from webui.texts import Texts

#: Of a row of the table of faces, whose first column is the photograph's name.
COORDINATES = ("x1", "y1", "x2", "y2")
_POINTS = tuple(f"{name}_{axis}" for name in LANDMARKS for axis in "xy")


@dataclass(frozen=True)
class Result:
    """One photograph and what became of it.

    Attributes:
        name: of its file.
        found: its answer or its error.
        drawn: the file of its annotated picture, full size; None where there is an error, or it cannot be drawn here.
    """

    name: str
    found: Answer | ClientError
    drawn: Path | None = None


def rows(results: Sequence[Result]) -> list[list[Any]]:
    """One row a face: photograph, number of the face from 1, score, x1, y1, x2, y2 (px)."""
    return [
        [result.name, number, round(face.score, 3), *(round(value, 1) for value in face.box)]
        for result in results
        if isinstance(result.found, Answer)
        for number, face in enumerate(result.found.faces, 1)
    ]


def to_json(results: Sequence[Result]) -> str:
    """A list of ``{"path", "answer"}`` and ``{"path", "error"}``, as the lines of ``mogface detect``; no crops."""
    return json.dumps([_listed(result) for result in results], ensure_ascii=False, indent=1)


def _listed(result: Result) -> dict[str, Any]:
    if isinstance(result.found, Answer):
        return {"path": result.name, "answer": dataclasses.replace(result.found, crops=False).to_json()}
    error = result.found
    return {"path": result.name, "error": {"code": error.status, "type": error.type, "message": error.message}}


def to_csv(results: Sequence[Result]) -> str:
    """One line a face, with its landmarks; empty columns where it has none. A photograph without faces has no line."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["photograph", "face", "score", *COORDINATES, *_POINTS])
    for result in results:
        if isinstance(result.found, Answer):
            for number, face in enumerate(result.found.faces, 1):
                cells: list[object] = [_cell(result.name), number, face.score, *face.box]
                points: Mapping[str, tuple[object, object]] = face.landmarks or dict.fromkeys(LANDMARKS, ("", ""))
                writer.writerow([*cells, *(value for name in LANDMARKS for value in points[name])])
    return file.getvalue()


def _cell(text: str) -> str:
    """A spreadsheet takes a cell that begins like this for a formula: the apostrophe makes it text."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def pictures(results: Sequence[Result], folder: Path) -> Path | None:
    """The annotated pictures as one file: the picture itself, or of several a ZIP, whose names begin with numbers.

    Args:
        results: in their order.
        folder: for the ZIP.

    Returns:
        The file; None where there is no picture.
    """
    drawn = [(number, each.drawn) for number, each in enumerate(results, 1) if each.drawn is not None]
    if len(drawn) < 2:
        return drawn[0][1] if drawn else None
    path = folder / "faces.zip"
    # Pictures are compressed already.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, picture in drawn:
            archive.write(picture, f"{number:03d}-{picture.name}")
    return path


def report(results: Sequence[Result], seconds: float, texts: Texts) -> str:
    """HTML: how many faces, and one row a photograph with its times, or its error in words.

    Args:
        results: in their order.
        seconds: that it all took.
        texts: of the page.
    """
    answered = [each for each in results if isinstance(each.found, Answer)]
    counts = {
        "summary_faces": sum(len(each.found.faces) for each in results if isinstance(each.found, Answer)),
        "summary_photographs": len(answered),
        "summary_failed": len(results) - len(answered),
    }
    told = [texts[key].format(count=count) for key, count in counts.items() if count or key != "summary_failed"]
    told.append(texts["summary_seconds"].format(seconds=f"{seconds:.2f}"))
    failed = "".join(
        _told(result.name, texts.error(result.found), result.found.message)
        for result in results
        if isinstance(result.found, ClientError)
    )
    undrawn = "".join(_told(each.name, texts["undrawn"], "") for each in answered if each.drawn is None)
    names = ("photograph", "size", "faces", "canvas", "decode", "network", "rest")
    head = "".join(f'<th scope="col">{html.escape(texts[f"column_{name}"])}</th>' for name in names)
    body = "".join(_row(each.name, each.found, texts) for each in results if isinstance(each.found, Answer))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    return (
        f'<p class="summary" role="status">{html.escape("  ".join(told))}</p>{failed}{undrawn}'
        f'<div class="scroll" tabindex="0">{table}</div>'
    )


def _told(name: str, words: str, message: str) -> str:
    return (
        f'<p class="failed"><b>{html.escape(name)}: {html.escape(words)}</b><br>'
        f"<small>{html.escape(message)}</small></p>"
    )


def _row(name: str, answer: Answer, texts: Texts) -> str:
    times = dict(answer.timing_ms)
    decode, network = times.pop("decode", 0.0), times.pop("network", 0.0)
    canvas = f"{answer.canvas} ({texts['cached']})" if answer.cached else answer.canvas
    cells = [f"{answer.width}x{answer.height}", str(len(answer.faces)), canvas]
    cells += [f"{value:.1f}" for value in (decode, network, sum(times.values()))]
    return (
        f'<tr><th scope="row">{html.escape(name)}</th>{"".join(f"<td>{html.escape(cell)}</td>" for cell in cells)}</tr>'
    )


def model(answer: Answer, address: str, texts: Texts) -> str:
    """HTML: what runs, in one line."""
    ran = answer.model
    parts = {
        "model": f"{ran.name} {ran.version}",
        "weights": ran.weights,
        "engine": ran.engine,
        "precision": ran.precision,
    }
    said = "".join(
        f"<span><small>{html.escape(texts[key])}</small> {html.escape(value)}</span>" for key, value in parts.items()
    )
    return f'<div class="model">{said}<span class="address">{html.escape(address)}</span></div>'
