"""Locust's users of the detector, over REST and gRPC, in a closed loop or arriving at a rate.

Headless by ``python -m load_tests run``; with Locust's own page by
``locust -f load_tests/users.py ClosedLoop --host http://127.0.0.1:8080``, whose further options ``--help`` lists.
Importing this module makes sockets and threads gevent's, as Locust does.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import gevent
import gevent.pool
from locust import User, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from clients.errors import ClientError
from load_tests.arguments import add_target
from load_tests.pictures import Picture
from load_tests.samples import OK, Sample
from load_tests.target import Target
from load_tests.transports import Transport, connect

WRONG = "wrong_answer"
#: Requests that may be under way at once in open arrival; one more is sent late, which its latency says.
MOST_OPEN = 1000


class _Detecting(User):
    """What both kinds share: a target, a connection, one request measured."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.target: Target = environment.target
        self.transport: Transport = connect(self.target)

    def on_stop(self) -> None:
        """Close the connection."""
        self.transport.close()

    def ask(self, due: float) -> None:
        """Send the next picture, and report the outcome to Locust.

        Args:
            due: when it should have been sent, of ``time.perf_counter()``: latency counts from then.
        """
        self.environment.started += 1
        picture = next(self.environment.turn)
        sample, error = self._sample(picture, due)
        self.environment.events.request.fire(
            request_type=self.transport.name,
            name=picture.name,
            response_time=sample.latency_ms,
            response_length=len(picture.data),
            exception=error,
            context={"sample": sample},
        )

    def _sample(self, picture: Picture, due: float) -> tuple[Sample, Exception | None]:
        began = due - self.environment.begun
        try:
            answer = self.transport.detect(picture.data)
        except ClientError as error:
            return Sample(began, _since(due), error.type, picture.name), error
        latency = _since(due)
        if not self.target.any_answer and not picture.right(answer):
            wrong = ValueError(f"{len(answer.faces)} faces, not those that the picture has alone")
            return Sample(began, latency, WRONG, picture.name, answer.batch_size, answer.timing_ms), wrong
        return Sample(began, latency, OK, picture.name, answer.batch_size, answer.timing_ms), None


class ClosedLoop(_Detecting):
    """Sends a picture as soon as the answer to the last is there."""

    wait_time = constant(0)

    @task
    def detect(self) -> None:
        """One request."""
        self.ask(time.perf_counter())


class OpenArrival(_Detecting):
    """Requests at a mean rate, each at a random moment, whatever the server does.

    So arrive callers who do not know of each other. A closed loop slows down with its server, and so hides how long
    they would wait.
    """

    fixed_count = 1
    wait_time = constant(0)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._under_way = gevent.pool.Pool(MOST_OPEN)
        self._moments = random.Random(0)
        self._due = time.perf_counter()

    @task
    def arrive(self) -> None:
        """The next request, when it is due; its answer is not waited for."""
        self._due += self._moments.expovariate(self.target.rate)
        gevent.sleep(max(0.0, self._due - time.perf_counter()))
        self._under_way.spawn(self.ask, self._due)

    def on_stop(self) -> None:
        """Wait for the answers that are still under way."""
        self._under_way.join(timeout=self.target.timeout_s)
        super().on_stop()


def _since(begun: float) -> float:
    return (time.perf_counter() - begun) * 1000


@events.init_command_line_parser.add_listener
def _arguments(parser: LocustArgumentParser) -> None:
    add_target(parser)


@events.test_start.add_listener
def _target(environment: Environment, **_: Any) -> None:
    """For Locust's own command line; ``load_tests run`` has set both before."""
    if not hasattr(environment, "target"):
        target = Target.of(environment.parsed_options, environment.host or "")
        environment.target = target.referred(connect(target).detect)
    # All users draw from one row, or they would send the same picture at the same time.
    environment.turn = itertools.cycle(environment.target.pictures)
    environment.started = 0
    environment.begun = time.perf_counter()
