"""What ``mogface``'s verbs take on the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clients.errors import UsageError
from clients.scaler import Policy

if TYPE_CHECKING:
    # argparse has no public name for it, and at run time it takes no parameter.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

#: The server's options that have a flag of the same name; ``crops`` and ``output`` follow from what is to be written.
OPTIONS = ("score_threshold", "nms_threshold", "max_faces", "order", "min_face_size", "canvas", "landmarks")

_CODES = """exit codes:
  0  done
  1  an image failed, the server is not ready, or something cannot be written
  2  wrong usage, or something that the server does not take of any image
  3  the server cannot be reached, refuses the token, or cannot do it now
  130  interrupted"""


class _Version(argparse.Action):
    """Looked up where it is asked for alone: it takes longer than all of the parser."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"mogface {version('mogface-serve')}")
        except PackageNotFoundError as error:
            raise UsageError("mogface-serve is not installed, and only an installed package has a version") from error
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The whole of it; ``verb`` names the function that runs."""
    root = argparse.ArgumentParser(
        prog="mogface",
        description="Faces of photographs, and the server that finds them.",
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="say which one this is")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_detect, _watch, _models, _health, _scale, _register, _unregister):
        add(verbs)
    return root


def _server(verbs: Verbs, name: str, text: str, *, inference: bool = False) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        name, help=text, description=text, epilog=_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    server = verb.add_argument_group("the server")
    if inference:
        server.add_argument(
            "--address",
            default=os.environ.get("MOGFACE_ADDRESS", "http://127.0.0.1:8080"),
            help="http://, https:// or grpc://HOST:PORT; $MOGFACE_ADDRESS, else %(default)s",
        )
    server.add_argument(
        "--management",
        default=os.environ.get("MOGFACE_MANAGEMENT", "http://127.0.0.1:8081"),
        help="$MOGFACE_MANAGEMENT, else %(default)s",
    )
    server.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a server's key_file.json; else the tokens are $MOGFACE_TOKEN (for detections) and "
        "$MOGFACE_MANAGEMENT_TOKEN (for all else), else those of ./key_file.json, else none is sent",
    )
    return verb


def _model(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--model", default=os.environ.get("MOGFACE_MODEL", "centerface"), help="$MOGFACE_MODEL, else centerface"
    )
    verb.add_argument("--model-version", metavar="VERSION", help="else the default one")


def _detect(verbs: Verbs) -> None:
    verb = _server(verbs, "detect", "find the faces of images, one JSON object a line and image", inference=True)
    verb.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="a file, a folder (with those below it), a quoted pattern such as 'photos/**/*.jpg', or - for stdin",
    )
    _model(verb)
    written = verb.add_argument_group("what is written")
    written.add_argument("--output", type=Path, metavar="FILE", help="else stdout; an interrupted run goes on there")
    written.add_argument("--format", choices=("jsonl", "table"), default="jsonl")
    written.add_argument("--pictures", type=Path, metavar="FOLDER", help="a copy of each image with its faces drawn in")
    written.add_argument("--crops", type=Path, metavar="FOLDER", help="each face as a 112x112 JPEG, aligned")
    _options(verb)
    verb.add_argument(
        "--concurrency", type=_from(1, int), default=8, metavar="N", help="requests at once (%(default)s)"
    )
    verb.add_argument(
        "--timeout", type=_from(0.001, float), default=130.0, metavar="S", help="for one answer (%(default)g)"
    )


def _options(verb: argparse.ArgumentParser) -> None:
    asked = verb.add_argument_group("what is asked; the server's own values where not given")
    asked.add_argument("--score-threshold", type=float, metavar="0..1")
    asked.add_argument("--nms-threshold", type=float, metavar="0..1")
    asked.add_argument("--max-faces", type=int, metavar="N")
    asked.add_argument("--order", choices=("score", "size"))
    asked.add_argument("--min-face-size", type=float, metavar="PX")
    asked.add_argument("--canvas", metavar="HEIGHTxWIDTH", help="or auto, native")
    asked.add_argument("--landmarks", action=argparse.BooleanOptionalAction)


def _watch(verbs: Verbs) -> None:
    verb = _server(verbs, "watch", "find the faces in live video, one JSON object a line and frame", inference=True)
    verb.set_defaults(address=os.environ.get("MOGFACE_ADDRESS", "grpc://127.0.0.1:7070"))
    verb.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a camera's number, an address (rtsp://, http://, ...), a video file, or a folder of frames",
    )
    _model(verb)
    frames = verb.add_argument_group("which frames are sent")
    frames.add_argument("--fps", type=_from(0.001, float), metavar="F", help="at most so many a second and source")
    frames.add_argument("--every", type=_from(1, int), default=1, metavar="N", help="of N frames the first")
    frames.add_argument("--until", type=_from(0.001, float), metavar="S", help="the end, on each source's clock")
    frames.add_argument(
        "--live",
        action="store_true",
        help="play files at their own pace and drop frames where the server is slower, as of cameras",
    )
    frames.add_argument(
        "--rate", type=_from(0.001, float), default=25.0, metavar="F", help="frames a second of folders (%(default)g)"
    )
    written = verb.add_argument_group("what is written")
    written.add_argument("--output", type=Path, metavar="FILE", help="lines are added to it; else stdout")
    written.add_argument("--video", type=Path, metavar="FOLDER", help="an annotated video of each source")
    written.add_argument("--blur", action="store_true", help="in the videos make faces unrecognisable instead")
    written.add_argument("--crops", type=Path, metavar="FOLDER", help="each face as a 112x112 JPEG, aligned")
    _options(verb)
    verb.add_argument(
        "--concurrency", type=_from(1, int), default=8, metavar="N", help="frames of all sources at once (%(default)s)"
    )
    verb.add_argument(
        "--quality", type=_from(1, int), default=90, metavar="1..100", help="of a frame's JPEG (%(default)s)"
    )
    verb.add_argument(
        "--timeout", type=_from(0.001, float), default=30.0, metavar="S", help="for one answer (%(default)g)"
    )


def _models(verbs: Verbs) -> None:
    verb = _server(verbs, "models", "list the models that are served")
    verb.add_argument("--json", action="store_true", help="as JSON")


def _health(verbs: Verbs) -> None:
    verb = _server(verbs, "health", "ask whether every worker is ready and a detection is answered", inference=True)
    _model(verb)
    verb.add_argument("--shallow", action="store_true", help="ask for no detection")
    verb.add_argument("--timeout", type=_from(0.001, float), default=10.0, metavar="S", help="in all (%(default)g)")


def _scale(verbs: Verbs) -> None:
    policy = Policy(1, 1)
    verb = _server(verbs, "scale", "have more or fewer workers, one at a time, now or by the load")
    _model(verb)
    how = verb.add_mutually_exclusive_group(required=True)
    how.add_argument("--workers", type=_from(0, int), metavar="N")
    how.add_argument("--auto", action="store_true", help="by the load, until interrupted")
    verb.add_argument("--wait", action="store_true", help="with --workers: until the last one is ready too")
    verb.add_argument(
        "--timeout",
        type=_from(0.001, float),
        default=300.0,
        metavar="S",
        help="with --workers: for each worker to be ready (%(default)g)",
    )
    auto = verb.add_argument_group("with --auto")
    auto.add_argument("--min", type=int, default=1, metavar="N", help="workers (%(default)s)")
    auto.add_argument("--max", type=int, metavar="N", help="workers")
    auto.add_argument(
        "--goal-queue-ms",
        type=float,
        default=policy.goal_queue_ms,
        metavar="MS",
        help="a worker comes where requests wait longer in the queue (%(default)g)",
    )
    auto.add_argument(
        "--up-after", type=float, default=policy.up_after_s, metavar="S", help="of waiting longer (%(default)g)"
    )
    auto.add_argument(
        "--down-after", type=float, default=policy.down_after_s, metavar="S", help="of being needless (%(default)g)"
    )
    auto.add_argument("--interval", type=_from(0.1, float), default=1.0, metavar="S", help="of looking (%(default)g)")
    auto.add_argument(
        "--metrics",
        default=os.environ.get("MOGFACE_METRICS", "http://127.0.0.1:8082"),
        help="$MOGFACE_METRICS, else %(default)s",
    )


def _register(verbs: Verbs) -> None:
    verb = _server(verbs, "register", "serve one more archive; the server needs enable_model_api=true")
    verb.add_argument("url", metavar="URL", help="a file name in the model store, or an address that it allows")
    verb.add_argument("--workers", type=_from(0, int), default=1, metavar="N")
    verb.add_argument("--batch-size", type=_from(1, int), metavar="N")
    verb.add_argument("--timeout", type=_from(0.001, float), default=300.0, metavar="S", help="in all (%(default)g)")


def _unregister(verbs: Verbs) -> None:
    verb = _server(verbs, "unregister", "serve a model no longer; the server needs enable_model_api=true")
    verb.add_argument("model")
    verb.add_argument("--model-version", metavar="VERSION", help="else the default one")


def _from(low: float, kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is out of range: expected {low:g} or more")
        return value

    # argparse names it where the text is no number at all.
    parse.__name__ = kind.__name__
    return parse
