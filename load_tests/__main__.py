"""``python -m load_tests VERB``. Each verb's module is imported when it is run: one of them changes the sockets."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from load_tests import plan_verb
from load_tests.arguments import add_target, count, count_from_0, positive, share

_CENTERFACE = Path("model_store/centerface.mar")
_BASE = Path("config.properties")


def main() -> int:
    """Run the verb that the command line names; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m load_tests", description="Load tests, figures, sweeps, tuning.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_run, _sweep, _tune, _overhead, _client, _server, _network, _video, _bench, plan_verb.add):
        add(verbs)
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    from clients.errors import ClientError
    from handler.errors import MogFaceError
    from load_tests.errors import LoadTestError

    try:
        return int(given.call(given) or 0)
    except (ClientError, MogFaceError, LoadTestError, ValueError, OSError) as error:
        print(f"load_tests {given.verb}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"load_tests {given.verb}: no module {error.name}: `pip install -e '.[load]'`", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _interrupt(number: int, frame: object) -> None:
    """What was started is stopped, whichever way this is told to end; a second word does not cut that short."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run(verbs: Any) -> None:
    verb = verbs.add_parser("run", help="load on a running server: closed loops of users, or arrivals at a rate")
    verb.add_argument(
        "--address",
        default=os.environ.get("MOGFACE_ADDRESS", "http://127.0.0.1:8080"),
        help="http:// or grpc://HOST:PORT; $MOGFACE_ADDRESS, else %(default)s",
    )
    add_target(verb)
    verb.add_argument("--users", type=count, nargs="+", default=[], help="closed loops at once, one level each")
    verb.add_argument("--rate", type=positive, nargs="+", default=[], help="requests a second, one level each")
    verb.add_argument("--seconds", type=positive, default=20.0, help="of a level")
    verb.add_argument("--output", type=Path, default=Path("build/load"), metavar="FOLDER")
    verb.add_argument("--max-p99", type=positive, metavar="MS", help="exit with 1 where a level's p99 is over it")
    verb.add_argument("--min-rate", type=positive, help="exit with 1 where no level answers so many a second")
    verb.add_argument(
        "--max-failures", type=share, default=0.0, metavar="SHARE", help="exit with 1 where more of a level fail"
    )

    def call(given: argparse.Namespace) -> int:
        from load_tests import run
        from load_tests.samples import Limits
        from load_tests.target import Target

        users = given.users or ([] if given.rate else [1, 8])
        limits = Limits(given.max_p99, given.min_rate, given.max_failures)
        return run.run(Target.of(given, given.address), users, given.rate, given.seconds, limits, given.output)

    verb.set_defaults(call=call)


def _grid(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--archives", type=Path, nargs="+", default=[_CENTERFACE], metavar="FILE.mar")
    verb.add_argument("--base", type=Path, default=_BASE, help="what everything else is taken from")
    verb.add_argument("--preset", default="cpu", help="cpu, t4, a10, a100, h200")
    verb.add_argument("--gpus", type=count_from_0, default=0)
    verb.add_argument("--results", type=Path, default=Path("build/sweep"), metavar="FOLDER")


def _sweep(verbs: Any) -> None:
    verb = verbs.add_parser("sweep", help="batch size x delay x workers x archives, each through its own server")
    _grid(verb)
    verb.add_argument("--workers", type=count, nargs="+", default=[1, 2], help="in all")
    verb.add_argument("--batches", type=count, nargs="+", default=[1, 4, 8])
    verb.add_argument("--delays", type=count, nargs="+", default=[1, 20], help="ms")
    verb.add_argument("--seconds", type=positive, default=10.0, help="of a level of load; each point has up to three")
    verb.add_argument("--photographs", type=Path, metavar="FOLDER", help="to send")
    verb.add_argument("--any-answer", action="store_true", help="for weights that were never trained")

    def call(given: argparse.Namespace) -> None:
        from archive.configure import Plan
        from load_tests import sweep

        grid = sweep.Grid(given.archives, given.workers, given.batches, given.delays, given.seconds)
        asked = ["--photographs", str(given.photographs.resolve())] if given.photographs else []
        asked += ["--any-answer"] if given.any_answer else []
        sweep.report(sweep.run(grid, given.base, Plan(given.preset, given.gpus), asked, given.results), given.results)

    verb.set_defaults(call=call)


def _tune(verbs: Any) -> None:
    verb = verbs.add_parser("tune", help="pick a point of a sweep and write its config.properties")
    _grid(verb)
    goal = verb.add_mutually_exclusive_group(required=True)
    goal.add_argument("--p99", type=positive, metavar="MS", help="the highest rate that keeps to it")
    goal.add_argument("--throughput", action="store_true", help="the highest rate")
    verb.add_argument("--output", type=Path, default=Path("build/config.properties"))
    watching = verb.add_argument_group("with --watch")
    watching.add_argument("--watch", action="store_true", help="keep a running server to --p99 by its workers instead")
    watching.add_argument("--min", type=count, default=1, help="workers")
    watching.add_argument("--max", type=count, default=1, help="workers")
    watching.add_argument("--model", default="centerface")
    watching.add_argument("--management", default=os.environ.get("MOGFACE_MANAGEMENT", "http://127.0.0.1:8081"))
    watching.add_argument("--metrics", default="http://127.0.0.1:8082")
    watching.add_argument("--token-file", type=Path, metavar="key_file.json")

    def call(given: argparse.Namespace) -> None:
        if given.watch:
            _watch(given)
            return
        from archive.configure import Plan
        from load_tests import tune

        tune.run(given.results, given.archives, given.p99, given.base, Plan(given.preset, given.gpus), given.output)

    verb.set_defaults(call=call)


def _watch(given: argparse.Namespace) -> None:
    import time

    from clients.autoscale import Observer, scaling
    from clients.errors import UsageError
    from clients.management import Management
    from clients.scaler import Policy
    from load_tests import watch

    if given.p99 is None:
        raise UsageError("--watch keeps to a goal: give --p99 MS")

    def stopped(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    with (
        Management(given.management, token=given.token_file) as management,
        Observer(management, given.metrics, given.model) as observer,
    ):
        watch.run(
            observer,
            given.model,
            scaling(management, given.management, given.model),
            given.p99,
            Policy(given.min, given.max),
            lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True),
            stopped,
        )


def _overhead(verbs: Any) -> None:
    verb = verbs.add_parser("overhead", help="what the handler costs outside the network")
    verb.add_argument("--mar", type=Path, default=_CENTERFACE)
    verb.add_argument("--rounds", type=count, default=200)

    def call(given: argparse.Namespace) -> None:
        from load_tests import overhead

        overhead.run(given.mar, given.rounds)

    verb.set_defaults(call=call)


def _client(verbs: Any) -> None:
    verb = verbs.add_parser("client", help="what the Python client costs a request")
    verb.add_argument("--rounds", type=count, default=200)

    def call(given: argparse.Namespace) -> None:
        from load_tests import client

        client.run(given.rounds)

    verb.set_defaults(call=call)


def _server(verbs: Any) -> None:
    verb = verbs.add_parser("server", help="time to ready, memory, answers a second over REST and gRPC by batch size")
    verb.add_argument("--config", type=Path, default=_BASE)
    verb.add_argument("--model", default="centerface")
    verb.add_argument("--users", type=count, nargs="+", default=[1, 8, 32])
    verb.add_argument("--batches", type=count, nargs="+", default=[1, 8])
    verb.add_argument("--seconds", type=positive, default=8.0, help="of a round")
    verb.add_argument("--rounds", type=count, default=3, help="of each, interleaved; medians are shown")

    def call(given: argparse.Namespace) -> None:
        from load_tests import server

        server.run(given.config, given.model, given.users, given.batches, given.seconds, given.rounds)

    verb.set_defaults(call=call)


def _network(verbs: Any) -> None:
    verb = verbs.add_parser("network", help="MogFace's graphs on a CPU's engines against ModelScope's eager network")
    verb.add_argument("--rounds", type=count, default=5, help="of each contender; the medians are shown")
    verb.add_argument("--height", type=count, default=480, help="of the image, px")
    verb.add_argument("--width", type=count, default=640, help="of the image, px")

    def call(given: argparse.Namespace) -> None:
        from load_tests import network

        network.run(given.height, given.width, given.rounds)

    verb.set_defaults(call=call)


def _video(verbs: Any) -> None:
    verb = verbs.add_parser("video", help="live sources: how many one server carries, their lag, what is dropped")
    verb.add_argument("--config", type=Path, default=_BASE)
    verb.add_argument("--model", default="centerface")
    verb.add_argument("--sources", type=count, nargs="+", default=[1, 2, 4, 8, 16, 30])
    verb.add_argument("--fps", type=positive, default=5.0, help="that are asked for of each")
    verb.add_argument("--seconds", type=positive, default=20.0, help="of a row")

    def call(given: argparse.Namespace) -> None:
        from load_tests import video

        video.run(given.config, given.model, given.sources, given.fps, given.seconds)

    verb.set_defaults(call=call)


def _bench(verbs: Any) -> None:
    verb = verbs.add_parser("bench", help="this project beside its peers: in process, plain TorchServe, plain Triton")
    verb.add_argument("--output", type=Path, default=Path("build/bench"), metavar="FOLDER")
    verb.add_argument("--models", nargs="+", choices=("mogface", "centerface"), default=["mogface", "centerface"])
    verb.add_argument("--rounds", type=count, default=5)
    verb.add_argument("--quick", action="store_true", help="every step once: the figures mean nothing")
    verb.add_argument("--table", type=Path, metavar="results.json", help="measure nothing: write README.md's table")
    verb.add_argument("--readme", type=Path, default=Path("README.md"))

    def call(given: argparse.Namespace) -> None:
        from load_tests import bench, report

        if given.table:
            changed = report.rewrite(given.table, given.readme)
            print(f"{given.readme}{'' if changed else '  (unchanged)'}")
            return
        order = bench.Order(tuple(given.models), rounds=given.rounds)
        bench.run(bench.Order.quick(given.models) if given.quick else order, given.output)

    verb.set_defaults(call=call)


if __name__ == "__main__":
    sys.exit(main())
