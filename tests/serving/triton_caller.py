"""Triton's own client at work, run by its environment's Python: what it is answered goes out as JSON.

    python triton_caller.py PORT_HTTP PORT_GRPC REQUESTS.json

A request is {"over", "model", "images" (paths) or "pixels" (one number), "parameters"}; its answer {"error"} or the
outputs, texts as text.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

KINDS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def main() -> None:
    ports = dict(zip(("http", "grpc"), sys.argv[1:3], strict=True))
    requests = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
    with ThreadPoolExecutor(max(1, len(requests))) as pool:
        answers = list(pool.map(lambda request: ask(request, ports), requests))
    sys.stdout.write(json.dumps(answers))


def ask(request: dict[str, Any], ports: dict[str, str]) -> dict[str, Any]:
    kind = KINDS[request["over"]]
    # One each: the HTTP client is not for several threads.
    client = kind.InferenceServerClient(f"127.0.0.1:{ports[request['over']]}")
    if "pixels" in request:
        array = np.full((1, 3, 640, 640), request["pixels"], np.float32)
        if "image" in request:
            array[0] = np.load(request["image"])
        given = kind.InferInput("pixels", list(array.shape), "FP32")
    else:
        array = np.array([[Path(path).read_bytes()] for path in request["images"]], np.object_)
        given = kind.InferInput("image", list(array.shape), "BYTES")
    given.set_data_from_numpy(array)
    try:
        result = client.infer(request["model"], [given], parameters=request.get("parameters") or None)
    except InferenceServerException as error:
        return {"error": error.message(), "status": str(error.status())}
    outputs = {name: result.as_numpy(name) for name in ("status", "count", "boxes", "scores", "landmarks")}
    texts = [row.decode("utf-8") for row in result.as_numpy("faces").ravel()]
    return {"faces": texts, **{name: np.nan_to_num(array, nan=-1e9).tolist() for name, array in outputs.items()}}


if __name__ == "__main__":
    main()
