"""gRPC inference, by stubs made from the messages the server is known to speak."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_tools import protoc

from archive.server import Server
from tests.photographs import HOPPER

PROTO = """
syntax = "proto3";
package org.pytorch.serve.grpc.inference;
message PredictionsRequest { string model_name = 1; string model_version = 2; map<string, bytes> input = 3; }
message PredictionResponse { bytes prediction = 1; }
service InferenceAPIsService { rpc Predictions(PredictionsRequest) returns (PredictionResponse); }
"""


@pytest.fixture(scope="module")
def predict(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Callable[[dict[str, bytes]], Any]:
    folder = tmp_path_factory.mktemp("proto")
    (folder / "face_inference.proto").write_text(PROTO)
    source = Path(str(importlib.import_module("grpc_tools").__file__)).parent / "_proto"
    arguments = ["protoc", f"-I{folder}", f"-I{source}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main([*arguments, "face_inference.proto"]) == 0
    sys.path.insert(0, str(folder))
    try:
        messages = importlib.import_module("face_inference_pb2")
        services = importlib.import_module("face_inference_pb2_grpc")
    finally:
        sys.path.remove(str(folder))

    def call(fields: dict[str, bytes]) -> Any:
        with grpc.insecure_channel(f"127.0.0.1:{server.values['grpc_inference_port']}") as channel:
            stub = services.InferenceAPIsServiceStub(channel)
            reply = stub.Predictions(
                messages.PredictionsRequest(model_name="centerface", input=fields),
                metadata=[("authorization", server.headers()["Authorization"])],
                timeout=60,
            )
        return json.loads(reply.prediction)

    return call


def test_same_faces_as_by_rest(predict: Callable[[dict[str, bytes]], Any], post: Callable[..., httpx.Response]) -> None:
    data = HOPPER.path.read_bytes()
    answer = predict({"image": data, "score_threshold": b"0.3"})
    assert len(answer["faces"]) == 1
    assert answer["faces"] == post(files={"image": data}, data={"score_threshold": "0.3"}).json()["faces"]


def test_the_body_says_the_status_that_grpc_loses(predict: Callable[[dict[str, bytes]], Any]) -> None:
    assert predict({"data": b"no picture"})["error"]["code"] == 400
