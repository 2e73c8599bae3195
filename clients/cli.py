"""``mogface VERB``: faces of photographs, and the server that finds them."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from PIL import Image

from clients import http, room, streams
from clients.arguments import OPTIONS, parser
from clients.autoscale import Observer, autoscale, scaling, steps
from clients.client import Client
from clients.detect import detect
from clients.errors import BadAnswer, ClientError, NotAuthorised, Unavailable, Unreachable, UsageError
from clients.management import ALL, Management
from clients.outputs import Written
from clients.retry import Retry
from clients.scaler import Policy
from clients.sources import sources

DONE, FAILED, USAGE, NO_SERVER, INTERRUPTED = 0, 1, 2, 3, 130
_ROW = "{:<20} {:>8} {:>9} {:>6} {:>9} {:>6}"
#: px; a grey picture of this size is the smallest detection there is to ask for.
_TINY = 32
#: A worker is killed as soon as it is told to go, and off the list before its process has ended: the next step waits
#: for that, as until then it holds its GPU.
_GONE_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; its exit code, with the reason of any but 0 on the error stream."""
    streams.prepare()
    name = "mogface"
    try:
        with streams.flushed():
            options = parser().parse_args(arguments)
            name = f"mogface {options.verb}"
            return _VERBS[options.verb](options)
    except (NotAuthorised, Unavailable, BadAnswer) as error:
        return _failed(name, error, NO_SERVER)
    except ClientError as error:
        return _failed(name, error, USAGE)
    except BrokenPipeError:
        # Whoever read has enough.
        streams.give_up()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename == streams.STDOUT:
            streams.give_up()
        told = f"{error.filename} cannot be read or written: {error.strerror}" if error.filename else error
        return _failed(name, told, FAILED)
    except KeyboardInterrupt:
        return _failed(name, "interrupted", INTERRUPTED)


def _failed(name: str, error: object, code: int) -> int:
    print(f"{name}: {error}", file=sys.stderr)
    return code


def _detect(options: argparse.Namespace) -> int:
    written = Written(options.output, options.format == "table", options.pictures, options.crops)
    apart = [folder for folder in (options.pictures, options.crops) if folder]
    asked = sources(options.images, sys.stdin.buffer, apart)
    with _client(options, concurrency=options.concurrency) as client:
        return detect(client, options.model, asked, _given(options), written, sys.stdout.buffer)


def _watch(options: argparse.Namespace) -> int:
    try:
        from clients.watch import follow, reader, run, sources
    except ImportError as error:
        raise UsageError(f"watch needs the extra video: pip install '.[video]' ({error})") from error
    watched = sources.sources(options.sources, options.live)
    given = _given(options) | ({"crops": True} if options.crops else {})
    return run.watch(
        _server(options) | {"concurrency": options.concurrency},
        watched,
        reader.Reading(options.every, options.fps, options.until, options.rate),
        follow.Sending(given, options.concurrency, quality=options.quality),
        run.Written(options.output, options.video, options.crops, options.blur),
    )


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The server's options that have a value."""
    return {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}


def _client(options: argparse.Namespace, **more: Any) -> Client:
    """A client of the server that the flags name."""
    return Client(**_server(options), **more)


