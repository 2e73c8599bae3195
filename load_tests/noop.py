"""A model that does nothing, for what TorchServe itself costs: one more .mar beside the real ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging import generate_model_archive

NAME = "noop"
VERSION = "1.0"
#: An answer of the detector's shape, to no picture at all.
_HANDLER = '''\
"""Answers every request alike, without looking at it."""
import json
from ts.torch_handler.base_handler import BaseHandler


class NoopHandler(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        answer = {
            "model": {"name": "noop", "version": "1.0", "weights": "none", "engine": "none", "precision": "none"},
            "image": {"width": 1, "height": 1}, "canvas": "1x1", "scale": 1.0, "faces": [],
            "timing_ms": {}, "batch_size": len(data),
        }
        for index in range(len(data)):
            context.set_response_content_type(index, "application/json")
        return [json.dumps(answer)] * len(data)
'''


def pack(store: Path) -> Path:
    """Write ``noop.mar`` into a model store and return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        handler = Path(scratch) / "noop_handler.py"
        handler.write_text(_HANDLER, encoding="utf-8")
        generate_model_archive(
            ModelArchiverConfig(
                model_name=NAME, version=VERSION, handler=str(handler), export_path=str(store), force=True
            )
        )
    return store / f"{NAME}.mar"
