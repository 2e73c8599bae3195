"""Triton's entry file: the only module that knows its Python backend, with exactly one class in it.

It lies in an unpacked archive, whose own code answers, as it does behind TorchServe. Triton calls ``initialize``
once in each instance and ``execute`` for each batch. ``execute`` never raises: an exception would fail every
request of the batch.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton_python_backend_utils as pb
from PIL import Image

FOLDER = Path(__file__).resolve().parent
# Before any other package of this name: what travels in the archive is what answers.
sys.path.insert(0, str(FOLDER))

from handler import allocator, artifacts, gpu_metrics, metrics  # noqa: E402
from handler.config import FILE, Settings, cores  # noqa: E402
from handler.cuda import alive  # noqa: E402
from handler.errors import (  # noqa: E402
    ConfigError,
    EnvironmentFault,
    InvalidImage,
    InvalidOption,
    MogFaceError,
)
from handler.pipeline import Pipeline  # noqa: E402
from handler.request import HEADER_PREFIX, Request  # noqa: E402
from handler.response import Response, encode_error  # noqa: E402

log = logging.getLogger("mogface")
#: Of one face in a tensor: the five points in the order of the JSON.
_POINTS = ("right_eye", "left_eye", "nose", "mouth_right", "mouth_left")
#: Of TritonError, which Triton puts into the module after this file is read.
_CODES = {500: "INTERNAL", 503: "UNAVAILABLE"}


class TritonPythonModel:
    """Answers Triton's batches through a Pipeline."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the archive, run the network once.

        Args:
            args: of Triton: the model's configuration, name and device.

        Raises:
            SetupError: Triton logs it and the model does not become ready.
        """
        _require_working_arrays()
        config = json.loads(args["model_config"])
        instances = sum(group["count"] * max(1, len(group["gpus"])) for group in config["instance_group"])
        if args["model_instance_kind"] == "CPU" and instances > 1:
            # One instance takes every core by itself; several have to share them.
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // instances)))
        _log_lines_of_our_own()
        allocator.return_freed_memory()
        # Of odd metadata and large pictures, which are the caller's and answered for.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        logging.getLogger("PIL").setLevel(logging.CRITICAL)
        settings = Settings.load(FOLDER / FILE)
        artifacts.check(FOLDER)
        said = json.loads((FOLDER / artifacts.FILE).read_bytes())
        self._device = _device(settings.device, args["model_instance_kind"], args["model_instance_device_id"])
        self._pixels = config["input"][0]["name"] == "pixels"
        name, version = args["model_name"], said["version"]
        meter = metrics.Meter(name, version)
        meter.add(metrics.WORKER_STARTS, 1)
        self._publisher = metrics.Publisher(meter, _sink()).start()
        if self._device.type == "cuda":
            self._publisher.watch(gpu_metrics.Card(self._device.index).read)
        self._pipeline = Pipeline.load(FOLDER, settings, name, version, self._device, meter)

    def finalize(self) -> None:
        """Hand over the last counts."""
        self._publisher.stop()

    @torch.inference_mode()
    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One batch.

        Args:
            requests: of Triton, each with one image or several.

        Returns:
            One ``InferenceResponse`` a request, in their order.
        """
        rows = [list(self._rows(request)) for request in requests]
        good = [row for each in rows for row in each if isinstance(row, Request)]
        answers = iter(self._pipeline.answer(good))
        if not alive(self._device):
            # Nothing it is asked will be answered again. Triton starts another process for this instance.
            log.critical(json.dumps({"event": "device_lost", "device": str(self._device)}))
            os._exit(3)
        return [
            _answer([next(answers) if isinstance(row, Request) else encode_error(row) for row in each]) for each in rows
        ]

    def _rows(self, request: Any) -> Iterator[Request | MogFaceError]:
        """One request of the pipeline for each image, or the error of one that has no pixels."""
        options = json.loads(request.parameters() or "{}")
        # As headers: among the fields a parameter could be a further image, whose answer no row would hold.
        headers = {f"{HEADER_PREFIX}{name}": value for name, value in {**options, "output": "json"}.items()}
        if "output" in options:
            error = InvalidOption("output is 'json' here: tensors hold boxes, scores and landmarks beside it")
        else:
            error = None
        images = pb.get_input_tensor_by_name(request, "pixels" if self._pixels else "image").as_numpy()
        for image in images if self._pixels else images.ravel():
            try:
                if error:
                    raise error
                data = _picture(image) if self._pixels else bytes(image)
                yield Request({"image": data}, headers, request.request_id())
            except MogFaceError as refused:
                yield refused


