"""The page in one language: its components, and what they do."""

from __future__ import annotations

import asyncio
import html
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from clients import Answer, AsyncClient, ClientError
from clients.wire import Option
from webui import results
from webui.detection import detected
from webui.texts import Texts

DATA = Path(__file__).parent / "data"
#: Photographs, and MB of them together, that one run takes: they wait on this machine's disk and in its memory.
MOST_PHOTOGRAPHS = 50
MOST_MB = 300
#: The server's limit of one image; a larger upload is refused as it arrives.
LARGEST_UPLOAD = "21mb"
#: What archives have as shipped; others may be typed.
_CANVASES = ("auto", "native", "640x640", "480x640", "640x480", "384x640", "640x384", "960x1280", "1280x960")
#: Runs at once of everyone who has the page open; what they ask for shares the server's batches.
_CONCURRENCY = 32
_TINY = 32

#: Fonts of the reader's own machine: none is fetched.
THEME = gr.themes.Default(
    primary_hue="emerald",
    neutral_hue="slate",
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
)


@dataclass(frozen=True)
class Site:
    """What the pages of all languages share.

    Attributes:
        client: of the server.
        address: the server's, as it is shown.
        folder: for uploads and results.
        keep_s: how long they are kept, s.
    """

    client: AsyncClient
    address: str
    folder: Path
    keep_s: float


