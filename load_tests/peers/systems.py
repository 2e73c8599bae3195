"""The systems that are measured side by side, each started for its cells and stopped after them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive

from archive import properties
from archive.pack import read_artifacts
from archive.serve import isolated
from archive.server import Server
from load_tests import triton
from load_tests.errors import LoadFailed
from load_tests.peers import loops
from load_tests.peers.loops import Load, Timed

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_TIMEOUT_S = 600
#: Of the photographs' form; the same over HTTP for all.
_TYPE = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True)
class Subject:
    """One model, as each system takes it.

    Attributes:
        name: ``mogface`` or ``centerface``.
        mar: this project's archive of it.
        weights: the same weights, as the peer's detector reads them.
    """

    name: str
    mar: Path
    weights: Path


@dataclass(frozen=True)
class Running:
    """A system that has been started.

    Attributes:
        pid: of the process at the root of all that belongs to it.
        measure: puts a load of these photographs (files) on it, with a seed.
    """

    pid: int
    measure: Callable[[Load, Sequence[Path], int], list[Timed]]


#: Starts a subject in a folder of its own, and stops it when the block ends.
Start = Callable[[Subject, Path], contextlib.AbstractContextManager[Running]]


@contextlib.contextmanager
def in_process(subject: Subject, folder: Path) -> Iterator[Running]:
    """The peer's detector in one process, without a server."""
    _peer(subject, folder / "peer")
    process = subprocess.Popen(
        [sys.executable, "-m", "load_tests.peers.process", str(folder / "peer")],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "console.log").open("wb"),
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = process.stdin, process.stdout

    def line() -> str:
        found = told.readline()
        if not found:
            raise LoadFailed(f"{subject.name} in process ended: {_last(folder / 'console.log')}")
        return found

    def measure(load: Load, pictures: Sequence[Path], seed: int) -> list[Timed]:
        asked.write(json.dumps(asdict(load) | {"pictures": list(map(str, pictures)), "seed": seed}) + "\n")
        asked.flush()
        return [Timed(**row) for row in json.loads(line())]

    try:
        line()
        yield Running(process.pid, measure)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def plain_torchserve(subject: Subject, folder: Path) -> Iterator[Running]:
    """TorchServe with the plainest handler: one photograph after another, TorchServe's own defaults, one worker."""
    _peer(subject, folder / "peer")
    store = folder / "model_store"
    store.mkdir()
    generate_model_archive(
        ModelArchiverConfig(
            model_name=subject.name,
            version="1.0",
            handler=str(_HERE / "torchserve_handler.py"),
            extra_files=str(folder / "peer"),
            export_path=str(store),
            archive_format="zip-store",
            force=True,
        )
    )
    # Of the shipped configuration nothing but ports: what is not said is TorchServe's default.
    ports = properties.on_free_ports({})
    config = folder / "config.properties"
    values = {"model_store": str(store), "default_workers_per_model": "1", "disable_token_authorization": "true"}
    config.write_text(properties.render(ports | values), encoding="utf-8")
    with _torchserve(config, subject.name, folder) as running:
        yield running


@contextlib.contextmanager
def served(subject: Subject, folder: Path, batch: int | None = None) -> Iterator[Running]:
    """TorchServe with this project's archive and its shipped configuration.

    Args:
        subject: to serve.
        folder: for everything.
        batch: another ``batchSize`` than the shipped one.
    """
    config = isolated(_ROOT / "config.properties", folder)
    values = properties.read(config)
    store = folder / "model_store"
    store.mkdir()
    shutil.copy(subject.mar, store / f"{subject.name}.mar")
    models = properties.models(values)
    if batch is not None:
        models[subject.name][str(read_artifacts(subject.mar)["version"])]["batchSize"] = batch
    values |= {"model_store": str(store), "models": json.dumps(models)}
    config.write_text(properties.render(values), encoding="utf-8")
    with _torchserve(config, subject.name, folder) as running:
        yield running


def served_one_by_one(subject: Subject, folder: Path) -> contextlib.AbstractContextManager[Running]:
    """The same with ``batchSize`` 1."""
    return served(subject, folder, 1)


@contextlib.contextmanager
def plain_triton(subject: Subject, folder: Path) -> Iterator[Running]:
    """Triton with dynamic batching round the peer's detector in its Python backend, one instance."""
    version = folder / "models" / subject.name / "1"
    _peer(subject, version)
    shutil.copy(_HERE / "triton_model.py", version / "model.py")
    (version.parent / "config.pbtxt").write_text(_TRITON.format(name=subject.name), encoding="utf-8")
    with (
        (folder / "console.log").open("wb") as console,
        triton.Triton(folder / "models", console) as server,
        _client() as http,
    ):
        server.wait()
        address = f"{server.address}/v2/models/{subject.name}/infer"

        def detect(photograph: bytes) -> bytes:
            content, headers = triton.body(photograph)
            response = http.post(address, content=content, headers=headers)
            if response.status_code != 200:
                raise LoadFailed(f"Triton answered {response.status_code}: {response.text[:500]}")
            return triton.text(response)

        yield Running(server.pid, _over(detect))


_TRITON = """\
name: "{name}"
backend: "python"
max_batch_size: 8
input [ {{ name: "image" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "faces" data_type: TYPE_STRING dims: [ 1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""

#: In the order of the table. The first gives the answers that all others are compared with.
SYSTEMS: dict[str, Start] = {
    "in process": in_process,
    "TorchServe, plain handler": plain_torchserve,
    "Triton, plain model": plain_triton,
    "this project": served,
}
#: Beside these where latencies at an equal rate are compared.
ONE_BY_ONE: dict[str, Start] = {"this project, batchSize 1": served_one_by_one}


@contextlib.contextmanager
def _torchserve(config: Path, name: str, folder: Path) -> Iterator[Running]:
    with (
        (folder / "console.log").open("wb") as console,
        Server(config, [f"{name}.mar"], folder, folder / "tmp", console) as server,
        _client() as http,
    ):
        server.wait([name], _TIMEOUT_S)
        address, headers = f"{server.inference}/predictions/{name}", _TYPE | server.headers()

        def detect(photograph: bytes) -> bytes:
            response = http.post(address, content=photograph, headers=headers)
            if response.status_code != 200:
                raise LoadFailed(f"TorchServe answered {response.status_code}: {response.text[:500]}")
            return response.content

        yield Running(server.pid, _over(detect))


def _over(detect: loops.Detect) -> Callable[[Load, Sequence[Path], int], list[Timed]]:
    def measure(load: Load, pictures: Sequence[Path], seed: int) -> list[Timed]:
        return loops.run(detect, [path.read_bytes() for path in pictures], load, seed)

    return measure


def _client() -> httpx.Client:
    # As many connections as there are clients.
    return httpx.Client(timeout=_TIMEOUT_S, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))


def _peer(subject: Subject, folder: Path) -> None:
    """What a peer's archive or repository holds beside its entry file."""
    folder.mkdir(parents=True)
    shutil.copy(_HERE / "detector.py", folder)
    shutil.copy(subject.weights, folder)
    peer = {"detector": subject.name, "weights": subject.weights.name}
    (folder / "peer.json").write_text(json.dumps(peer), encoding="utf-8")


def _last(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
