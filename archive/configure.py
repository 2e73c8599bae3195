"""config.properties for this machine, and the refusal of what TorchServe would silently ignore or misread."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from archive import properties
from archive.presets import PRESETS, Preset, preset
from archive.served import Archive, read_archive
from handler.config import Settings
from handler.errors import ConfigError

__all__ = ["PRESETS", "Archive", "Plan", "check", "configure", "memory_bytes", "read_archive"]

#: What TorchServe 0.12 takes out of ``models={...}``; it reads past any other key without a word.
HONOURED = (
    "minWorkers",
    "maxWorkers",
    "batchSize",
    "maxBatchDelay",
    "responseTimeout",
    "startupTimeout",
    "runtimeType",
)
#: Keys that look as if they set every model's batches, and set nothing.
_IGNORED = ("batch_size", "max_batch_delay", "min_workers", "max_workers", "response_timeout")
#: What Java's int holds; TorchServe wraps round beyond it.
_INT = 2**31 - 1
_NUMBERS = ("job_queue_size", "max_request_size", "max_response_size", "token_expiration_min")
_SWITCHES = ("disable_token_authorization", "enable_model_api", "disable_system_metrics", "install_py_dep_per_model")
#: TorchServe's own values where a file has none.
_QUEUE, _REQUEST_BYTES = "100", "6553500"
_OUTSIDE_HEAP_MB = 200
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MB = 1_000_000


#: Memory of one worker in MB: measured on a CPU with one image at a time, rounded up.
WORKER_MB = {"centerface": 500, "mogface": 2500}
#: Of a card for one worker: CUDA's own and the weights, and activations an image of 640x640. Estimates.
_GPU_BASE_MB, _GPU_IMAGE_MB = 1500, 250
#: A batch should not hold its first image longer than about so much.
_BATCH_MS = 100.0
_LARGEST_BATCH = 64
#: A request that waits longer has been given up by its caller: what the project's client waits, s.
_CALLER_S = 130
#: Of the heap beside requests, MB: what the front end took after load, 575 MB, and some answers on their way out.
_HEAP_MB = 900
_GIB = 1 << 30


def memory_bytes() -> int:
    """What this machine, or the container this runs in, has."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


@dataclass(frozen=True)
class Plan:
    """What is asked of ``configure``; None is the preset's own.

    Attributes:
        preset: a key of PRESETS.
        gpus: in this machine, or MIG instances; 0 for the preset ``cpu``.
        workers: a GPU, or in all on a CPU.
        batch: requests TorchServe hands to a worker at once.
        delay_ms: how long a batch waits for more of them.
        response_s: after which TorchServe kills a worker that has not answered.
        mig: name of the MIG instances that the cards are cut into, such as ``1g.5gb``; empty where they are whole.
    """

    preset: str = "cpu"
    gpus: int = 0
    workers: int | None = None
    batch: int | None = None
    delay_ms: int = 1
    response_s: int = 120
    mig: str = ""

    def __post_init__(self) -> None:
        preset(self.preset, self.mig)
        if (self.preset == "cpu") != (self.gpus == 0):
            raise ConfigError(f"preset {self.preset} with {self.gpus} GPUs: cpu goes with 0, the others with 1 or more")
        for name, low in {"workers": 1, "batch": 1, "gpus": 0}.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}: expected {low} or more")

    @property
    def machine(self) -> Preset:
        """What the preset's name means."""
        return preset(self.preset, self.mig)


