"""Two servers that are hurt in the same way: this project's, and TorchServe with the handler of its tutorials.

Both have one worker on CenterFace's same graph at 160x160, batches of eight, a delay of 1 ms and the same time and size
for an answer. All else is what each ships.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive import properties
from archive.build import VERSION
from archive.pack import ARTIFACTS, Recipe, pack
from archive.serve import isolated
from archive.server import Server
from handler.config import FILE, Settings
from handler.geometry import Canvas
from tests.recovery import fakes

ROOT = Path(__file__).resolve().parents[2]
SIDE = 160
#: s that a batch may take to begin its images (this project's), and to be answered at all (TorchServe's).
DEADLINE_S, RESPONSE_S = 2.0, 6
#: Of an answer, bytes: TorchServe's limit, and this project's own under it.
RESPONSE_BYTES, OWN_BYTES = 400_000, 300_000
_GRAPH = "graphs/centerface.onnx"


@dataclass(frozen=True)
class Subject:
    """A server under trial.

    Attributes:
        name: for tables.
        server: that runs.
        model: its name.
        told: what of a parsed answer has to be the same every time.
        faces: how many an answer lists.
    """

    name: str
    server: Server
    model: str
    told: Callable[[Any], object]
    faces: Callable[[Any], int]

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What the management API says of each."""
        return [worker for version in self.server.describe(self.model) for worker in version["workers"]]

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [worker["pid"] for worker in self.workers]

    def address(self, transport: str) -> str:
        """Of ``rest`` or ``grpc``."""
        if transport == "rest":
            return self.server.inference
        return f"grpc://127.0.0.1:{self.server.values['grpc_inference_port']}"


@contextmanager
def ours(mar: Path, folder: Path) -> Iterator[Subject]:
    """This project's server, as it ships it.

    Args:
        mar: CenterFace's archive.
        folder: an empty one, for all that it writes.
    """
    store = folder / "store"
    store.mkdir(parents=True)
    pack_ours(mar, store)
    entry = properties.models(properties.read(ROOT / "config.properties"))["centerface"]
    entry[VERSION]["responseTimeout"] = RESPONSE_S
    config = isolated(ROOT / "config.properties", folder)
    values = properties.read(config) | {
        "model_store": str(store),
        "models": json.dumps({"faulty": entry}),
        "max_response_size": str(RESPONSE_BYTES),
    }
    with _running(values, config, "faulty") as server:

        def told(answer: Any) -> object:
            # But for times, and how many requests happened to run together.
            return answer["faces"], answer["image"]

        yield Subject("this project", server, "faulty", told, lambda answer: len(answer["faces"]))


@contextmanager
def plain(mar: Path, folder: Path) -> Iterator[Subject]:
    """TorchServe with the plain handler and its own defaults. Arguments as for :func:`ours`."""
    store = folder / "store"
    store.mkdir(parents=True)
    _pack_plain(mar, store, folder)
    settings = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 8, "maxBatchDelay": 1, "responseTimeout": RESPONSE_S}
    values = properties.on_free_ports(properties.read(ROOT / "config.properties"))
    ports = {key: values[key] for key in (*properties.ADDRESSES, *properties.GRPC_PORTS)}
    values = ports | {
        "model_store": str(store),
        "models": json.dumps({"plain": {VERSION: settings}}),
        "max_response_size": str(RESPONSE_BYTES),
    }
    with _running(values, folder / "config.properties", "plain") as server:
        yield Subject("plain TorchServe", server, "plain", lambda answer: answer, len)


@contextmanager
def _running(values: Mapping[str, str], config: Path, model: str) -> Iterator[Server]:
    config.write_text(properties.render(values), encoding="utf-8")
    folder = config.parent
    with (
        (folder / "console.log").open("wb") as console,
        Server(config, [f"{model}.mar"], folder, folder / "tmp", console) as server,
    ):
        server.wait([model])
        yield server


def pack_ours(mar: Path, store: Path) -> Path:
    """CenterFace at a small canvas, with the fake behind it, as ``faulty.mar``."""
    unpacked = store.parent / "unpacked"
    with zipfile.ZipFile(mar) as archive:
        archive.extractall(unpacked)
    settings = Settings.load(unpacked / FILE)
    limits = dataclasses.replace(settings.limits, response_bytes=OWN_BYTES)
    settings = dataclasses.replace(
        settings, canvases=(Canvas(SIDE, SIDE),), long_side=SIDE, deadline_s=DEADLINE_S, limits=limits
    )
    real, faulty = store.parent / "real.mar", store / "faulty.mar"
    pack(Recipe("faulty", VERSION, settings, {"centerface.onnx": unpacked / _GRAPH}), real)
    member = "handler/detectors/centerface.py"
    with zipfile.ZipFile(real) as archive, zipfile.ZipFile(faulty, "w") as changed:
        content = {name: archive.read(name) for name in archive.namelist()}
        content[member] += fakes.OURS.encode()
        listed = json.loads(content[ARTIFACTS])
        listed["files"][member] = hashlib.sha256(content[member]).hexdigest()
        content[ARTIFACTS] = json.dumps(listed).encode()
        for name, data in content.items():
            changed.writestr(name, data)
    return faulty


def _pack_plain(mar: Path, store: Path, folder: Path) -> None:
    """By TorchServe's own archiver, as its tutorials do it."""
    with zipfile.ZipFile(mar) as archive:
        graph = archive.read(_GRAPH)
    (folder / "centerface.onnx").write_bytes(graph)
    handler = folder / "plain_handler.py"
    code = Path(__file__).with_name("plain_handler.py").read_text(encoding="utf-8")
    handler.write_text(code + fakes.PLAIN, encoding="utf-8")
    archiver = Path(sys.executable).parent / "torch-model-archiver"
    command = [str(archiver), "--model-name", "plain", "--version", VERSION, "--handler", str(handler)]
    command += ["--extra-files", str(folder / "centerface.onnx"), "--export-path", str(store)]
    # It works in a folder of the model's name in the temporary folder, and empties that first.
    temp = folder / "archiver"
    temp.mkdir()
    subprocess.run(command, env=os.environ | {"TMPDIR": str(temp)}, check=True, capture_output=True)
