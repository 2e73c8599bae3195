"""``mogface-archive VERB``: from weights to a served archive."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from archive import build, centerface, configure, properties, serve
from archive.build import MODELS, VERSION, Workspace
from archive.checkpoint import obtain
from archive.files import sha256, whole
from archive.verify import PHOTOGRAPH, verify
from handler.errors import ConfigError, MogFaceError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; 0 done, 1 refused or failed with the reason on the error stream, 2 wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (MogFaceError, OSError) as error:
        print(f"mogface-archive {options.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mogface-archive: interrupted", file=sys.stderr)
        return 130


def _weights(options: argparse.Namespace) -> int:
    if options.model == "centerface":
        path = centerface.fetch(_workspace(options).weights())
        print(f"{path}  sha256 {sha256(path)}")
        return 0
    checkpoint = obtain(options.weights)
    print(f"{checkpoint.label}: {len(checkpoint.state)} tensors, names and shapes as the network's")
    return 0


def _export(options: argparse.Namespace) -> int:
    workspace = _workspace(options)
    if options.model == "centerface":
        graphs = build.export_centerface(workspace)
    else:
        graphs = build.export_mogface(workspace, obtain(options.weights))
    for path in graphs.values():
        print(path)
    return 0


def _build(options: argparse.Namespace) -> int:
    path, written = build.build(options.model, _workspace(options), options.weights, options.engine, options.version)
    print(f"{path}  sha256 {sha256(path)}{'' if written else '  (unchanged)'}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    for mar in options.mar:
        found = verify(mar)
        answer = found["answer"]
        print(f"{mar}: whole, and runs by itself")
        for key in ("name", "version", "detector", "weights", "engine", "precision", "sha256"):
            print(f"  {key:<10} {found[key]}")
        print(f"  {'files':<10} {len(found['files'])}, each as its hash says")
        network = answer["timing_ms"]["network"]
        seen = f"{len(answer['faces'])} faces on {PHOTOGRAPH.name} at {answer['canvas']}, {network:.0f} ms of network"
        print(f"  {'answer':<10} {seen}")
    return 0


def _configure(options: argparse.Namespace) -> int:
    archives = [configure.read_archive(mar) for mar in build.archives(options.store)]
    if options.check:
        problems = configure.check(properties.read(options.check), archives, options.preset, options.gpus)
        if problems:
            raise ConfigError(f"{options.check}:\n" + "\n".join(f"  {problem}" for problem in problems))
        print(f"{options.check}: TorchServe will do what it says, for {', '.join(each.file for each in archives)}")
        return 0
    workers, other = options.workers, options.workers_per_gpu
    if options.gpus:
        workers, other = other, workers
    if other is not None:
        raise ConfigError("--workers counts a CPU host's workers, --workers-per-gpu goes with --gpus")
    plan = configure.Plan(
        options.preset,
        options.gpus,
        workers,
        options.batch,
        options.delay,
        options.response_timeout,
    )
    text = configure.configure(properties.read(options.base), archives, plan)
    with whole(options.output) as draft:
        draft.write_text(text, encoding="utf-8")
    print(f"{options.output}: {plan.preset}, {', '.join(f'{each.name} {each.version}' for each in archives)}")
    return 0


def _serve(options: argparse.Namespace) -> int:
    return serve.serve(options.config, options.model)


def _demo(options: argparse.Namespace) -> int:
    return serve.demo(options.config, options.photograph, options.picture, options.model)


def _env(options: argparse.Namespace) -> int:
    print(serve.env(options.config.resolve(), options.model))
    return 0


def _workspace(options: argparse.Namespace) -> Workspace:
    return Workspace(options.build, options.store)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mogface-archive", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    folders = argparse.ArgumentParser(add_help=False)
    folders.add_argument("--build", type=Path, default=Path("build"), help="folder of weights and graphs")
    folders.add_argument("--store", type=Path, default=Path("model_store"), help="TorchServe's model store")
    config = argparse.ArgumentParser(add_help=False)
    config.add_argument("--config", type=Path, default=Path("config.properties"))

    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("model", choices=MODELS)
    source = model.add_mutually_exclusive_group()
    source.add_argument(
        "--weights", default="hub", metavar="hub|FILE|seeded:N", help="MogFace's: of the ModelScope hub, a file, random"
    )
    source.add_argument("--file", dest="weights", metavar="FILE", help="the same as --weights FILE")

    verb = verbs.add_parser("weights", parents=[folders, model], help="get a detector's weights")
    verb.set_defaults(run=_weights)

    verb = verbs.add_parser("export", parents=[folders, model], help="weights to ONNX graphs")
    verb.set_defaults(run=_export)

    verb = verbs.add_parser(
        "build", parents=[folders, model], help="weights, graphs and archive, leaving out what is unchanged"
    )
    verb.add_argument("--engine", default="auto", help="auto or ort")
    verb.add_argument("--version", default=VERSION)
    verb.set_defaults(run=_build)

    verb = verbs.add_parser("verify", help="check an archive's hashes and run it on its own")
    verb.add_argument("mar", type=Path, nargs="+")
    verb.set_defaults(run=_verify)

    verb = verbs.add_parser(
        "configure", parents=[folders], help="write config.properties for this machine, or check one"
    )
    verb.add_argument("--preset", default="cpu", choices=configure.PRESETS)
    verb.add_argument("--gpus", type=int, default=0)
    count = verb.add_mutually_exclusive_group()
    count.add_argument("--workers-per-gpu", type=int)
    count.add_argument("--workers", type=int, help="in all, on a CPU")
    verb.add_argument("--batch", type=int)
    verb.add_argument("--delay", type=int, default=1, help="ms")
    verb.add_argument("--response-timeout", type=int, default=120, help="s")
    verb.add_argument("--base", type=Path, default=Path("config.properties"), help="what everything else is taken from")
    verb.add_argument("--output", type=Path, default=Path("config.properties"))
    verb.add_argument(
        "--check", type=Path, metavar="FILE", help="check this file against the model store; write nothing"
    )
    verb.set_defaults(run=_configure)

    verb = verbs.add_parser("serve", parents=[config], help="TorchServe in the foreground")
    verb.add_argument("model", nargs="+")
    verb.set_defaults(run=_serve)

    verb = verbs.add_parser("demo", parents=[config], help="start a server, find a photograph's faces, stop it")
    verb.add_argument("--model", default="centerface")
    verb.add_argument("--photograph", type=Path, default=PHOTOGRAPH)
    verb.add_argument("--picture", type=Path, default=Path("build/demo.jpg"), help="where the annotated copy goes")
    verb.set_defaults(run=_demo)

    verb = verbs.add_parser("env", parents=[config], help="shell exports for a bare torchserve --start")
    verb.add_argument("model", nargs="*", help="those that will be served together")
    verb.set_defaults(run=_env)
    return parser
