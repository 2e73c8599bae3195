"""ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from handler.engines.base import Engine, TensorSpec
from handler.errors import ArtifactError, EngineError, EnvironmentFault

_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(uint8)": torch.uint8,
    "tensor(int64)": torch.int64,
}
_NUMPY = {torch.float32: np.float32, torch.float16: np.float16, torch.uint8: np.uint8, torch.int64: np.int64}
#: The default tries every algorithm of a convolution at each new shape, and shapes here are many: batches, canvases,
#: levels. And fp32 means fp32: by default inputs are rounded to TF32's ten bits.
_CUDA = {"cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "0"}

#: Bytes of inputs up to which a run's memory is kept for the next one: an image of 640x640 and some. Without an arena
#: each run's pages are cleared anew, which takes as long as CenterFace's network itself; with one that never shrinks a
#: worker stays at the peak of the largest picture it ever saw: 590 MB after one of 1504x1504, where now it is 210.
KEPT = 2_000_000
_SHRINK = ("memory.enable_memory_arena_shrinkage", "cpu:0")


class OrtEngine(Engine):
    """An ONNX graph on ONNX Runtime, by its CPU or its CUDA provider.

    Raises:
        ArtifactError: the file is missing or no graph that ONNX Runtime loads.
        EnvironmentFault: the package or the device's provider is missing.
    """

    def __init__(self, graph: Path, device: torch.device, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise EnvironmentFault("engine ort needs the package onnxruntime or onnxruntime-gpu") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # The graphs are chains: a second pool would only contend with the first.
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning threads starve the decoders and the other workers of their cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if device.type == "cuda":
            provider: Any = ("CUDAExecutionProvider", _CUDA | {"device_id": str(device.index or 0)})
        else:
            provider = "CPUExecutionProvider"
        try:
            # Its fallback would start a session on the CPU where the GPU's fails.
            session = onnxruntime.InferenceSession(str(graph), options, providers=[provider], enable_fallback=0)
        except Exception as error:  # ONNX Runtime raises classes of its own, without a common root
            raise ArtifactError(f"{graph}: ONNX Runtime cannot load it: {error}") from error
        # Asked for a provider that cannot start, ONNX Runtime goes on with the CPU and says nothing; what it lists as
        # available is what it was built with, whatever the machine has.
        wanted = provider[0] if isinstance(provider, tuple) else provider
        if wanted not in session.get_providers():
            raise EnvironmentFault(f"{wanted} does not start here; ONNX Runtime has {session.get_providers()}")
        self._session = session
        self._shrinking = None
        if device.type == "cpu":
            self._shrinking = onnxruntime.RunOptions()
            self._shrinking.add_run_config_entry(*_SHRINK)
        inputs = [_spec(node) for node in session.get_inputs()]
        optional = [_spec(node, optional=True) for node in session.get_overridable_initializers()]
        outputs = [_spec(node) for node in session.get_outputs()]
        super().__init__({spec.name: spec for spec in inputs + optional}, {spec.name: spec for spec in outputs}, device)

    def _run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        names = list(self.outputs)
        try:
            if self.device.type == "cuda":
                return self._run_bound(feeds)
            large = sum(tensor.nbytes for tensor in feeds.values()) > KEPT
            arrays = self._session.run(
                names, {name: tensor.numpy() for name, tensor in feeds.items()}, self._shrinking if large else None
            )
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime failed: {error}") from error
        return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}

    def _run_bound(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inputs are read and outputs left where they are. On a GPU this has not been run; on a CPU it is tested."""
        kind, index = self.device.type, self.device.index or 0
        binding = self._session.io_binding()
        for name, tensor in feeds.items():
            binding.bind_input(name, kind, index, _NUMPY[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        for name in self.outputs:
            # Without a buffer: the shapes are the graph's to find, and each run's outputs are new memory.
            binding.bind_output(name, kind, index)
        if kind == "cuda":
            # ONNX Runtime has a stream of its own. So the feeds must be there before it starts, and PyTorch must be
            # done with what earlier runs gave and was freed since: ONNX Runtime takes that memory again.
            torch.cuda.current_stream(self.device).synchronize()
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return {name: from_dlpack(value) for name, value in zip(self.outputs, binding.get_outputs(), strict=True)}


def _spec(node: Any, optional: bool = False) -> TensorSpec:
    """ONNX Runtime's node argument as a TensorSpec; an unnamed free axis gets a name of its own."""
    if node.type not in _DTYPES:
        raise ArtifactError(f"tensor {node.name!r} is {node.type}: expected one of {', '.join(_DTYPES)}")
    shape = tuple(axis if axis is not None else f"{node.name}.{i}" for i, axis in enumerate(node.shape))
    return TensorSpec(node.name, _DTYPES[node.type], shape, optional)
