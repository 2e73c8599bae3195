"""``mogface-archive VERB``: from weights to a served archive."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from archive import build, centerface, configure, evaluate, gate, properties, serve, triton, wider
from archive.arguments import parser
from archive.build import Build, Wanted, Workspace
from archive.calibration import pictures
from archive.checkpoint import obtain
from archive.files import sha256, whole
from archive.subject import opened
from archive.verify import PHOTOGRAPH, verify
from handler.errors import ConfigError, MogFaceError
from handler.plans import Flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; 0 done, 1 refused or failed with the reason on the error stream, 2 wrong usage."""
    options = parser().parse_args(arguments)
    try:
        return _VERBS[options.verb](options)
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
    for path in Build(_wanted(options, engine="ort"), _workspace(options)).graphs().values():
        print(path)
    return 0


def _engine(options: argparse.Namespace) -> int:
    folders = Build(_wanted(options, engine="trt"), _workspace(options)).plans(
        library=options.library,
        targets=[target for target in options.target.split(",") if target],
        finest_batch=options.finest_batch,
        flags=Flags(options.optimization_level, options.workspace, options.sparse),
    )
    for folder in folders:
        print(folder)
    return 0


def _pack(options: argparse.Namespace) -> int:
    path, written = Build(_wanted(options), _workspace(options)).pack(options.plans)
    return _packed(path, written)


def _build(options: argparse.Namespace) -> int:
    path, written = Build(_wanted(options), _workspace(options)).archive(options.plans, _images(options))
    return _packed(path, written)


def _packed(path: Path, written: bool) -> int:
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
        if options.against:
            report = gate.against(options.against, mar, _images(options) or gate.known())
            print(report.table())
            report.refuse()
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    dataset = wider.Dataset.load(options.wider)
    method = evaluate.Method(options.canvas, options.multi_scale, options.score_threshold)
    with opened(options.mar, options.device) as subject:
        score = evaluate.evaluate(subject, dataset, options.results, method, sha256(options.mar))
    print(score.table())
    return 0


def _configure(options: argparse.Namespace) -> int:
    archives = [configure.read_archive(mar) for mar in build.archives(options.store)]
    if options.check:
        problems = configure.check(properties.read(options.check), archives, options.preset, options.gpus, options.mig)
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
        options.mig,
    )
    text = configure.configure(properties.read(options.base), archives, plan)
    with whole(options.output) as draft:
        draft.write_text(text, encoding="utf-8")
    print(f"{options.output}: {plan.preset}, {', '.join(f'{each.name} {each.version}' for each in archives)}")
    return 0


def _triton(options: argparse.Namespace) -> int:
    plan = triton.Plan.of(
        options.gpus, options.instances, options.max_batch, options.preferred, options.delay, options.number
    )
    for folder, written in triton.write(options.mar, options.output, plan):
        print(f"{folder}{'' if written else '  (unchanged)'}")
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


def _wanted(options: argparse.Namespace, engine: str = "") -> Wanted:
    return Wanted(
        options.model,
        weights=options.weights,
        engine=engine or options.engine,
        precision=options.precision,
        group_norm=options.group_norm,
        fp32_layers=options.fp32_layers,
        calibration=options.calibration,
        batch=options.batch,
        version=getattr(options, "version", build.VERSION),
        changes=_changes(getattr(options, "set", [])),
    )


def _changes(given: Sequence[tuple[str, object]]) -> dict[str, object]:
    """``a.b=1`` as ``{"a": {"b": 1}}``."""
    changes: dict[str, object] = {}
    for key, value in given:
        outer, dot, inner = key.partition(".")
        before = changes.get(outer)
        changes[outer] = {**(before if isinstance(before, dict) else {}), inner: value} if dot else value
    return changes


def _images(options: argparse.Namespace) -> list[Path]:
    return pictures(options.images) if options.images else []


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "weights": _weights,
    "export": _export,
    "engine": _engine,
    "pack": _pack,
    "build": _build,
    "verify": _verify,
    "evaluate": _evaluate,
    "configure": _configure,
    "triton": _triton,
    "serve": _serve,
    "demo": _demo,
    "env": _env,
}
