"""The plainest handler for TorchServe: one photograph after another, as tutorials write it. It travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import detector
from ts.torch_handler.base_handler import BaseHandler


class PlainHandler(BaseHandler):
    """preprocess, inference, postprocess; BaseHandler calls them in turn."""

    def initialize(self, context: Any) -> None:
        """Load the detector out of the archive."""
        self.detector = detector.load(Path(context.system_properties["model_dir"]))
        self.initialized = True

    def preprocess(self, data: list[dict[str, Any]]) -> list[bytes]:
        """The photographs of a batch, still encoded: the detector opens them."""
        return [bytes(row.get("data") or row["body"]) for row in data]

    def inference(self, data: list[bytes]) -> list[Any]:
        """Faces of each."""
        return [self.detector.detect(photograph) for photograph in data]

    def postprocess(self, data: list[Any]) -> list[bytes]:
        """JSON of each."""
        return [detector.answer(found) for found in data]