def _answer(responses: Sequence[Response]) -> Any:
    """One Triton answer: of a single image its error is the request's own, as over REST."""
    if len(responses) == 1 and responses[0].error:
        code = getattr(pb.TritonError, _CODES.get(responses[0].status, "INVALID_ARG"))
        return pb.InferenceResponse(error=pb.TritonError(responses[0].body.decode("utf-8"), code))
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in _tensors(responses).items()])


def _tensors(responses: Sequence[Response]) -> dict[str, npt.NDArray[Any]]:
    """The outputs; images with fewer faces than the most of them are filled up with zeros."""
    faces = [json.loads(response.body).get("faces", []) for response in responses]
    count, most = len(faces), max(map(len, faces))
    boxes = np.zeros((count, most, 4), np.float32)
    scores = np.zeros((count, most), np.float32)
    landmarks = np.zeros((count, most, len(_POINTS), 2), np.float32)
    for row, found in enumerate(faces):
        for column, face in enumerate(found):
            boxes[row, column], scores[row, column] = face["box"], face["score"]
            points = face["landmarks"]
            landmarks[row, column] = [points[name] for name in _POINTS] if points else np.nan
    return {
        "faces": np.array([[response.body] for response in responses], np.object_),
        "status": np.array([[response.status] for response in responses], np.int32),
        "count": np.array([[len(found)] for found in faces], np.int32),
        "boxes": boxes,
        "scores": scores,
        "landmarks": landmarks,
    }


def _picture(pixels: npt.NDArray[np.float32]) -> bytes:
    """[3, H, W] float32 RGB, 0..255, as a BMP, which costs a copy: so a tensor goes the way of every photograph.

    Raises:
        InvalidImage: values outside 0..255, or all within 0..1, as of a tensor that was normalised.
    """
    least, most = float(pixels.min()), float(pixels.max())
    # Written so that NaN fails too.
    if not (least >= 0 and most <= 255) or 0 < most <= 1:
        raise InvalidImage(
            f"pixels lie in {least:g}..{most:g}: expected RGB of 0..255, not normalised; the network does that itself"
        )
    data = io.BytesIO()
    Image.fromarray(np.rint(pixels).astype(np.uint8).transpose(1, 2, 0)).save(data, "BMP")
    return data.getvalue()


def _sink() -> metrics.Sink:
    """Samples -> Triton's own metrics, which add up over all instances. Families and series live as long as this."""
    kinds = {"counter": pb.MetricFamily.COUNTER, "gauge": pb.MetricFamily.GAUGE}
    declared = metrics.declared()
    families = {
        name: pb.MetricFamily(name=name, description="See docs/metrics.md", kind=kinds[kind])
        for name, (kind, _) in declared.items()
    }
    series: dict[tuple[str, tuple[str, ...]], Any] = {}

    def send(sample: metrics.Sample) -> None:
        key = sample.name, sample.labels
        if key not in series:
            labels = dict(zip(declared[sample.name][1], sample.labels, strict=True))
            series[key] = families[sample.name].Metric(labels=labels)
        if sample.kind == "counter":
            series[key].increment(sample.value)
        else:
            series[key].set(sample.value)

    return send


def _device(setting: str, kind: str, index: str) -> torch.device:
    if kind == "CPU":
        if setting == "cuda":
            raise ConfigError(
                "device is 'cuda' in detector.yaml and the instances are KIND_CPU: write them with --gpus"
            )
        return torch.device("cpu")
    if setting == "cpu":
        raise ConfigError("device is 'cpu' in detector.yaml and the instances are KIND_GPU: write them without --gpus")
    if not torch.cuda.is_available():
        raise EnvironmentFault("the instances are KIND_GPU, but torch sees no GPU here")
    device = torch.device("cuda", int(index))
    torch.cuda.set_device(device)
    return device


def _require_working_arrays() -> None:
    """The backend of Triton 2.51 was compiled for NumPy 1; with NumPy 2 every array of it has a stride of 0."""
    numbers = np.arange(3, dtype=np.int32)
    if not np.array_equal(pb.Tensor("numbers", numbers).as_numpy(), numbers) or not _same_texts():
        raise EnvironmentFault(
            f"this Triton's Python backend cannot read arrays of NumPy {np.__version__}: it was compiled for NumPy 1; "
            "`pip install 'numpy<2'` into the environment of its models"
        )


def _same_texts() -> bool:
    texts = np.array([b"a", b"bc"], np.object_)
    return list(pb.Tensor("texts", texts).as_numpy()) == [b"a", b"bc"]


def _log_lines_of_our_own() -> None:
    """One JSON object a line on the server's output."""
    if not log.handlers:
        stream = logging.StreamHandler(sys.stdout)
        stream.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(stream)
    log.setLevel(logging.INFO)
    log.propagate = False
