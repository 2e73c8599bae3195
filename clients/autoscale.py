"""Workers by the load: what a server says, decided by ``clients.scaler``, done one worker at a time."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterator

import httpx

from clients import room
from clients.errors import BadAnswer, ServerFault, Unavailable, Unreachable, UsageError
from clients.management import Management
from clients.scaler import Observation, Policy, State, decide

_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_REQUESTS = "ts_inference_requests_total"
_QUEUE = "ts_queue_latency_microseconds"
_BUSY = "mogface_batch_seconds_sum"


class Observer:
    """Looks at one model of a server; a context manager.

    Args:
        management: of the server.
        metrics: address of its metrics.
        model: to look at.
        version: of it; None is the default one.
    """

    def __init__(self, management: Management, metrics: str, model: str, version: str | None = None) -> None:
        self._management = management
        self._address = f"{metrics.rstrip('/')}/metrics"
        self._model = model
        self._version = version
        self._http = httpx.Client(timeout=10.0)

    def observe(self) -> Observation:
        """What the server says now.

        Raises:
            Unavailable: it does not answer.
            ServerFault: it answers with a fault of its own.
            Refused: no such model, no valid token.
            UsageError: it gives no metrics.
            BadAnswer: what answers is no TorchServe.
        """
        [version] = self._management.describe(self._model, self._version)
        if version.queue_length is None:
            raise BadAnswer(
                f"the server does not say how many requests wait for {self._model}: expected TorchServe 0.12"
            )
        # TorchServe counts what named no version as of "default".
        versions = {version.version} if self._version else {version.version, "default"}
        totals = totals_of(self.metrics(), self._model, versions)
        return Observation(
            at=time.monotonic(),
            wanted=version.min_workers,
            workers=len(version.workers),
            ready=sum(worker.ready for worker in version.workers),
            pending=version.queue_length,
            requests=totals[_REQUESTS],
            queue_s=totals[_QUEUE] / 1e6,
            busy_s=totals[_BUSY],
        )

    def metrics(self) -> str:
        """What the metrics address says now, in Prometheus's format.

        Raises:
            Unreachable: it does not answer, or a proxy before it has no server.
            BadAnswer: it answers with another status than 200.
            UsageError: it is no address.
        """
        try:
            answer = self._http.get(self._address)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                # Of a proxy, whose server is away.
                raise Unreachable(f"{self._address} answered with status {error.response.status_code}") from error
            raise BadAnswer(f"{self._address} answered with status {error.response.status_code}") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UsageError(f"--metrics {self._address}: {error}") from error
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._address}: {error or type(error).__name__}") from error
        return answer.text

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *reason: object) -> None:
        self._http.close()


def totals_of(text: str, model: str, versions: Collection[str]) -> dict[str, float]:
    """The totals of a model that the decision needs, out of what a server's metrics address says.

    Args:
        text: in Prometheus's format.
        model: of the totals.
        versions: of the model, as the labels name them.

    Raises:
        UsageError: there are no such totals: they are in TorchServe's log, or not declared.
        BadAnswer: one of them is no number.
    """
    totals = dict.fromkeys((_REQUESTS, _QUEUE, _BUSY), 0.0)
    for name in totals:
        if f"# TYPE {name} counter" not in text:
            raise UsageError(
                f"the metrics have no {name}: config.properties needs metrics_mode=prometheus and the metrics_config "
                "that it is shipped with"
            )
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[1] in totals:
            labels = dict(_LABEL.findall(match[2]))
            # TorchServe's names for them, and the handler's.
            of = labels.get("model_name", labels.get("model")), labels.get("model_version", labels.get("version"))
            if of[0] == model and of[1] in versions:
                totals[match[1]] += number(match[3], match[1])
    return totals


def number(text: str, name: str) -> float:
    """A count out of a metrics text.

    Raises:
        BadAnswer: it is no finite number from 0 on, with the metric's name.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BadAnswer(f"{name} of the server's metrics is {text!r}: expected a number of 0 or more")
    return value


def steps(now: int, wanted: int) -> Iterator[int]:
    """The numbers of workers on the way, one more or fewer at a time, the last one included.

    Each worker claims the GPU that the fewest hold when it starts, and TorchServe stops the one that started last. So
    workers that start one after the other keep the GPUs level on the way down too; of several that start together the
    order of claims is chance.
    """
    step = 1 if wanted > now else -1
    yield from range(now + step, wanted + step, step) if wanted != now else ()


def scaling(management: Management, address: str, model: str, version: str | None = None) -> Callable[[int], None]:
    """What has a model served by so many workers, without waiting for them; for :func:`autoscale`.

    Args:
        management: of the server.
        address: of it: where the server is on this machine, its memory is looked at before a worker is added.
        model: to scale.
        version: of it; None is the default one.

    Returns:
        A call that raises ClientError: UsageError where there is no memory for one more.
    """

    def scale(workers: int) -> None:
        [found] = management.describe(model, version)
        if workers > len(found.workers):
            room.require(address, found)
        management.scale(model, workers, version=version, wait=False)

    return scale


def autoscale(
    observer: Observer,
    scale: Callable[[int], None],
    policy: Policy,
    say: Callable[[str], None],
    stopped: Callable[[float], bool],
    interval_s: float = 1.0,
    revised: Callable[[Policy], Policy] = lambda policy: policy,
) -> None:
    """Follow the load until ``stopped``.

    Args:
        observer: of the model.
        scale: has so many workers, without waiting for them; UsageError where there is no room for one more, which
            is said, and tried again when it is next needed.
        policy: what is wanted.
        say: takes one line a change, also of another's, and of what is in the way.
        stopped: waits so many seconds; true ends the loop.
        interval_s: between two observations.
        revised: before each of them, the policy that holds from then on. Its outages are waited through too.

    Raises:
        UsageError: an interval over ``up_after_s``.
        ClientError: the server refuses, or cannot be reached when this begins; later outages and faults of the server
            are waited through.
    """
    if interval_s > policy.up_after_s:
        raise UsageError(f"an interval of {interval_s:g} s shows nothing of the last {policy.up_after_s:g} s")
    first = observer.observe()
    state, _ = decide(policy, State(), first)
    # None where it is not known: of a call that failed the server may have taken all or nothing.
    wanted: int | None = first.wanted
    troubled, full = False, False
    while not stopped(interval_s):
        try:
            policy = revised(policy)
            seen = observer.observe()
            if wanted not in (None, seen.wanted):
                say(
                    f"{wanted} -> {seen.wanted} workers, not by this command: the server started anew, somebody scaled "
                    "it, or a second scaler runs; run one scaler a model"
                )
            wanted = seen.wanted
            state, decision = decide(policy, state, seen)
            if decision.workers != seen.wanted:
                try:
                    wanted = None
                    scale(decision.workers)
                except UsageError as error:
                    # Nothing was sent.
                    wanted = seen.wanted
                    if not full:
                        say(f"{seen.wanted} workers stay: {error.message}")
                    full = True
                else:
                    full = False
                    wanted = decision.workers
                    say(f"{seen.wanted} -> {decision.workers} workers: {decision.reason}")
        except (Unavailable, ServerFault) as error:
            if not troubled:
                say(f"waiting for the server: {error.message}")
            troubled = True
        else:
            if troubled:
                say("the server answers again")
            troubled = False