def page(site: Site, language: str) -> gr.Blocks:
    """The page in one language."""
    texts = Texts(language)
    with gr.Blocks(title=f"{texts['title']} - MogFace", analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(
            f'<div class="top"><h1>{html.escape(texts["title"])}</h1>'
            f'<a href="../{texts.other}/" hreflang="{texts.other}" lang="{texts.other}">{texts["language"]}</a></div>'
        )
        described = gr.HTML(html.escape(texts["asking"]), elem_id="model")
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                photographs, find = _given(texts)
                examples = _examples(texts)
                options = _options(texts)
                minutes = f"{site.keep_s / 60:g}"
                gr.HTML(f"<small>{html.escape(texts['private'].format(minutes=minutes))}</small>")
            with gr.Column(scale=3, min_width=300):
                report = gr.HTML(f"<p>{html.escape(texts['empty'])}</p>", elem_id="report", min_height=120)
                with gr.Column(visible=False) as found:
                    outputs = [report, found, *_found(texts)]

        async def run(given: Any, *values: Any, progress: gr.Progress = gr.Progress()) -> Any:  # noqa: B008 - by its default Gradio knows that it is wanted
            return await _run(site, texts, given, _asked(*values), progress)

        async def follow(given: Any, *values: Any, progress: gr.Progress = gr.Progress()) -> Any:  # noqa: B008
            # The last photograph was taken away: what was found stays.
            return await run(given, *values, progress=progress) if given else [gr.skip()] * len(outputs)

        async def describe() -> str:
            return await _described(site, texts)

        # Nothing here is an API: the server has one.
        private: dict[str, Any] = {"api_visibility": "private"}
        shared: dict[str, Any] = {
            "inputs": [photographs, *options],
            "outputs": outputs,
            "show_progress_on": report,
            "concurrency_limit": _CONCURRENCY,
            "concurrency_id": "detection",
            **private,
        }
        find.click(run, **shared)
        # However they come: chosen, dropped, pasted, taken by the camera.
        photographs.change(follow, trigger_mode="always_last", **shared)
        for chosen, names in examples:
            chosen.click(lambda names=names: [str(DATA / name) for name in names], None, photographs, **private).then(
                run, **shared
            )
        blocks.load(describe, None, described, show_progress="hidden", **private)
    blocks.queue(max_size=500)
    return blocks


def _given(texts: Texts) -> tuple[gr.Gallery, gr.Button]:
    photographs = gr.Gallery(
        label=texts["photographs"],
        sources=["upload", "webcam", "clipboard"],
        file_types=["image", ".heic", ".heif", ".avif"],
        type="filepath",
        columns=4,
        fit_columns=False,
        height=260,
        object_fit="contain",
        interactive=True,
        buttons=[],
        elem_id="photographs",
    )
    return photographs, gr.Button(texts["find"], variant="primary", elem_id="find")


def _examples(texts: Texts) -> list[tuple[gr.Button, list[str]]]:
    """A button for each, with the files that it stands for; see NOTICE for where they are from."""
    both = {"astronaut": ["astronaut.jpg"], "hopper": ["hopper.jpg"], "both": ["astronaut.jpg", "hopper.jpg"]}
    gr.HTML(f"<small>{html.escape(texts['examples'])}</small>")
    with gr.Row(elem_id="examples"):
        return [
            (gr.Button(texts[f"example_{key}"], size="sm", min_width=80, elem_id=f"example-{key}"), names)
            for key, names in both.items()
        ]


def _options(texts: Texts) -> list[gr.components.Component]:
    """In the order of ``_asked``'s parameters."""
    with gr.Accordion(texts["options"], open=False, elem_id="options"):
        own = gr.Checkbox(False, label=texts["own_threshold"], elem_id="own-threshold")
        threshold = gr.Slider(
            0,
            1,
            0.5,
            step=0.01,
            label=texts["threshold"],
            info=texts["threshold_info"],
            visible=False,
            elem_id="threshold",
        )
        # In the browser: the server is not asked for it.
        own.change(None, own, threshold, js="(own) => ({__type__: 'update', visible: own})")
        smallest = gr.Slider(0, 400, 0, step=1, label=texts["smallest"], elem_id="smallest")
        most = gr.Slider(1, 5000, 750, step=1, label=texts["most"], elem_id="most")
        canvas = gr.Dropdown(
            list(_CANVASES),
            value="auto",
            label=texts["canvas"],
            info=texts["canvas_info"],
            allow_custom_value=True,
            elem_id="canvas",
        )
        landmarks = gr.Checkbox(True, label=texts["landmarks"], elem_id="landmarks")
        crops = gr.Checkbox(True, label=texts["crops"], elem_id="crops-asked")
    return [own, threshold, smallest, most, canvas, landmarks, crops]


def _asked(
    own: bool, threshold: float, smallest: float, most: int, canvas: str, landmarks: bool, crops: bool
) -> dict[str, Option]:
    """The server's options."""
    return {
        **({"score_threshold": float(threshold)} if own else {}),
        # 0 restricts nothing; MogFace runs fewer of its levels for any other.
        **({"min_face_size": float(smallest)} if smallest else {}),
        "max_faces": int(most),
        **({"canvas": canvas} if canvas else {}),
        "landmarks": landmarks,
        "crops": crops,
    }


def _found(texts: Texts) -> list[gr.components.Component]:
    """In the order of ``_run``'s results, after the report and the column that they are in."""
    with gr.Row(elem_id="downloads"):
        downloads = [
            gr.DownloadButton(texts[kind], size="sm", min_width=90, interactive=False, elem_id=f"download-{kind}")
            for kind in ("pictures", "json", "csv")
        ]
    annotated = gr.Gallery(
        label=texts["annotated"],
        columns=2,
        object_fit="contain",
        height="auto",
        interactive=False,
        buttons=["fullscreen"],
        elem_id="annotated",
    )
    crops = gr.Gallery(
        label=texts["faces"],
        columns=6,
        fit_columns=False,
        height="auto",
        object_fit="contain",
        interactive=False,
        buttons=[],
        elem_id="crops",
    )
    columns = ("photograph", "face", "score")
    table = gr.Dataframe(
        headers=[*(texts[f"column_{name}"] for name in columns), *results.COORDINATES],
        datatype=["str", *["number"] * 6],
        label=texts["table"],
        interactive=False,
        max_height=400,
        buttons=["copy"],
        elem_id="table",
    )
    return [annotated, crops, table, *downloads]


async def _run(
    site: Site,
    texts: Texts,
    given: Sequence[tuple[str, str | None]] | None,
    options: dict[str, Option],
    progress: gr.Progress,
) -> tuple[Any, ...]:
    paths = [Path(path) for path, _ in given or ()]
    _require(paths, texts)
    started = time.monotonic()
    seen = []
    progress((0, len(paths)), unit=texts["progress"])
    try:
        # Whoever has a file's address may read it: it is not to be guessed.
        folder = site.folder / secrets.token_urlsafe(16)
        folder.mkdir()
        async for each in detected(site.client, paths, options, folder):
            seen.append(each)
            progress((len(seen), len(paths)), unit=texts["progress"])
        listed = [each.result for each in seen]
        pictures, *tables = await asyncio.to_thread(_written, listed, folder)
    except ClientError as error:
        raise gr.Error(f"{texts.error(error)} {error.message}", print_exception=False) from error
    except OSError as error:
        raise gr.Error(texts["unwritten"].format(reason=error.strerror or error)) from error
    seconds = time.monotonic() - started
    return (
        results.report(listed, seconds, texts),
        gr.Column(visible=True),
        [(str(each.preview), each.result.name) for each in seen if each.preview],
        [(str(crop), f"{each.result.name} {number}") for each in seen for number, crop in each.crops],
        results.rows(listed),
        gr.DownloadButton(value=None if pictures is None else str(pictures), interactive=pictures is not None),
        *(gr.DownloadButton(value=str(table), interactive=True) for table in tables),
    )


def _written(listed: Sequence[results.Result], folder: Path) -> tuple[Path | None, Path, Path]:
    """The files for download: pictures, where there are any, JSON, CSV."""
    as_json, as_csv = folder / "faces.json", folder / "faces.csv"
    as_json.write_text(results.to_json(listed), encoding="utf-8")
    # Spreadsheets take a CSV for UTF-8 where it begins with the mark.
    as_csv.write_text(results.to_csv(listed), encoding="utf-8-sig", newline="")
    return results.pictures(listed, folder), as_json, as_csv


def _require(paths: Sequence[Path], texts: Texts) -> None:
    if not paths:
        raise gr.Error(texts["none_given"], print_exception=False)
    if len(paths) > MOST_PHOTOGRAPHS:
        told = texts["too_many"].format(count=len(paths), limit=MOST_PHOTOGRAPHS)
        raise gr.Error(told, print_exception=False)
    size = sum(path.stat().st_size for path in paths if path.exists()) / 1e6
    if size > MOST_MB:
        raise gr.Error(texts["too_heavy"].format(size=f"{size:.0f}", limit=MOST_MB), print_exception=False)


async def _described(site: Site, texts: Texts) -> str:
    """What runs, asked for with a small grey picture; or why nothing does."""
    try:
        answer: Answer = await site.client.detect(Image.new("RGB", (_TINY, _TINY), "grey"))
    except ClientError as error:
        told = f"<b>{html.escape(texts.error(error))}</b><br><small>{html.escape(error.message)}</small>"
        return f'<div class="model failed" role="alert">{told}</div>'
    return results.model(answer, site.address, texts)
