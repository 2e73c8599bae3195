"""TorchServe's entry file: the only module that knows TorchServe, with exactly one class in it.

TorchServe takes the one class defined here, calls ``initialize`` once in each worker and ``handle`` for each
batch. ``handle`` never raises: an exception would fail every request of the batch.
"""

from __future__ import annotations

import http
import json
import logging
import os
import sys
import urllib.parse
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ts.metrics.metric_cache_errors import MetricsCacheKeyError
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler

from handler import allocator, artifacts, device, gpu_metrics, metrics
from handler.config import FILE, Settings
from handler.cuda import alive
from handler.errors import ConfigError
from handler.pipeline import Pipeline
from handler.request import Request

log = logging.getLogger("mogface")


class MogFaceHandler(BaseHandler):
    """Answers TorchServe's batches through a Pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self._pipeline: Pipeline | None = None
        self._claim: device.Claim | None = None

    def initialize(self, context: Any) -> None:
        """Claim a GPU where there is one, load the archive, run the network once.

        Args:
            context: of TorchServe: the model's name, where the archive lies, its manifest, the GPU it would take.

        Raises:
            SetupError: TorchServe logs it and tries again.
        """
        _log_lines_of_our_own()
        allocator.return_freed_memory()
        # Of odd metadata and large pictures, which are the caller's and answered for. Set once: filters are the
        # whole process's, and pictures are decoded in many threads.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        logging.getLogger("PIL").setLevel(logging.CRITICAL)
        properties = context.system_properties
        gpu_id = properties.get("gpu_id")
        folder = Path(properties["model_dir"])
        # The name it was registered under, which need not be the archive's: requests, front end and scaler know that.
        name, version = context.model_name, context.manifest["model"]["modelVersion"]
        meter = metrics.Meter(name, version)
        # Before anything can fail: a worker that never becomes ready is seen by its starts.
        meter.add(metrics.WORKER_STARTS, 1)
        publisher = metrics.Publisher(meter, _sink(context.metrics)).start()
        settings = Settings.load(folder / FILE)
        artifacts.check(folder)
        if gpu_id is not None and settings.device != "cpu":
            self._claim = device.claim(max(1, device.visible_gpus()), int(gpu_id))
            publisher.watch(gpu_metrics.claims)
            publisher.watch(gpu_metrics.Card(self._claim.gpu).read)
        where = self._device = device.choose(settings.device, self._claim)
        self._pipeline = Pipeline.load(folder, settings, name, version, where, meter)
        self.initialized = True
        # What has not happened yet is shown at zero before it can happen.
        publisher.publish()
        started = {"event": "ready", "device": str(where), "gpu_claimed": self._claim.gpu if self._claim else None}
        log.info(json.dumps(started | {"model": name, "engine": settings.engine, "weights": settings.weights}))

    @torch.inference_mode()
    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """One batch.

        Args:
            data: one mapping a request, of part names to values.
            context: with headers and ids by index; takes each answer's status and type.

        Returns:
            One body a request, in their order.
        """
        assert self._pipeline is not None
        requests = [
            Request(row, context.get_all_request_header(index) or {}, context.get_request_id(index) or "")
            for index, row in enumerate(data)
        ]
        responses = self._pipeline.answer(requests)
        if not alive(self._device):
            # Nothing it is asked will be answered again. TorchServe starts another worker; queued requests wait for it.
            log.critical(json.dumps({"event": "device_lost", "device": str(self._device)}))
            os._exit(3)
        # A header holds ASCII of one line; a file's name may hold anything.
        weights = urllib.parse.quote(self._pipeline.model.weights, safe=" ():.,/_-")
        for index, response in enumerate(responses):
            context.set_response_status(response.status, http.HTTPStatus(response.status).phrase, index)
            context.set_response_content_type(index, response.content_type)
            # Pictures and ModelScope's shape have no room for it in their bodies.
            context.set_response_header(index, "X-Model-Weights", weights)
            if came_by_grpc(context.get_all_request_header(index) or {}):
                # No more answers come: without this TorchServe ends the worker over a call of StreamPredictions.
                context.set_response_header(index, "ts_stream_next", "false")
        return [response.body for response in responses]


def came_by_grpc(headers: Mapping[str, object]) -> bool:
    """Whether a request came by gRPC, told by what TorchServe 0.12 hands over as its headers.

    Those of HTTP for REST, among them Content-Length or Transfer-Encoding wherever there is a body, and Host from
    HTTP/1.1 on; for gRPC none but one entry a parameter, a mapping. In doubt it is REST: there the mark breaks the
    answer, while over gRPC its lack harms streams alone.

    Args:
        headers: of one request.
    """
    return all(isinstance(value, Mapping) for value in headers.values())


def _sink(cache: Any) -> metrics.Sink:
    """Samples -> lines on the worker's output, which TorchServe's front end adds up over all its workers.

    Args:
        cache: TorchServe's, of the metrics that ``metrics_config`` declares; it ignores all others.
    """
    kinds = {"counter": MetricTypes.COUNTER, "gauge": MetricTypes.GAUGE}
    found, missing = {}, []
    for name, (kind, labels) in metrics.declared().items():
        try:
            found[name] = cache.get_metric(name, kinds[kind])
        except MetricsCacheKeyError:
            missing.append(name)
            continue
        if tuple(found[name].dimension_names) != labels:
            raise ConfigError(
                f"metrics_config declares {name} with {found[name].dimension_names}, expected {list(labels)}: "
                "use the deploy/metrics.yaml of this version"
            )
    if missing:
        log.warning(
            json.dumps({"event": "metrics", "not_declared": missing, "mend": "metrics_config=deploy/metrics.yaml"})
        )

    def send(sample: metrics.Sample) -> None:
        if sample.name in found:
            found[sample.name].add_or_update(sample.value, list(sample.labels))

    return send


def _ours(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or "[METRICS]mogface_" in record.getMessage()


def _log_lines_of_our_own() -> None:
    """One JSON object a line on the worker's output, and no line a request from TorchServe's own worker code."""
    logging.getLogger().setLevel(logging.WARNING)
    # Metrics leave the worker as this logger's lines. TorchServe's own, PredictionTime, would be one a batch.
    lines = logging.getLogger("ts.metrics.caching_metric")
    if not log.handlers:
        # One for both: its lock keeps their lines apart, which come from two threads.
        stream = logging.StreamHandler(sys.stdout)
        stream.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(stream)
        lines.addHandler(stream)
        lines.addFilter(_ours)
    for each in (log, lines):
        each.setLevel(logging.INFO)
        each.propagate = False