def _server(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of a client of the server that the flags name."""
    return {
        "address": options.address,
        "model": options.model,
        "version": options.model_version,
        "token": options.token_file,
        "management": options.management,
        "timeout_s": options.timeout,
    }


def _models(options: argparse.Namespace) -> int:
    with Management(options.management, options.token_file) as management:
        versions = [each for name in management.models() for each in management.describe(name)]
    if options.json:
        rows = [
            {
                "model": each.name,
                "version": each.version,
                "workers": len(each.workers),
                "ready": sum(worker.ready for worker in each.workers),
                "batch_size": each.batch_size,
                "queue_length": each.queue_length,
            }
            for each in versions
        ]
        print(json.dumps(rows))
        return DONE
    print(_ROW.format("model", "version", "workers", "ready", "batch", "queue"))
    for each in versions:
        ready = sum(worker.ready for worker in each.workers)
        queue = "?" if each.queue_length is None else each.queue_length
        print(_ROW.format(each.name, each.version, len(each.workers), ready, each.batch_size, queue))
    return DONE


def _health(options: argparse.Namespace) -> int:
    try:
        with _within(options.timeout), Management(options.management, options.token_file) as management:
            versions = management.describe(options.model, options.model_version)
            workers = [worker for version in versions for worker in version.workers]
            ready = sum(worker.ready for worker in workers)
            told = f"{options.model}: {ready} of {len(workers)} workers ready"
            if not workers or ready < len(workers):
                print(f"not ready: {told}")
                return FAILED
            if not options.shallow:
                told += f", a detection took {1000 * _detection_s(options):.0f} ms"
    except ClientError as error:
        # A probe shows one line, of one stream.
        print(f"not ready: {options.model}: {' '.join(error.message.split())}")
        return NO_SERVER if isinstance(error, NotAuthorised | Unavailable | BadAnswer) else USAGE
    print(f"ready: {told}")
    return DONE


def _detection_s(options: argparse.Namespace) -> float:
    """Asks for the faces of a small grey picture; how long that took."""
    started = time.monotonic()
    with _client(options, retry=Retry(attempts=1)) as client:
        client.detect(Image.new("RGB", (_TINY, _TINY), "grey"))
    return time.monotonic() - started


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises Unreachable where the block takes longer, whatever it waits for."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Unreachable(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _scale(options: argparse.Namespace) -> int:
    if options.model_version == ALL:
        raise UsageError(
            f"--model-version {ALL} is every one of {options.model}: each has workers of its own; name one"
        )
    with Management(options.management, options.token_file) as management:
        if options.auto:
            return _autoscale(options, management)
        version = management.version(options.model, options.model_version)
        now = max(version.min_workers, len(version.workers))
        if now == options.workers:
            if options.wait:
                management.scale(
                    options.model, now, version=options.model_version, wait=True, timeout_s=options.timeout
                )
            print(f"{options.model}: {_counted(now)}, as there were")
        for workers in steps(now, options.workers):
            last = workers == options.workers
            if workers > now:
                version = management.version(options.model, options.model_version)
                room.require(options.management, version)
            management.scale(
                options.model,
                workers,
                version=options.model_version,
                wait=options.wait or not last,
                timeout_s=options.timeout,
            )
            print(f"{options.model}: {_counted(workers)}", flush=True)
            if workers < now:
                time.sleep(_GONE_S)
    return DONE


def _counted(workers: int) -> str:
    if not workers:
        return "no workers: every request is refused until it has one again"
    return f"{workers} worker{'s' if workers > 1 else ''}"


def _autoscale(options: argparse.Namespace, management: Management) -> int:
    if options.max is None:
        raise UsageError("--auto needs --max N: the most workers that the machine has room for")
    policy = Policy(options.min, options.max, options.goal_queue_ms, options.up_after, options.down_after)
    http.require(options.metrics, "--metrics")
    ended = threading.Event()
    before = {each: signal.signal(each, lambda *_: ended.set()) for each in (signal.SIGINT, signal.SIGTERM)}

    scale = scaling(management, options.management, options.model, options.model_version)

    def say(line: str) -> None:
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {options.model}: {line}", flush=True)

    try:
        with Observer(management, options.metrics, options.model, options.model_version) as observer:
            autoscale(observer, scale, policy, say, ended.wait, options.interval)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return DONE


def _register(options: argparse.Namespace) -> int:
    with Management(options.management, options.token_file) as management:
        management.register(
            options.url, workers=options.workers, batch_size=options.batch_size, timeout_s=options.timeout
        )
    print(f"{options.url}: registered")
    return DONE


def _unregister(options: argparse.Namespace) -> int:
    with Management(options.management, options.token_file) as management:
        management.unregister(options.model, options.model_version)
    print(f"{options.model}: unregistered")
    return DONE


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "detect": _detect,
    "watch": _watch,
    "models": _models,
    "health": _health,
    "scale": _scale,
    "register": _register,
    "unregister": _unregister,
}

if __name__ == "__main__":
    raise SystemExit(main())
