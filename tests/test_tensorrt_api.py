"""The builder and the runner use only names that TensorRT 10.16, 11.4 and TensorRT-RTX all have.

``data/tensorrt_api.json`` holds the names that the libraries' own bindings list, by version and class.
"""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

from tests.requirements import lacking

ROOT = Path(__file__).parents[1]
API: dict[str, dict[str, list[str]]] = json.loads((ROOT / "tests" / "data" / "tensorrt_api.json").read_text())
FILES = (
    "handler/engines/trt.py",
    *(f"handler/tensorrt/{name}.py" for name in ("execution", "graphs", "library")),
    "archive/engine.py",
)
#: What these files call an object of each class.
VARIABLES = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "cache": "ITimingCache",
    "runtime": "Runtime",
    "_engine": "ICudaEngine",
    "_context": "IExecutionContext",
    "context": "IExecutionContext",
}
MODULES = {"trt", "library"}
#: TensorRT-RTX alone has them; archive/engine.py asks for the library's name first.
RTX_ONLY = {
    ("names", "ComputeCapability"),
    ("IBuilderConfig", "num_compute_capabilities"),
    ("IBuilderConfig", "set_compute_capability"),
}


def used(source: str) -> set[tuple[str, str]]:
    """(class, name) of every attribute that is taken of the library's modules, enumerations and objects."""
    found = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        last = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        if last in MODULES and not node.attr.startswith("__"):
            found.add(("names", node.attr))
        elif last in VARIABLES:
            found.add((VARIABLES[last], node.attr))
        elif isinstance(owner, ast.Attribute) and last in API["rtx"]:
            found.add((last, node.attr))
    return found


def missing(names: set[tuple[str, str]], version: str) -> set[tuple[str, str]]:
    return {(kind, name) for kind, name in names if name not in API[version].get(kind, [])}


def test_only_common_names() -> None:
    names = set().union(*(used((ROOT / path).read_text()) for path in FILES))
    assert len(names) > 40
    assert {kind for kind, _ in names} >= set(VARIABLES.values())
    assert {name for _, name in names} >= {
        "execute_async_v3",
        "STRONGLY_TYPED",
        "USER_MANAGED",
        "device_memory_size_v2",
    }
    assert missing(names, "10.16") == RTX_ONLY
    assert missing(names, "11.4") == RTX_ONLY
    assert missing(names, "rtx") == set()


@pytest.mark.parametrize(
    "old",
    [
        "config.set_flag(trt.BuilderFlag.FP16)",
        "config.max_workspace_size = 1",
        "self._engine.num_bindings",
        "self._engine.device_memory_size",
        "context.execute_async_v2(1)",
        "builder.build_engine(1)",
        "parser.supports_model(1)",
        "trt.IInt8Calibrator",
        "trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH",
    ],
)
def test_old_names_are_seen(old: str) -> None:
    assert missing(used(old), "11.4")


def test_no_name_goes_round_this_test() -> None:
    """Neither by getattr nor by another variable."""
    for path in FILES:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("getattr", "setattr", "hasattr"), path


def test_names_on_the_real_library() -> None:
    """Those whose class is not in the tables, and the tables themselves."""
    try:
        rtx = importlib.import_module("tensorrt_rtx")
    except ImportError as error:
        lacking("tensorrt_rtx", str(error))
    for kind, names in API["rtx"].items():
        if kind == "names":
            continue
        assert set(names) - {"NONE"} <= set(dir(getattr(rtx, kind))), kind
    for kind, name in (
        ("IOptimizationProfile", "set_shape"),
        ("ILogger", "ERROR"),
        ("ILogger", "INTERNAL_ERROR"),
        ("TensorIOMode", "INPUT"),
        ("ITensor", "dtype"),
    ):
        assert hasattr(getattr(rtx, kind), name)
