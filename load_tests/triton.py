"""A Triton server on free ports, and requests to it by the KServe protocol that it speaks, version 2."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx
import psutil

from archive.server import NotReady
from handler.errors import EnvironmentFault

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "deploy" / "triton" / "tritonserver"
ENVIRONMENT = Path(os.environ.get("TRITON_ENV", ROOT / "build" / "triton-env"))
_PORTS = ("http", "grpc", "metrics")


def require() -> None:
    """Raises EnvironmentFault where there is no Triton on this machine."""
    if not (ENVIRONMENT / ".ready").exists():
        raise EnvironmentFault(f"no Triton in {ENVIRONMENT}: run `make triton-env`")


def version() -> str:
    """Of the package that the server comes in."""
    [folder] = ENVIRONMENT.glob("lib/python3.*/site-packages/nvidia_pytriton-*.dist-info")
    return folder.name.removesuffix(".dist-info").replace("_", "-", 1)


class Triton:
    """Triton in a process of its own; a context manager that stops it.

    Args:
        repository: of models.
        output: where its console goes.

    Attributes:
        ports: by ``http``, ``grpc`` and ``metrics``, once it has been started.
    """

    def __init__(self, repository: Path, output: IO[bytes]) -> None:
        require()
        self._repository = repository
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self.ports: dict[str, int] = {}

    @property
    def address(self) -> str:
        """Of its HTTP service."""
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def pid(self) -> int:
        """Of its process; the models' are its children."""
        assert self._process is not None
        return self._process.pid

    def wait(self, seconds: float = 300.0) -> None:
        """Until every model is loaded and has been warmed up.

        Raises:
            NotReady: it ended, or time ran out.
        """
        assert self._process is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise NotReady(f"Triton ended with {self._process.returncode} before it was ready: its output says why")
            try:
                if httpx.get(f"{self.address}/v2/health/ready", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise NotReady(f"Triton was not ready after {seconds:g} s")

    def statistics(self, model: str) -> dict[str, float]:
        """Its own metrics of a model, by their names without ``nv_inference_``: ``count``, ``exec_count`` ..."""
        text = httpx.get(f"http://127.0.0.1:{self.ports['metrics']}/metrics", timeout=10).text
        found = re.findall(rf'^nv_inference_(\w+){{model="{re.escape(model)}",[^}}]*}} ([\d.e+]+)$', text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def __enter__(self) -> Triton:
        self.ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        arguments = [f"--{name}-port={port}" for name, port in self.ports.items()]
        self._process = subprocess.Popen(
            [str(LAUNCHER), f"--model-repository={self._repository}", *arguments],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TRITON_ENV": str(ENVIRONMENT)},
            # An interrupt at the terminal reaches this process, which then stops it in order.
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in psutil.wait_procs(family, timeout=5)[1]:
            process.kill()


def body(image: bytes, output: str = "faces") -> tuple[bytes, dict[str, str]]:
    """A request of one photograph for one text output, as bytes and headers: the picture goes as it is, not in JSON."""
    raw = struct.pack("<I", len(image)) + image
    told: dict[str, Any] = {
        "inputs": [
            {"name": "image", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        ],
        "outputs": [{"name": output, "parameters": {"binary_data": True}}],
    }
    head = json.dumps(told).encode()
    return head + raw, {
        "Inference-Header-Content-Length": str(len(head)),
        "Content-Type": "application/octet-stream",
    }


def text(response: httpx.Response) -> bytes:
    """The text output in an answer to :func:`body`; of one that failed, what it says.

    Raises:
        ValueError: it has no such form.
    """
    if response.status_code != 200:
        return str(response.json()["error"]).encode()
    head = int(response.headers["Inference-Header-Content-Length"])
    (size,) = struct.unpack_from("<I", response.content, head)
    found = response.content[head + 4 :]
    if len(found) != size:
        raise ValueError(f"Triton announced {size} bytes and sent {len(found)}")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has; another program may take one before they are used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
