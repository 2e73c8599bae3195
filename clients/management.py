"""Models and workers of a running server, by its management API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from tqdm import tqdm

from clients import http, wire
from clients.errors import BadAnswer, NotAuthorised, Refused, Unavailable, UsageError
from clients.token import Token, authorization
from clients.version import Version, read

ADDRESS = "http://127.0.0.1:8081"
_TIMEOUT_S = 30.0
_POLL_S = 0.1
_PAGE = 100
#: Of an answer, bytes: a worker is described by less than one kilobyte.
_LARGEST = 30_000_000
#: TorchServe's word for every version of a model.
ALL = "all"


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
        http.require(address, "management address")
        self._address = address
        self._token = Token(token, address, "management")
        with http.set_up():
            self._http = httpx.Client(base_url=address, headers=http.HEADERS, timeout=_TIMEOUT_S)

    def models(self) -> list[str]:
        """Names of the models that are served."""
        names: list[str] = []
        page: dict[str, str | int] = {"limit": _PAGE}
        while True:
            answer = self._call("GET", "/models", page)
            names += [read(model, "modelName", str) for model in read(answer, "models", list)]
            if "nextPageToken" not in answer:
                return names
            page["next_page_token"] = read(answer, "nextPageToken", str)

    def describe(self, model: str, version: str | None = None) -> list[Version]:
        """How a model is served: its default version, the one named, or with ``all`` every one.

        Raises:
            NotFound: it is not.
        """
        answer = self._call("GET", _path(model, version))
        if not isinstance(answer, list):
            raise BadAnswer(f"{self._address} described {model} by a {type(answer).__name__}: expected a list")
        if not answer or (len(answer) > 1 and version != ALL):
            raise BadAnswer(f"{self._address} described {model} by {len(answer)} versions: expected one")
        return [Version.parse(each) for each in answer]

    def version(self, model: str, version: str | None = None) -> Version:
        """How one version is served: the default one, or the one named.

        Raises:
            UsageError: ``all`` is asked for, which is not one.
            NotFound: it is not served.
        """
        if version == ALL:
            raise UsageError(f"version {version!r} is every one of {model}: name one of them")
        [found] = self.describe(model, version)
        return found

    def ready(self, model: str) -> bool:
        """Whether every version has at least one worker, and all are READY."""
        return all(version.ready for version in self.describe(model, ALL))

    def wait(self, model: str, seconds: float = 180.0) -> float:
        """Until the model is ready, with a bar on the terminal.

        Returns:
            Seconds it took.

        Raises:
            Unavailable: it was not after ``seconds``; its type is not_ready.
        """
        return self._until(model, ALL, seconds, lambda version: version.ready)

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
        if self._http.is_closed:
            raise UsageError("this Management is closed")
        with (
            http.translated(self._address, timeout_s),
            self._http.stream(
                method, path, params=parameters, headers=authorization(token), timeout=timeout_s
            ) as reply,
        ):
            status, body = reply.status_code, http.read(reply, _LARGEST)
        if status == 405:
            raise Refused(
                f"the server does not allow {method} {path}: to register and unregister models it needs "
                "enable_model_api=true in its config.properties",
                status=405,
            )
        value = wire.json_of(status, body)
        if not 200 <= status < 300:
            raise wire.failure(status, "", wire.excerpt(body))
        return value


def _path(model: str, version: str | None) -> str:
    return wire.path("models", model, *([version] if version else []))
