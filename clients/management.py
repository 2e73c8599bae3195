"""Models and workers of a running server, by its management API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from tqdm import tqdm

from clients import wire
from clients.errors import BadAnswer, NotAuthorised, Refused, Unavailable, Unreachable, UsageError
from clients.token import Token, authorization

ADDRESS = "http://127.0.0.1:8081"
_TIMEOUT_S = 30.0
_POLL_S = 0.1
_PAGE = 100
T = TypeVar("T")


@dataclass(frozen=True)
class Worker:
    """One process that runs a model.

    Attributes:
        id: TorchServe's own.
        status: TorchServe's own: READY, or UNLOADING while it has not loaded the model.
        pid: of its process; 0 while there is none.
        gpu: whether it was given one.
        memory: resident, bytes; 0 while unknown.
    """

    id: str
    status: str
    pid: int
    gpu: bool
    memory: int

    @property
    def ready(self) -> bool:
        """Whether it answers requests."""
        return self.status == "READY"


@dataclass(frozen=True)
class Version:
    """One version of a model, as it is served.

    Attributes:
        name: of the model.
        version: its own.
        min_workers: that are kept.
        max_workers: at most.
        batch_size: requests that run together at most.
        max_batch_delay_ms: that a batch waits for more requests, ms.
        queue_length: requests that wait for a worker; None where the server does not say.
        workers: its processes.
    """

    name: str
    version: str
    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay_ms: int
    queue_length: int | None
    workers: tuple[Worker, ...]

    @property
    def ready(self) -> bool:
        """At least one worker, all of them ready. TorchServe's ``/ping`` says Healthy long before."""
        return bool(self.workers) and all(worker.ready for worker in self.workers)


