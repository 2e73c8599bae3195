"""The web application: the page in each language, headers that keep it to this machine, and its folder's lifetime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import gradio as gr
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from webui.page import LARGEST_UPLOAD, THEME, Site, page
from webui.scratch import swept
from webui.texts import LANGUAGES, preferred

#: Browsers fetch nothing from elsewhere, whatever the page asks for, and no other site frames it.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: Gradio writes its own few words in the browser's language: this makes them the page's, before any module runs.
_SPOKEN = """<head><script>
document.documentElement.lang = "{tag}";
for (const [name, value] of [["language", "{tag}"], ["languages", ["{tag}"]]])
  Object.defineProperty(navigator, name, {{get: () => value}});
</script>"""
_TAGS = {"zh": "zh-CN"}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def application(site: Site, *, loopback: bool = True) -> FastAPI:
    """The application, for an ASGI server.

    Args:
        site: what its pages share; its client is closed when the application ends.
        loopback: whether requests to other names than this machine's are refused, so that no other site's page gets
            at it by a name that leads here.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(swept(site.folder, site.keep_s))
        try:
            yield
        finally:
            sweeping.cancel()
            await site.client.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    if loopback:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(_LOOPBACK))

    @app.middleware("http")
    async def guarded(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await go_on(request)
        language = request.url.path.strip("/")
        if language in LANGUAGES and response.headers.get("content-type", "").startswith("text/html"):
            response = await _spoken(response, language)
        response.headers.update(_HEADERS)
        return response

    @app.get("/")
    async def choose(request: Request) -> RedirectResponse:
        return RedirectResponse(f"{preferred(request.headers.get('accept-language', ''))}/", 307)

    @app.get("/favicon.ico")
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/manifest.json")
    async def manifest() -> dict[str, str]:
        # Gradio's pages ask for it at the root, wherever they are.
        return {"name": "MogFace", "start_url": "/", "display": "browser"}

    for language in LANGUAGES:
        app = gr.mount_gradio_app(
            app,
            page(site, language),
            f"/{language}",
            theme=THEME,
            css_paths=[Path(__file__).parent / "style.css"],
            allowed_paths=[str(site.folder)],
            max_file_size=LARGEST_UPLOAD,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
        )
    return app


async def _spoken(response: Response, language: str) -> Response:
    """Gradio's page with the language written into its head; its own ``head`` is run too late for that."""
    # Middleware sees every response as a stream.
    body = b"".join([part async for part in response.body_iterator])  # type: ignore[attr-defined]
    start = _SPOKEN.format(tag=_TAGS.get(language, language)).encode()
    return Response(body.replace(b"<head>", start, 1), response.status_code, media_type="text/html")
