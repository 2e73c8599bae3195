"""The plainest model for Triton's Python backend: one photograph after another. It travels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import detector  # noqa: E402


class TritonPythonModel:
    """Faces of each image of each request of a batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the detector out of the version's folder."""
        self.detector = detector.load(FOLDER)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer a request."""
        responses = []
        for request in requests:
            images = pb.get_input_tensor_by_name(request, "image").as_numpy()
            answers = [[detector.answer(self.detector.detect(image))] for image in images.ravel()]
            responses.append(pb.InferenceResponse([pb.Tensor("faces", np.array(answers, np.object_))]))
        return responses
