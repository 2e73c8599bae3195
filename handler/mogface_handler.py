"""TorchServe's entry file: the only module that knows TorchServe, with exactly one class in it.

TorchServe takes the one class defined here, calls ``initialize`` once in each worker and ``handle`` for each
batch. ``handle`` never raises: an exception would fail every request of the batch.
"""

from __future__ import annotations

import http
import json
import logging
import sys
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

import torch
from ts.torch_handler.base_handler import BaseHandler

from handler import device
from handler.config import FILE, Settings
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
            context: of TorchServe: where the archive lies, its manifest, the GPU it would take.

        Raises:
            SetupError: TorchServe logs it and tries again.
        """
        _log_lines_of_our_own()
        # Of odd metadata and large pictures, which are the caller's and answered for. Set once: filters are the
        # whole process's, and pictures are decoded in many threads.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        properties = context.system_properties
        gpu_id = properties.get("gpu_id")
        folder = Path(properties["model_dir"])
        settings = Settings.load(folder / FILE)
        if gpu_id is not None and settings.device != "cpu":
            self._claim = device.claim(max(1, device.visible_gpus()), int(gpu_id))
        where = device.choose(settings.device, self._claim)
        model = context.manifest["model"]
        self._pipeline = Pipeline.load(folder, settings, model["modelName"], model["modelVersion"], where)
        self.initialized = True
        started = {"event": "ready", "device": str(where), "gpu_claimed": self._claim.gpu if self._claim else None}
        log.info(
            json.dumps(started | {"model": model["modelName"], "engine": settings.engine, "weights": settings.weights})
        )

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
        # A header holds ASCII of one line; a file's name may hold anything.
        weights = urllib.parse.quote(self._pipeline.model.weights, safe=" ():.,/_-")
        for index, response in enumerate(responses):
            context.set_response_status(response.status, http.HTTPStatus(response.status).phrase, index)
            context.set_response_content_type(index, response.content_type)
            # Pictures and ModelScope's shape have no room for it in their bodies.
            context.set_response_header(index, "X-Model-Weights", weights)
        return [response.body for response in responses]


def _log_lines_of_our_own() -> None:
    """One JSON object a line on the worker's output, and no line a request from TorchServe's own worker code."""
    logging.getLogger().setLevel(logging.WARNING)
    if not log.handlers:
        stream = logging.StreamHandler(sys.stdout)
        stream.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(stream)
    log.setLevel(logging.INFO)
    log.propagate = False