def configure(base: Mapping[str, str], archives: Sequence[Archive], plan: Plan) -> str:
    """The text of a config.properties.

    Args:
        base: the shipped file, whose addresses, limits and security stay.
        archives: of the model store.
        plan: what is asked.

    Raises:
        ConfigError: every silent trap in the outcome, one a line.
    """
    if wrong := _misread_numbers(base):
        raise ConfigError("\n".join(wrong))
    machine = plan.machine
    grounds = []
    models: dict[str, dict[str, dict[str, Any]]] = {}
    under_way = workers_mb = patience = 0
    for archive in archives:
        settings = archive.settings
        image_ms = machine.image_ms[settings.detector]
        workers = (plan.workers or machine.workers) * max(1, plan.gpus)
        batch = plan.batch or _batch(image_ms, plan, settings)
        models.setdefault(archive.name, {})[archive.version] = {
            "minWorkers": workers,
            "maxWorkers": workers,
            "batchSize": batch,
            "maxBatchDelay": plan.delay_ms,
            "responseTimeout": plan.response_s,
            "startupTimeout": 300,
        }
        under_way += workers * batch
        workers_mb += workers * _worker_mb(settings)
        patience = max(patience, int(workers * _CALLER_S * 1000 / image_ms))
        slower = ", which is slower than that" if plan.gpus and settings.precision == "fp32" else ""
        grounds += [
            f"{archive.name}: {image_ms:g} ms an image ({machine.ground});",
            f"  engine {settings.engine}, precision {settings.precision}{slower};",
            f"  {workers} workers, about {_worker_mb(settings)} MB of memory each"
            + (f", {plan.gpus} {'MIG instances' if plan.mig else 'GPUs'}" if plan.gpus else ""),
            *([_on_card(archive, machine)] if plan.gpus else []),
            f"  batches of {batch}: {batch * image_ms:g} ms of network.",
        ]
    values = {**base, "models": json.dumps(models)}
    # The base may be the file of an earlier machine.
    values.pop("number_of_gpu", None)
    if plan.gpus:
        values["number_of_gpu"] = str(plan.gpus)
    grounds.append("maxBatchDelay: a lone request waits it out in full, and a busy worker's queue fills by itself.")
    comments = {"models": "\n".join(grounds)} | _front_end(values, under_way, patience, workers_mb)
    problems = check(values, archives, plan.preset, plan.gpus, plan.mig)
    if problems:
        raise ConfigError("\n".join(problems))
    return properties.render(values, comments)


def _front_end(values: dict[str, str], under_way: int, patience: int, workers_mb: int) -> dict[str, str]:
    """Set the queue and the heap that holds it; what each rests on.

    Args:
        values: to change.
        under_way: requests that all workers hold at once.
        patience: requests that are answered before their callers give up.
        workers_mb: memory of all workers.
    """
    request_mb = int(values.get("max_request_size", _REQUEST_BYTES)) / _MB
    # A busy server's next batches come out of the queue: less than one a worker, and batches would not fill.
    wanted = max(min(int(values.get("job_queue_size", _QUEUE)), patience), under_way)
    most_gib = (memory_bytes() - (workers_mb + _OUTSIDE_HEAP_MB) * _MB) // _GIB
    room = int((most_gib * _GIB / _MB - _HEAP_MB) / request_mb) - under_way
    queue = max(1, min(wanted, room))
    heap_gib = math.ceil(((queue + under_way) * request_mb + _HEAP_MB) * _MB / _GIB)
    others = [word for word in values.get("vmargs", "").split() if not word.startswith("-Xmx")]
    values |= {"job_queue_size": str(queue), "vmargs": " ".join([f"-Xmx{heap_gib}g", *others])}
    waiting = [
        "Requests that wait for a worker, a model; one more is answered 503 at once.",
        f"The workers' next batches take {under_way}; {patience} are answered before their callers, who wait "
        f"{_CALLER_S} s, give up.",
    ]
    if queue < wanted:
        waiting.append(f"More than {queue}, of {wanted} that would do, this machine's memory does not hold.")
    held = f"{queue} requests that wait and {under_way} that workers have, of {request_mb:g} MB each"
    return {"job_queue_size": "\n".join(waiting), "vmargs": f"The heap: {held}, and {_HEAP_MB} MB beside."}


def _on_card(archive: Archive, machine: Preset) -> str:
    need, ground = _gpu_need(archive)
    return f"  {need:,} MB of GPU memory each ({ground}), of {machine.gpu_memory_mb:,}"


