"""Ways to hurt a server under load. Each returns what the senders of whatever did it were answered, if any were."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import grpc
import psutil

from clients.grpc import translated
from clients.proto.inference_pb2 import PredictionResponse, PredictionsRequest
from tests.recovery.caller import ask_at_once, kind_of, kinds
from tests.recovery.load import PATIENCE_S, Load, NotWell
from tests.recovery.pictures import BROKEN, GREEDY, SLOW, coloured, damaged, noise, photograph
from tests.recovery.subjects import Subject

Act = Callable[[Load], Counter[str]]
#: Left out of clients/proto: no client of this project calls it.
_STREAM = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions"


def nothing(load: Load) -> Counter[str]:
    """The load alone."""
    load.more(40)
    return Counter()


def _again(load: Load, image: bytes) -> Counter[str]:
    """Five times two of them at once, so that they share batches with the load."""
    found: Counter[str] = Counter()
    for _ in range(5):
        found += kinds(ask_at_once(load.subject, image, 2))
    return found


def damaged_picture(load: Load) -> Counter[str]:
    """A file that ends in its midst."""
    return _again(load, damaged())


def engine_error(load: Load) -> Counter[str]:
    """The network fails over one picture; by a fake."""
    return _again(load, coloured(BROKEN))


def out_of_memory(load: Load) -> Counter[str]:
    """There is no memory for one picture; by a fake."""
    return _again(load, coloured(GREEDY))


def answer_too_large(load: Load) -> Counter[str]:
    """An answer over TorchServe's ``max_response_size``."""
    found: Counter[str] = Counter()
    for _ in range(3):
        found += kinds(ask_at_once(load.subject, noise(), 1, {"output": "image"}))
    return found


def slow_batch(load: Load) -> Counter[str]:
    """Twenty slow pictures at once, of which eight take longer than a batch may; by a fake."""
    return kinds(ask_at_once(load.subject, coloured(SLOW), 20))


def stream_call(load: Load) -> Counter[str]:
    """A call of gRPC's StreamPredictions, which a handler that does not stream answers once."""
    subject, found = load.subject, Counter[str]()
    metadata = (("authorization", f"Bearer {subject.server.key()}"),)
    with grpc.insecure_channel(subject.address("grpc").removeprefix("grpc://")) as channel:
        stream = channel.unary_stream(_STREAM, PredictionsRequest.SerializeToString, PredictionResponse.FromString)
        for _ in range(3):
            request = PredictionsRequest(model_name=subject.model, input={"image": photograph(0)})
            try:
                found[f"{len(list(stream(request, timeout=10, metadata=metadata)))} answer"] += 1
            except grpc.RpcError as error:
                found[kind_of(translated(error, "gRPC"))] += 1
    return found


def worker_killed(load: Load) -> Counter[str]:
    """SIGKILL."""
    [pid] = load.subject.pids
    os.kill(pid, signal.SIGKILL)
    replaced(load.subject, pid)
    return Counter()


def worker_stopped(load: Load) -> Counter[str]:
    """SIGSTOP: a worker that hangs. ``responseTimeout`` ends it."""
    [pid] = load.subject.pids
    os.kill(pid, signal.SIGSTOP)
    replaced(load.subject, pid)
    if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        raise AssertionError(f"worker {pid} was replaced and still lives")
    return Counter()


def replaced(subject: Subject, pid: int, seconds: float = PATIENCE_S) -> None:
    """Wait until another worker is ready.

    Raises:
        NotWell: there was none within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        ready = [worker["pid"] for worker in subject.workers if worker["status"] == "READY"]
        if ready and pid not in ready:
            return
        if time.monotonic() > deadline:
            raise NotWell(f"worker {pid} was not replaced within {seconds:g} s: {subject.workers}")
        time.sleep(0.05)


def _half(subject: Subject) -> socket.socket:
    """A connection with a request of which half is sent."""
    port = int(subject.server.inference.rpartition(":")[2])
    image = photograph(0)
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"POST /predictions/{subject.model} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(image)}\r\n"
    head += f"Authorization: Bearer {subject.server.key()}\r\n\r\n"
    connection.sendall(head.encode() + image[: len(image) // 2])
    return connection


def clients_gone(load: Load) -> Counter[str]:
    """Forty callers hang up in the midst of their uploads."""
    for _ in range(40):
        _half(load.subject).close()
    return Counter()


def slow_uploads(load: Load) -> Counter[str]:
    """A hundred uploads of which a byte comes now and then.

    They take no worker; but TorchServe lets them stay for ever, which nginx in front does not.
    """
    with ExitStack() as stack:
        slow = [stack.enter_context(_half(load.subject)) for _ in range(100)]
        for _ in range(5):
            load.more(8)
            for each in slow:
                each.sendall(b"x")
        ended = 0
        for each in slow:
            each.setblocking(False)
            try:
                each.recv(1)
                ended += 1
            except BlockingIOError:
                pass
    return Counter({"ended": ended} if ended else {})


def front_end_killed(load: Load) -> Counter[str]:
    """SIGKILL of the Java process; started again as soon as its workers are gone."""
    subject = load.subject
    family = psutil.Process(subject.server.pid).children(recursive=True)
    [java] = [process for process in family if "java" in process.name()]
    workers = [process for process in family if process.pid in subject.pids]
    java.kill()
    # Without their front end workers end by themselves, and leave their memory to the next ones.
    _, alive = psutil.wait_procs(workers, timeout=30)
    if alive or not workers:
        raise AssertionError(f"of the workers {workers} {alive} live on without their front end")
    subject.server.stop()
    subject.server.start()
    subject.server.wait([subject.model])
    return Counter()


#: In the order of docs/faults.md.
ALL: dict[str, Act] = {
    "none": nothing,
    "damaged picture": damaged_picture,
    "engine error over one picture (fake)": engine_error,
    "out of memory over one picture (fake)": out_of_memory,
    "answer over `max_response_size`": answer_too_large,
    "gRPC `StreamPredictions`": stream_call,
    "slow batch (fake)": slow_batch,
    "worker killed": worker_killed,
    "worker stopped (SIGSTOP)": worker_stopped,
    "40 clients gone in their uploads": clients_gone,
    "100 slow uploads": slow_uploads,
    "front end killed, started again": front_end_killed,
}
