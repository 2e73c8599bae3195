"""The page as a person has it: its own process, over a real server, in a real browser."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from archive.server import Server
from tests.requirements import lacking
from tests.serving.conftest import ROOT, centerface_mar, server, start, workspace

__all__ = ["centerface_mar", "server", "start", "workspace"]

#: Kept, to be looked at.
SCREENSHOTS = ROOT / "build" / "screenshots"
#: For an element of the page, ms: the machine may be busy.
PATIENCE_MS = 30_000

#: Run first in every Python of the page's process: what it would reach beyond this machine is written down.
_WITNESS = """
import os, sys
def witness(event, arguments):
    if event == "socket.connect":
        address = arguments[1]
        reached = address[0] if isinstance(address, tuple) else "127.0.0.1"
    elif event == "socket.getaddrinfo":
        reached = arguments[0]
    else:
        return
    if reached not in ("127.0.0.1", "::1", "localhost", None, b"127.0.0.1"):
        with open(os.environ["WITNESS"], "a") as file:
            file.write(f"{event} {reached}\\n")
sys.addaudithook(witness)
"""


class Web:
    """A running ``mogface-web``.

    Attributes:
        address: of the page, ending in a slash.
        folder: its temporary folder, which holds all that it keeps.
        witness: a file that names what it reached beyond this machine; absent where nothing was.
    """

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder = folder / "tmp"
        self.folder.mkdir()
        self.witness = folder / "reached.txt"
        (folder / "sitecustomize.py").write_text(_WITNESS)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOGFACE_", "GRADIO_"))}
        self._log = folder / "web.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "webui.cli", "--port", "0", *arguments],
                cwd=folder,
                env=kept
                | {
                    "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
                    "TMPDIR": str(self.folder),
                    "WITNESS": str(self.witness),
                },
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.address = self._address()

    def _address(self) -> str:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"The page: (\S+/)", self.log)):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)
        return found[1]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()


Open = Callable[..., Web]


@pytest.fixture(scope="session")
def open_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Start a page with these arguments."""
    opened = []

    def begin(*arguments: str) -> Web:
        opened.append(Web(tmp_path_factory.mktemp("web"), list(arguments)))
        return opened[-1]

    yield begin
    for web in opened:
        web.stop()


def of(server: Server) -> list[str]:
    """Arguments that name a server."""
    named = {
        "address": server.inference,
        "management": server.management,
        "token-file": server.folder / "key_file.json",
    }
    return [part for name, value in named.items() for part in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def web(open_web: Open, server: Server) -> Web:
    """The page over the shared server."""
    return open_web(*of(server))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    path = shutil.which("chromium")
    if path is None:
        lacking("chromium", "no chromium on PATH: apt-get install chromium")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that a container does not have; a camera of its own shows a test picture.
        flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        yield playwright.chromium.launch(executable_path=path, args=flags)


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Open a page, ready to be used; at its end nothing was asked for elsewhere, and nothing went wrong."""
    contexts: list[BrowserContext] = []
    asked: list[str] = []
    wrong: list[str] = []

    def begin(web: Web, path: str = "", **context: object) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context}))  # type: ignore[arg-type]
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: asked.append(request.url))
        page.on("websocket", lambda socket: asked.append(socket.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(f"{said.text} {said.location}") if said.type == "error" else None)
        page.goto(web.address + path)
        page.wait_for_selector(".model")
        page.wait_for_selector("#find")
        return page

    yield begin
    for each in contexts:
        each.close()
    assert asked
    elsewhere = [url for url in asked if not re.match(r"(https?|wss?)://127\.0\.0\.1:\d+/|data:|blob:", url)]
    assert not elsewhere
    assert not wrong


def give(page: Page, *paths: Path) -> None:
    """Choose photographs, and wait for what is found in them."""
    page.set_input_files("#photographs input[type=file]", [str(path) for path in paths])
    page.wait_for_selector("#report .summary")


def downloaded(page: Page, kind: str) -> bytes:
    """What a download button gives."""
    page.wait_for_selector(f"#download-{kind}:not([disabled])")
    with page.expect_download() as download:
        page.click(f"#download-{kind}")
    return Path(download.value.path()).read_bytes()