def _worker_mb(settings: Settings) -> int:
    """Memory of one worker in MB, its cache full."""
    return WORKER_MB[settings.detector] + -(-settings.cache_bytes // 1_000_000)


def _gpu_need(archive: Archive) -> tuple[int, str]:
    """GPU memory of one worker in MB, and what says so."""
    if archive.gpu_mb:
        return archive.gpu_mb, "by its plans"
    # Whatever TorchServe hands over, so many images run together.
    return _GPU_BASE_MB + _GPU_IMAGE_MB * archive.settings.engine_batch, "an estimate"


def _batch(image_ms: float, plan: Plan, settings: Settings) -> int:
    """The largest power of two that keeps to _BATCH_MS on a GPU; on a CPU, what ends well in time, up to 8."""
    if plan.gpus:
        wanted, largest = _BATCH_MS / image_ms, _LARGEST_BATCH
    else:
        wanted, largest = min(settings.deadline_s, plan.response_s) * 1000 / 2 / image_ms, 8
    batch = 1
    while batch * 2 <= min(wanted, largest):
        batch *= 2
    return batch


def check(
    values: Mapping[str, str], archives: Sequence[Archive], kind: str = "cpu", gpus: int = 0, mig: str = ""
) -> list[str]:
    """What TorchServe would ignore or misread in this configuration, and what cannot work; empty if nothing.

    Args:
        values: of a config.properties.
        archives: of the model store it serves.
        kind: the machine's preset.
        gpus: how many it has.
        mig: what its cards are cut into, if they are.

    Raises:
        ConfigError: no such machine.
    """
    machine = preset(kind, mig)
    if not archives:
        return ["the model store holds no archive: run `mogface-archive build` first"]
    problems = [
        f"{key}: TorchServe ignores it at the top level; it belongs into models={{...}}"
        for key in _IGNORED
        if key in values
    ]
    problems += _server_problems(values)
    models = properties.models(values)
    memory_mb = _heap_mb(values)
    gpu_mb, grounds = 0, []
    for archive in archives:
        where = f"{archive.name} {archive.version}"
        if archive.has_model_config:
            problems.append(f"{archive.file} carries a model-config.yaml, whose presence voids every timeout set here")
        entry = models.get(archive.name, {}).get(archive.version)
        if entry is None:
            listed = ", ".join(models.get(archive.name, {})) or "none"
            problems.append(
                f"{where}: models={{...}} has {listed} for it: without an entry of the archive's own version "
                "TorchServe starts a worker a core, with batches of 1 and a delay of 100 ms"
            )
            continue
        found = _entry_problems(entry, archive.settings, machine)
        problems += [f"{where}: {problem}" for problem in found]
        if not found:
            memory_mb += entry["maxWorkers"] * _worker_mb(archive.settings)
            a_gpu = -(-entry["maxWorkers"] // max(1, gpus))
            need, ground = _gpu_need(archive)
            gpu_mb += a_gpu * need
            grounds.append(ground)
        for key, limit in {"max_request_size": "bytes", "max_response_size": "response_bytes"}.items():
            needed = getattr(archive.settings.limits, limit)
            given = values.get(key, _REQUEST_BYTES)
            if given.isdecimal() and int(given) <= needed:
                shown = given if key in values else f"unset ({given})"
                problems.append(f"{where}: {key} is {shown}, the archive takes {needed}")
    available = memory_bytes() // _MB
    if memory_mb > available:
        problems.append(
            f"workers and front end need about {memory_mb:,} MB, this machine has {available:,}: fewer workers or "
            "smaller batches"
        )
    card = machine.gpu_memory_mb
    if gpus and gpu_mb > card:
        named = f"{kind} {mig}".strip()
        problems.append(
            f"the workers of a GPU need about {gpu_mb:,} MB ({', '.join(grounds)}), preset {named} has {card:,}: "
            "fewer workers or a smaller engine_batch"
        )
    return problems


def _misread_numbers(values: Mapping[str, str]) -> list[str]:
    return [
        f"{key} is {values[key]!r}: expected a whole number from 1 to {_INT}"
        for key in _NUMBERS
        if key in values and not (re.fullmatch(r"[0-9]{1,10}", values[key]) and 0 < int(values[key]) <= _INT)
    ]


def _server_problems(values: Mapping[str, str]) -> list[str]:
    """Keys of the server itself that it would misread, or not start with."""
    problems = _misread_numbers(values)
    for key in _SWITCHES:
        if values.get(key, "true") not in ("true", "false"):
            problems.append(f"{key} is {values[key]!r}: expected true or false, in small letters")
    if values.get("metrics_mode") != "prometheus" or "metrics_config" not in values:
        problems.append(
            "metrics_mode and metrics_config: expected prometheus and the path of deploy/metrics.yaml: otherwise "
            "TorchServe drops the handler's metrics without a word"
        )
    if not problems:
        # Every request that waits lies in the front end's heap; a full one silences the whole server.
        waiting = int(values.get("job_queue_size", _QUEUE)) * int(values.get("max_request_size", _REQUEST_BYTES)) // _MB
        heap = _heap_mb(values) - _OUTSIDE_HEAP_MB
        if waiting > heap:
            problems.append(
                f"job_queue_size x max_request_size is {waiting:,} MB, the front end's heap (vmargs -Xmx) {heap:,} MB: "
                "a full queue of large requests would silence the server"
            )
    return problems


def _entry_problems(entry: Mapping[str, Any], settings: Settings, machine: Preset) -> list[str]:
    problems = [
        f"{key}: TorchServe ignores it; it honours {', '.join(HONOURED)}" for key in entry if key not in HONOURED
    ]
    numbers = [key for key in HONOURED if key != "runtimeType"]
    for key in numbers:
        if key not in entry:
            problems.append(f"{key} is missing: TorchServe would choose it by the machine or by its own defaults")
        elif not isinstance(entry[key], int) or isinstance(entry[key], bool):
            problems.append(f"{key} is {entry[key]!r}: expected a whole number")
        elif entry[key] > _INT:
            problems.append(f"{key} is {entry[key]}: TorchServe wraps round over {_INT}")
    if problems:
        return problems
    if entry["maxBatchDelay"] < 1:
        problems.append(
            f"maxBatchDelay is {entry['maxBatchDelay']}: TorchServe takes 0 or less for 100; expected 1 or more"
        )
    for key in ("minWorkers", "batchSize", "responseTimeout", "startupTimeout"):
        if entry[key] < 1:
            problems.append(f"{key} is {entry[key]}: expected 1 or more")
    if entry["minWorkers"] > entry["maxWorkers"]:
        problems.append(f"minWorkers {entry['minWorkers']} is over maxWorkers {entry['maxWorkers']}")
    image_s = machine.image_ms[settings.detector] / 1000
    if settings.deadline_s + settings.engine_batch * image_s >= entry["responseTimeout"]:
        problems.append(
            f"responseTimeout is {entry['responseTimeout']} s: images are begun up to {settings.deadline_s:g} s after "
            "their batch came (deadline_s) and must end before TorchServe kills the worker"
        )
    if entry["batchSize"] * image_s > settings.deadline_s:
        problems.append(
            f"batchSize is {entry['batchSize']}: at {image_s * 1000:g} ms an image a full batch takes "
            f"{entry['batchSize'] * image_s:g} s, and images not begun within {settings.deadline_s:g} s are refused"
        )
    return problems


def _heap_mb(values: Mapping[str, str]) -> int:
    """Of the Java front end: its -Xmx, else a quarter of the memory, and what lies outside the heap."""
    for word in values.get("vmargs", "").split():
        if match := re.fullmatch(r"-Xmx(\d+)([kmgt]?)", word, re.IGNORECASE):
            return (int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")) // _MB + _OUTSIDE_HEAP_MB
    return memory_bytes() // 4 // _MB + _OUTSIDE_HEAP_MB
