"""``mogface-web``: the page over a running server, or over one that it starts."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from clients import AsyncClient, ClientError, UsageError
from webui.server import Address, served

DONE, FAILED, USAGE = 0, 1, 2
#: Open event streams of pages are cut after so many seconds.
_SHUTDOWN_S = 3
_CONCURRENCY = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted; the exit code, with the reason of any but 0 on the error stream."""
    options = _parser().parse_args(arguments)
    # What a service manager and a closing terminal send counts as Ctrl-C: a started server has to be stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with served(_address(options), options.config):
            _serve(options)
    except KeyboardInterrupt:
        print("Stopped.")
    except ClientError as error:
        print(f"mogface-web: {error.message}", file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mogface-web", description=__doc__)
    parser.add_argument("--port", type=int, default=7860, help="of the page; 0 for a free one (%(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="where the page listens (%(default)s); it asks for no password"
    )
    server = parser.add_argument_group("the server")
    server.add_argument(
        "--address",
        default=os.environ.get("MOGFACE_ADDRESS", "http://127.0.0.1:8080"),
        help="http://, https:// or grpc://HOST:PORT; $MOGFACE_ADDRESS, else %(default)s",
    )
    server.add_argument(
        "--management",
        default=os.environ.get("MOGFACE_MANAGEMENT", "http://127.0.0.1:8081"),
        help="$MOGFACE_MANAGEMENT, else %(default)s; it renews the token",
    )
    server.add_argument(
        "--model", default=os.environ.get("MOGFACE_MODEL", "centerface"), help="$MOGFACE_MODEL, else centerface"
    )
    server.add_argument("--model-version", metavar="VERSION", help="else the default one")
    server.add_argument(
        "--token-file", type=Path, metavar="FILE", help="key_file.json; else $MOGFACE_TOKEN, else ./key_file.json"
    )
    server.add_argument(
        "--config",
        type=Path,
        default=Path("config.properties"),
        metavar="FILE",
        help="by which a server is started where none listens (%(default)s)",
    )
    parser.add_argument(
        "--keep", type=_positive, default=600.0, metavar="S", help="seconds that photographs are kept (%(default)g)"
    )
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is out of range: expected seconds, over 0")
    return value


def _address(options: argparse.Namespace) -> Address:
    return Address(options.address, options.management, options.model, options.model_version, options.token_file)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _serve(options: argparse.Namespace) -> None:
    loopback = options.host in ("127.0.0.1", "localhost", "::1")
    try:
        listening = socket.create_server(
            (options.host, options.port), family=socket.AF_INET6 if ":" in options.host else socket.AF_INET
        )
    except (OSError, OverflowError) as error:
        raise UsageError(f"the page cannot listen at {options.host}:{options.port}: {error}") from error
    with listening, tempfile.TemporaryDirectory(prefix="mogface-web-") as folder:
        # Read as Gradio is imported: nothing is told to anyone, and uploads lie where they are swept.
        os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": folder}
        try:
            import uvicorn

            from webui.app import application
            from webui.page import Site
        except ImportError as error:
            raise UsageError(f"the page needs the extra web: pip install '.[web]' ({error})") from error
        client = AsyncClient(
            options.address,
            options.model,
            version=options.model_version,
            token=options.token_file,
            management=options.management,
            concurrency=_CONCURRENCY,
        )
        app = application(Site(client, options.address, Path(folder), options.keep), loopback=loopback)
        if not loopback:
            print(f"Whoever reaches {options.host} may use the page: it asks for no password.", file=sys.stderr)
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"The page: http://{host}:{listening.getsockname()[1]}/ - stop with Ctrl-C.", flush=True)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S, server_header=False)
        )
        server.run(sockets=[listening])


if __name__ == "__main__":
    raise SystemExit(main())
