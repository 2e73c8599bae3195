"""PyTorch: programs of ``torch.export``, which need no code of the network's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from handler.engines.base import Engine, TensorSpec
from handler.errors import ArtifactError, EngineError

#: Beside the program in its file: what :func:`describe` writes.
TENSORS = "tensors.json"
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float16, torch.uint8, torch.int64)}


class TorchEngine(Engine):
    """A ``.pt2`` program on a CPU or a GPU.

    An optional input that is not given counts as zeros of the first input's shape.

    Args:
        program: the file, as archive/programs.py writes it.
        device: where it runs.
        threads: of a CPU; PyTorch has one number for the whole process.

    Raises:
        ArtifactError: the file is missing or no such program.
    """

    # Programs read strides, and a GPU's convolutions are fastest on the channels-last ones they give each other.
    contiguous = False

    def __init__(self, program: Path, device: torch.device, threads: int) -> None:
        described = {TENSORS: ""}
        try:
            with program.open("rb") as file:
                exported = torch.export.load(file, extra_files=described)
            inputs, outputs = _read(described[TENSORS])
            if device.type == "cuda":
                from torch.export.passes import move_to_device_pass

                exported = move_to_device_pass(exported, device)
            # What it would guard, the contract of Engine checks, and with our names in the message.
            self._module = exported.module(check_guards=False)
        except Exception as error:  # torch.export raises whatever its reading of the file meets
            raise ArtifactError(f"{program}: PyTorch cannot load it: {type(error).__name__}: {error}") from error
        super().__init__({spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs}, device)
        if device.type == "cuda":
            # fp32 means fp32: by default a GPU would round its convolutions' inputs to TF32's ten bits.
            torch.backends.cudnn.allow_tf32 = False
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:
            torch.set_num_threads(threads)

    @torch.inference_mode()
    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shape = feeds[next(iter(self.inputs))].shape
        # Of one element, seen as many: it takes no memory.
        values = [
            feeds[name] if name in feeds else torch.zeros((), dtype=spec.dtype, device=self.device).expand(shape)
            for name, spec in self.inputs.items()
        ]
        try:
            answer = self._module(*values)
        except RuntimeError as error:  # the root of what torch raises of an operator, memory that is out included
            raise EngineError(f"PyTorch failed: {error}") from error
        return dict(zip(self.outputs, answer, strict=True))


def describe(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """The tensors of a program, in its own order, as JSON for the file that holds it."""
    sides = {"inputs": inputs, "outputs": outputs}
    rows = {
        side: [dataclasses.asdict(spec) | {"dtype": str(spec.dtype)} for spec in specs] for side, specs in sides.items()
    }
    return json.dumps(rows)


def _read(text: str) -> tuple[list[TensorSpec], list[TensorSpec]]:
    described = json.loads(text)
    inputs, outputs = (
        [TensorSpec(**row | {"dtype": _DTYPES[row["dtype"]], "shape": tuple(row["shape"])}) for row in described[side]]
        for side in ("inputs", "outputs")
    )
    return inputs, outputs
