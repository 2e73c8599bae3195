"""What ``mogface-archive``'s verbs take on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from archive import configure
from archive.build import MODELS, VERSION
from archive.half import LAYERS
from archive.verify import PHOTOGRAPH
from handler.config import ENGINES, PRECISIONS
from handler.plans import LIBRARIES

if TYPE_CHECKING:
    # argparse has no public name for it, and at run time it takes no parameter.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def parser() -> argparse.ArgumentParser:
    """The whole of it; ``verb`` names the function that runs."""
    root = argparse.ArgumentParser(prog="mogface-archive", description="From weights to a served archive.")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_weights, _export, _engine, _build, _verify, _evaluate, _configure, _triton, _serve):
        add(verbs)
    return root


def _folders() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--build", type=Path, default=Path("build"), help="folder of weights, graphs and plans")
    shared.add_argument("--store", type=Path, default=Path("model_store"), help="TorchServe's model store")
    return shared


def _model() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("model", choices=MODELS)
    source = shared.add_mutually_exclusive_group()
    source.add_argument(
        "--weights", default="hub", metavar="hub|FILE|seeded:N", help="MogFace's: of the ModelScope hub, a file, random"
    )
    source.add_argument("--file", dest="weights", metavar="FILE", help="the same as --weights FILE")
    return shared


def _graphs() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--precision", choices=PRECISIONS, default="fp32")
    shared.add_argument("--group-norm", choices=("fp32", "fp16"), default="fp32", help="its arithmetic in FP16 graphs")
    shared.add_argument(
        "--fp32-layers",
        choices=tuple(LAYERS),
        default="stem",
        help="of the trunk, in FP16 graphs; backbone is nearest to FP32",
    )
    shared.add_argument("--calibration", type=Path, metavar="FOLDER", help="pictures of the kind served, for int8")
    shared.add_argument("--batch", type=int, help="images that run together; 8 where there is a GPU, else 1")
    return shared


def _weights(verbs: Verbs) -> None:
    verbs.add_parser("weights", parents=[_folders(), _model()], help="get a detector's weights")


def _export(verbs: Verbs) -> None:
    verbs.add_parser("export", parents=[_folders(), _model(), _graphs()], help="weights to ONNX graphs")


def _engine(verbs: Verbs) -> None:
    verb = verbs.add_parser("engine", parents=[_folders(), _model(), _graphs()], help="graphs to TensorRT plans")
    verb.add_argument("--library", choices=("auto", *LIBRARIES), default="auto")
    verb.add_argument("--target", default="", metavar="sm75,sm86", help="build ahead of time, with TensorRT-RTX")
    verb.add_argument("--finest-batch", type=int, default=4, help="images the finest level's heads run together")
    verb.add_argument("--optimization-level", type=int, default=3, help="0 (fast to build) to 5 (fast to run)")
    verb.add_argument(
        "--workspace", type=int, default=0, metavar="BYTES", help="scratch a tactic may use; 0 is no limit"
    )
    verb.add_argument("--sparse", action="store_true", help="allow 2:4 sparse kernels, for weights pruned that way")


def _build(verbs: Verbs) -> None:
    shared = [_folders(), _model(), _graphs()]
    for name, text in {
        "pack": "graphs or plans to an archive, unjudged",
        "build": "weights, graphs and archive, leaving out what is unchanged; judged against FP32",
    }.items():
        verb = verbs.add_parser(name, parents=shared, help=text)
        verb.add_argument("--engine", choices=("auto", *ENGINES), default="auto")
        verb.add_argument(
            "--plans", type=Path, nargs="+", default=[], metavar="FOLDER", help="for engine trt, ready-made"
        )
        verb.add_argument("--version", default=VERSION)
        verb.add_argument(
            "--set",
            type=_setting,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="a setting of detector.yaml, such as cache_bytes=100000000, draft=true, options.score_threshold=0.5",
        )
        if name == "build":
            verb.add_argument("--images", type=Path, metavar="FOLDER", help="pictures to judge on; else the known one")


def _setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _verify(verbs: Verbs) -> None:
    verb = verbs.add_parser("verify", help="check an archive's hashes and run it on its own")
    verb.add_argument("mar", type=Path, nargs="+")
    verb.add_argument("--against", type=Path, metavar="FP32.mar", help="compare faces with this archive's")
    verb.add_argument("--images", type=Path, metavar="FOLDER", help="pictures to compare on; else the known one")


def _evaluate(verbs: Verbs) -> None:
    verb = verbs.add_parser("evaluate", help="average precision on WIDER FACE, by its own protocol")
    verb.add_argument("mar", type=Path)
    verb.add_argument("--wider", type=Path, required=True, metavar="FOLDER", help="validation pictures and annotations")
    verb.add_argument("--results", type=Path, required=True, metavar="FOLDER", help="written in WIDER's form; resumes")
    verb.add_argument("--canvas", default="auto")
    verb.add_argument("--multi-scale", action="store_true", help="the published test: many scales, flips, box voting")
    verb.add_argument("--score-threshold", type=float, default=0.01)
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"))


def _configure(verbs: Verbs) -> None:
    verb = verbs.add_parser("configure", parents=[_folders()], help="config.properties for this machine, or check one")
    verb.add_argument("--preset", default="cpu", choices=configure.PRESETS)
    verb.add_argument("--gpus", type=int, default=0, help="cards, or MIG instances with --mig")
    verb.add_argument("--mig", default="", metavar="1g.5gb", help="what the cards are cut into")
    count = verb.add_mutually_exclusive_group()
    count.add_argument("--workers-per-gpu", type=int)
    count.add_argument("--workers", type=int, help="in all, on a CPU")
    verb.add_argument("--batch", type=int)
    verb.add_argument("--delay", type=int, default=1, help="ms")
    verb.add_argument("--response-timeout", type=int, default=120, help="s")
    verb.add_argument("--base", type=Path, default=Path("config.properties"), help="what everything else is taken from")
    verb.add_argument(
        "--output", type=Path, default=Path("build/config.properties"), help="default: build/config.properties"
    )
    verb.add_argument(
        "--check", type=Path, metavar="FILE", help="check this file against the model store; write nothing"
    )


def _triton(verbs: Verbs) -> None:
    verb = verbs.add_parser("triton", help="an archive to a Triton model repository")
    verb.add_argument("mar", type=Path)
    verb.add_argument("--output", type=Path, default=Path("build/triton"), metavar="FOLDER")
    verb.add_argument("--gpus", type=int, default=0)
    verb.add_argument("--instances", type=int, help="a GPU, or in all on a CPU; 2 a GPU, 1 on a CPU")
    verb.add_argument("--max-batch", type=int, help="32 on GPUs, 8 on a CPU")
    verb.add_argument("--preferred", type=int, nargs="*", help="batch sizes run at once; 4 8 16, or 4 8 on a CPU")
    verb.add_argument("--delay", type=int, default=500, metavar="US", help="that a request waits for others")
    verb.add_argument("--number", type=int, default=1, help="of the version folder")


def _serve(verbs: Verbs) -> None:
    config = argparse.ArgumentParser(add_help=False)
    config.add_argument("--config", type=Path, default=Path("config.properties"))
    verb = verbs.add_parser("serve", parents=[config], help="TorchServe in the foreground")
    verb.add_argument("model", nargs="+")
    verb = verbs.add_parser("demo", parents=[config], help="start a server, find a photograph's faces, stop it")
    verb.add_argument("--model", default="centerface")
    verb.add_argument("--photograph", type=Path, default=PHOTOGRAPH)
    verb.add_argument("--picture", type=Path, default=Path("build/demo.jpg"), help="where the annotated copy goes")
    verb = verbs.add_parser("env", parents=[config], help="shell exports for a bare torchserve --start")
    verb.add_argument("model", nargs="*", help="those that will be served together")