class Management:
    """The management API; a context manager.

    Args:
        address: ``http://HOST:PORT``.
        token: as AsyncClient's, but of the management API, whose variable is $MOGFACE_MANAGEMENT_TOKEN.

    Raises:
        UsageError: a bad address, a token file that cannot be read.

    Every method raises ClientError: NotAuthorised, NotFound, Unreachable, BadAnswer beside what it names itself.
    """

    def __init__(self, address: str = ADDRESS, token: str | Path | None = None) -> None:
        if not address.startswith(("http://", "https://")):
            raise UsageError(f"management address {address!r}: expected http://HOST:PORT")
        self._address = address
        self._token = Token(token, address, "management")
        try:
            self._http = httpx.Client(base_url=address, timeout=_TIMEOUT_S)
        except httpx.InvalidURL as error:
            raise UsageError(f"management address {address!r}: {error}") from error

    def models(self) -> list[str]:
        """Names of the models that are served."""
        names: list[str] = []
        page: dict[str, str | int] = {"limit": _PAGE}
        while True:
            answer = self._call("GET", "/models", page)
            names += [_read(model, "modelName", str) for model in _read(answer, "models", list)]
            if "nextPageToken" not in answer:
                return names
            page["next_page_token"] = answer["nextPageToken"]

    def describe(self, model: str, version: str | None = None) -> list[Version]:
        """How a model is served: its default version, the one named, or with ``all`` every one.

        Raises:
            NotFound: it is not.
        """
        answer = self._call("GET", _path(model, version))
        if not isinstance(answer, list):
            raise BadAnswer(f"{self._address} described {model} by a {type(answer).__name__}: expected a list")
        return [_version(each) for each in answer]

    def ready(self, model: str) -> bool:
        """Whether every version has at least one worker, and all are READY."""
        return all(version.ready for version in self.describe(model, "all"))

    def wait(self, model: str, seconds: float = 180.0) -> float:
        """Until the model is ready, with a bar on the terminal.

        Returns:
            Seconds it took.

        Raises:
            Unavailable: it was not after ``seconds``; its type is not_ready.
        """
        return self._until(model, "all", seconds, lambda version: version.ready)

    def scale(
        self, model: str, workers: int, *, version: str | None = None, wait: bool = True, timeout_s: float = 180.0
    ) -> None:
        """Have a model served by so many workers.

        TorchServe kills the workers that go: the batch that one has is answered WorkerDied, which clients send again.
        What waits in the queue is not touched.

        Args:
            model: its name.
            workers: 0 or more; with 0 every request is answered QueueFull.
            version: of the model; None is the default.
            wait: until exactly so many workers are there, all READY.
            timeout_s: to wait at most, s.

        Raises:
            Unavailable: they were not after ``timeout_s``; its type is not_ready.
        """
        if workers < 0:
            raise UsageError(f"workers is {workers}: expected 0 or more")
        self._call("PUT", _path(model, version), {"min_worker": workers, "max_worker": workers})
        if wait:
            self._until(
                model,
                version,
                timeout_s,
                lambda found: len(found.workers) == workers and all(worker.ready for worker in found.workers),
            )

    def register(
        self,
        url: str,
        *,
        model: str | None = None,
        workers: int = 1,
        batch_size: int | None = None,
        max_batch_delay_ms: int | None = None,
        response_timeout_s: int | None = None,
        startup_timeout_s: int | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        """Serve an archive, and wait until its workers are ready.

        Args:
            url: the archive's file name in the model store, or an address that the server allows.
            model: the name to serve it under; None is the archive's own.
            workers: to start.
            batch_size: requests that run together at most; None here and below is the server's default.
            max_batch_delay_ms: that a batch waits for more requests, ms.
            response_timeout_s: after which a worker that does not answer is ended, s.
            startup_timeout_s: after which a worker that does not load is ended, s.
            timeout_s: to wait at most, s.

        Raises:
            Refused: the server does not allow it; needs ``enable_model_api=true``.
        """
        given = {
            "model_name": model,
            "batch_size": batch_size,
            "max_batch_delay": max_batch_delay_ms,
            "response_timeout": response_timeout_s,
            "startup_timeout": startup_timeout_s,
        }
        parameters: dict[str, str | int] = {"url": url, "initial_workers": workers, "synchronous": "true"}
        parameters |= {name: value for name, value in given.items() if value is not None}
        self._call("POST", "/models", parameters, timeout_s)

    def unregister(self, model: str, version: str | None = None) -> None:
        """Serve a model no longer, or a version of it.

        Raises:
            Refused: as ``register``.
        """
        self._call("DELETE", _path(model, version))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Management:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _until(self, model: str, version: str | None, seconds: float, done: Callable[[Version], bool]) -> float:
        started = time.monotonic()
        with tqdm(
            desc=f"waiting for {model}", unit="worker", miniters=0, delay=2, dynamic_ncols=True, disable=None
        ) as bar:
            while True:
                found = self.describe(model, version)
                workers = [worker for each in found for worker in each.workers]
                ready = sum(worker.ready for worker in workers)
                bar.total = len(workers)
                # Unlike refresh(), update() keeps to the delay: what is ready at once shows no bar.
                bar.update(ready - bar.n)
                if all(map(done, found)):
                    return time.monotonic() - started
                if time.monotonic() - started > seconds:
                    raise Unavailable(
                        f"{model}: {ready} of {len(workers)} workers are ready after {seconds:g} s; the server's "
                        "logs/model_log.log says why",
                        type="not_ready",
                    )
                time.sleep(_POLL_S)

    def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | int] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Any:
        token = self._token.value
        try:
            return self._once(method, path, parameters, timeout_s, token)
        except NotAuthorised:
            renewed = self._token.renew(token)
            if renewed is None:
                raise
        return self._once(method, path, parameters, timeout_s, renewed)

    def _once(
        self, method: str, path: str, parameters: Mapping[str, str | int] | None, timeout_s: float, token: str | None
    ) -> Any:
        try:
            reply = self._http.request(method, path, params=parameters, headers=authorization(token), timeout=timeout_s)
        except httpx.TimeoutException as error:
            raise Unreachable(f"{self._address} gave no answer within {timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(
                f"{self._address} cannot be reached: {type(error).__name__} {error}: is the server running there?"
            ) from error
        if reply.status_code == 405:
            raise Refused(
                f"the server does not allow {method} {path}: to register and unregister models it needs "
                "enable_model_api=true in its config.properties",
                status=405,
            )
        value = wire.json_of(reply.status_code, reply.content)
        if not reply.is_success:
            raise wire.failure(reply.status_code, "", reply.text[:200])
        return value


def _path(model: str, version: str | None) -> str:
    return "/models/" + "/".join(quote(part, safe="") for part in (model, version) if part)


def _version(value: object) -> Version:
    queue = value.get("jobQueueStatus") if isinstance(value, dict) else None
    return Version(
        name=_read(value, "modelName", str),
        version=_read(value, "modelVersion", str),
        min_workers=_read(value, "minWorkers", int),
        max_workers=_read(value, "maxWorkers", int),
        batch_size=_read(value, "batchSize", int),
        max_batch_delay_ms=_read(value, "maxBatchDelay", int),
        queue_length=None if queue is None else _read(queue, "pendingRequests", int),
        workers=tuple(_worker(each) for each in _read(value, "workers", list)),
    )


def _worker(value: object) -> Worker:
    return Worker(
        id=_read(value, "id", str),
        status=_read(value, "status", str),
        pid=_read(value, "pid", int),
        gpu=_read(value, "gpu", bool),
        memory=_read(value, "memoryUsage", int),
    )


def _read(value: object, name: str, kind: type[T]) -> T:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise BadAnswer(f"{name} of the server's description is {found!r}: expected {kind.__name__}")
    return found
