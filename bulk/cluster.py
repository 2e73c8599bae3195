"""The Ray cluster: one of this machine alone, or one that is there; and how many workers it has room for."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bulk.errors import JobStopped, UsageError
from handler.config import cores

#: Of a cluster of this machine: results are a few numbers a part; besides them there is the archive.
_OBJECT_STORE = 200_000_000
#: Cores of one worker on a CPU, unless told: more workers of fewer cores are faster, and each holds one more model.
_THREADS = 4
#: Where Ray's sockets lie, whose paths have at most 107 bytes: $TMPDIR can be longer.
_SHORT = "/tmp"  # noqa: S108 - a folder of its own is made there
#: A cluster of this machine's is looked for.
_AUTO = "auto"
_REACH_S = 10.0
_LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = (_LOOPBACK, "localhost")
#: Whether Ray may listen beyond loopback.
_ANYWHERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True)
class Layout:
    """How workers lie on the cluster.

    Attributes:
        workers: in all.
        threads: cores of each.
        gpus: of each; two workers that share a GPU have a half. 0 on a CPU.
    """

    workers: int
    threads: int
    gpus: float = 0.0

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: expected 1 or more")


@dataclass(frozen=True)
class Wish:
    """What was asked of the layout; None is what fits.

    Attributes:
        workers: in all.
        workers_per_gpu: where there are GPUs.
        threads: cores of each.
    """

    workers: int | None = None
    workers_per_gpu: int = 1
    threads: int | None = None


def layout(nodes: Sequence[Mapping[str, float]], wish: Wish, on_gpus: bool) -> Layout:
    """Workers for these nodes: one a GPU where there are GPUs, else as many as the cores give.

    Args:
        nodes: resources of each living node, by Ray's names ``CPU`` and ``GPU``.
        wish: what was asked.
        on_gpus: whether the archive may run on a GPU.

    Raises:
        UsageError: there is no room for one worker, or not for as many as were asked for.
    """
    gpus = sum(int(node.get("GPU", 0)) for node in nodes) if on_gpus else 0
    fit = [node for node in nodes if node.get("GPU" if gpus else "CPU", 0) >= 1]
    if not fit:
        raise UsageError("no node of the cluster has a core: start one with `ray start --num-cpus N`")
    if gpus:
        # A node that lends its GPUs alone names no cores, without which there is no worker.
        pairs = [(int(node.get("CPU", 0)), int(node["GPU"]) * wish.workers_per_gpu) for node in fit]
        shares = [cores // workers for cores, workers in pairs if cores]
        threads = wish.threads or max(1, min([_THREADS, *shares]))
        room = sum(min(workers, cores // threads) for cores, workers in pairs)
        made = Layout(wish.workers or max(1, room), threads, 1 / wish.workers_per_gpu)
        return _checked(made, room, "GPUs and the cores beside them")
    least = int(min(node["CPU"] for node in fit))
    threads = wish.threads or min(least, _THREADS)
    room = sum(int(node["CPU"] // threads) for node in fit)
    return _checked(Layout(wish.workers or max(1, room), threads), room, "cores")


def _checked(made: Layout, room: int, what: str) -> Layout:
    if made.workers > room:
        raise UsageError(
            f"{made.workers} workers of {made.threads} cores: the cluster's {what} have room for {room}; ask for fewer "
            "workers or --threads"
        )
    return made


def _prepare(address: str | None) -> None:
    """Set what Ray reads when it is imported and when it starts."""
    # It would tell its makers of each use, and write its own processes' lines among this command's.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if address is None or urlsplit(f"//{address}").hostname in _LOOPBACK_NAMES:
        # Despite its name: without it Ray takes this machine's outer address even where 127.0.0.1 is asked for, and
        # its ports, behind which anybody may run code, are open to the network.
        os.environ[_ANYWHERE] = "0"


def _reached(address: str) -> None:
    """Whether anybody listens there: Ray itself would try for minutes."""
    try:
        parts = urlsplit(f"//{address}")
        if not parts.hostname or not parts.port or parts.path:
            raise ValueError("expected HOST:PORT, or auto")
        socket.create_connection((parts.hostname, parts.port), _REACH_S).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"no Ray cluster at {address}: {error}") from error


@contextlib.contextmanager
def connected(address: str | None, archive_bytes: int) -> Iterator[list[dict[str, float]]]:
    """The resources of each living node of a cluster, while it is connected.

    Args:
        address: of a cluster that is there, as ``10.0.0.1:6379`` or ``auto``; None for one of this machine alone,
            which listens on loopback and ends with the block.
        archive_bytes: size of the archive, which every node holds once.

    Raises:
        UsageError: there is no cluster.
    """
    _prepare(address)
    if address not in (None, _AUTO):
        _reached(str(address))
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    logs = None
    if address is None:
        # Ray's own default keeps every run's logs for ever.
        logs = tempfile.mkdtemp(prefix="mogface-ray-", dir=_SHORT)
        alone = {
            "address": "local",
            "_temp_dir": logs,
            "include_dashboard": False,
            "num_cpus": cores(),
            "object_store_memory": _OBJECT_STORE + 2 * archive_bytes,
        }
        ray.init(**alone, **quiet)
        here = ray.util.get_node_ip_address()
        if here != _LOOPBACK:
            ray.shutdown()
            raise UsageError(f"Ray would listen on {here}: it was imported before {_ANYWHERE} could be set to 0")
    else:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"no Ray cluster at {address}: {error}") from error
    # Ray has taken the signal for itself: told to end, this lets go of the cluster, as if interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data = ray.data.DataContext.get_current()
    data.enable_progress_bars = False
    data.print_on_execution_start = False
    # A lost worker costs its parts, which the next round runs; it must not cost the others theirs.
    data.max_errored_blocks = -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
    except JobStopped as error:
        # They may say more of it.
        where, logs = (f". Ray's logs are in {logs}" if logs else ""), None
        raise JobStopped(f"{error}{where}") from error
    finally:
        ray.shutdown()
        if logs:
            shutil.rmtree(logs, ignore_errors=True)
