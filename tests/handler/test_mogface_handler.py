from __future__ import annotations

import dataclasses
import inspect
import io
import json
import logging
import re
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ts
from PIL import Image
from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

from handler import artifacts, device, metrics, mogface_handler
from handler.config import FILE, Settings
from handler.errors import ConfigError
from handler.mogface_handler import MogFaceHandler, came_by_grpc
from tests.handler.fake import CPU, grey
from tests.support import saved

# Not the name that it is registered under.
MANIFEST = {"model": {"modelName": "archived", "modelVersion": "2.1"}}
PICTURE = saved(Image.fromarray(grey(40, 60, 90)), "JPEG")
METRICS = Path(__file__).parents[2] / "deploy" / "metrics.yaml"


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The handler owns its process: its logging, and a thread that publishes metrics. Here the process is pytest's."""
    loggers = [logging.getLogger(name) for name in (None, "mogface", "ts.metrics.caching_metric")]
    before = [(each.level, each.propagate, list(each.handlers), list(each.filters)) for each in loggers]
    started: list[metrics.Publisher] = []
    start = metrics.Publisher.start

    def remembered(self: metrics.Publisher) -> metrics.Publisher:
        started.append(self)
        return start(self)

    monkeypatch.setattr(metrics.Publisher, "start", remembered)
    with warnings.catch_warnings():
        yield
    for publisher in started:
        publisher.stop()
    for each, (level, propagate, handlers, filters) in zip(loggers, before, strict=True):
        each.level, each.propagate, each.handlers, each.filters = level, propagate, handlers, filters
    loggers[0].manager._clear_cache()  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path, centerface_folder: Path, centerface_settings: Settings) -> Path:
    (tmp_path / "graphs").symlink_to(centerface_folder / "graphs")
    (tmp_path / FILE).write_text(centerface_settings.dump(), encoding="utf-8")
    # Of its list there is a test of its own; here settings change.
    (tmp_path / artifacts.FILE).write_text('{"files": {}}', encoding="utf-8")
    return tmp_path


def context(folder: Path, headers: list[dict[str, str]] | None = None, declared: Path = METRICS) -> Context:
    cache = MetricsCacheYamlImpl(str(declared))
    cache.initialize_cache()
    made = Context("faces", str(folder), MANIFEST, 4, None, "0.12.0", metrics=cache)
    if headers is not None:
        made.request_processor = [RequestProcessor(each) for each in headers]
        made.request_ids = {index: f"id-{index}" for index in range(len(headers))}
    return made


def test_torchserve_finds_one_class() -> None:
    classes = inspect.getmembers(mogface_handler, inspect.isclass)
    assert [value for _, value in classes if value.__module__ == mogface_handler.__name__] == [MogFaceHandler]


def test_each_request_of_a_batch_has_its_body_status_and_type(folder: Path) -> None:
    handler = MogFaceHandler()
    handler.initialize(context(folder))
    batch = context(folder, [{}, {"X-Face-Output": "image"}, {}, {"X-Face-Max-Faces": "0"}])
    bodies = handler.handle([{"body": bytearray(data)} for data in (PICTURE, PICTURE, b"none", PICTURE)], batch)
    assert [batch.get_response_status(index) for index in range(4)] == [
        (200, "OK"),
        (200, "OK"),
        (400, "Bad Request"),
        (400, "Bad Request"),
    ]
    types = [batch.get_response_content_type(index) for index in range(4)]
    assert types == ["application/json", "image/jpeg", "application/json", "application/json"]
    assert all(isinstance(body, bytes) for body in bodies)
    answer = json.loads(bodies[0])
    assert (answer["model"]["name"], answer["model"]["version"], answer["batch_size"]) == ("faces", "2.1", 4)
    assert answer["image"] == {"width": 60, "height": 40}
    assert bodies[1].startswith(b"\xff\xd8")
    assert [json.loads(body)["error"]["type"] for body in bodies[2:]] == ["invalid_image", "invalid_option"]


def test_lines_go_to_the_workers_output_one_json_object_each(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    handler = MogFaceHandler()
    handler.initialize(context(folder))
    handler.initialize(context(folder))
    handler.handle([{"body": bytearray(PICTURE)}], context(folder, [{}]))
    output = capsys.readouterr().out.splitlines()
    lines = [json.loads(line) for line in output if not line.startswith("[METRICS]mogface_")]
    assert [line["event"] for line in lines] == ["ready", "ready", "request"]
    assert lines[0] == {
        "event": "ready",
        "device": "cpu",
        "gpu_claimed": None,
        "model": "faces",
        "engine": "ort",
        "weights": "none",
    }
    assert lines[2]["request"] == "id-0"
    # Not to TorchServe's own handler at the root as well, which would print each line twice.
    assert caplog.records == []


def metric_lines(output: str) -> dict[str, float]:
    """Values by name and labels, added up as the front end does."""
    found: dict[str, float] = {}
    for name, value, labels in re.findall(r"^\[METRICS\](\w+)\.\w+:([0-9\-,.e]+)\|#([^|]*)\|#type:\w+\|", output, re.M):
        found[f"{name} {labels}"] = found.get(f"{name} {labels}", 0) + float(value)
    return found


def test_metrics_go_to_the_workers_output_as_torchserve_reads_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = MogFaceHandler()
    handler.initialize(context(folder))
    before = metric_lines(capsys.readouterr().out)
    assert before["mogface_worker_starts_total model:faces,version:2.1"] == 1
    assert before["mogface_requests_total model:faces,version:2.1,outcome:deadline"] == 0
    handler.handle([{"body": bytearray(PICTURE)}, {"body": b"none"}], context(folder, [{}, {}]))
    output, deadline = "", time.monotonic() + 60
    while "mogface_batch_seconds_count" not in output:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        output += capsys.readouterr().out
    # What belongs together is handed over together.
    time.sleep(0.2)
    after = metric_lines(output + capsys.readouterr().out)
    assert after["mogface_requests_total model:faces,version:2.1,outcome:ok"] == 1
    assert after["mogface_images_total model:faces,version:2.1,outcome:invalid_image"] == 1
    assert after["mogface_batch_requests_bucket model:faces,version:2.1,le:2"] == 1
    assert "mogface_batch_requests_bucket model:faces,version:2.1,le:1" not in after


def test_torchserves_own_line_a_batch_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MogFaceHandler().initialize(context(folder))
    given = context(folder, [{}])
    given.metrics.set_request_ids("id")
    given.metrics.add_time("PredictionTime", 5.0)
    assert "PredictionTime" not in capsys.readouterr().out


def test_a_worker_that_cannot_load_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / FILE).write_text("detector: retinaface\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        MogFaceHandler().initialize(context(folder))
    assert metric_lines(capsys.readouterr().out) == {"mogface_worker_starts_total model:faces,version:2.1": 1}


def test_a_server_that_declares_no_metrics_is_told_and_serves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = MogFaceHandler()
    handler.initialize(context(folder, declared=Path(ts.__file__).parent / "configs" / "metrics.yaml"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "metrics"
    assert lines[0]["not_declared"] == list(metrics.declared())
    [body] = handler.handle([{"body": bytearray(PICTURE)}], context(folder, [{}]))
    assert "faces" in json.loads(body)


def test_a_declaration_of_other_labels_is_refused(folder: Path, tmp_path: Path) -> None:
    """TorchServe would log an error for each sample and show none."""
    other = tmp_path / "metrics.yaml"
    other.write_text(METRICS.read_text().replace("[model, version, canvas]", "[model, canvas, version]"))
    with pytest.raises(ConfigError, match=r"mogface_canvases_total with \['model', 'canvas', 'version'\]"):
        MogFaceHandler().initialize(context(folder, declared=other))


def test_pillows_warnings_stay_out_of_the_log(folder: Path) -> None:
    handler = MogFaceHandler()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handler.initialize(context(folder))
        # Its EXIF block promises more than it holds.
        odd = saved(Image.open(io.BytesIO(PICTURE)), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\xff")
        handler.handle([{"body": odd}], context(folder, [{}]))
    assert [warning for warning in caught if "PIL" in warning.filename] == []


def test_a_worker_on_the_cpu_claims_no_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(*_: object) -> None:
        raise AssertionError("a GPU was claimed")

    monkeypatch.setattr(device, "claim", claim)
    given = context(folder)
    given.system_properties["gpu_id"] = 0
    MogFaceHandler().initialize(given)


def test_a_worker_that_torchserve_gives_a_gpu_claims_one(
    folder: Path,
    centerface_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("claims")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(device, "choose", lambda *_: CPU)
    (folder / FILE).write_text(dataclasses.replace(centerface_settings, device="auto").dump(), encoding="utf-8")
    handlers = [MogFaceHandler(), MogFaceHandler()]
    for each in handlers:
        given = context(folder)
        given.system_properties["gpu_id"] = 1
        each.initialize(given)
    assert device.counts(2) == [1, 1]


def test_wrong_settings_stop_the_worker_with_their_reason(folder: Path) -> None:
    (folder / FILE).write_text("detector: centerface\nthreshold: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown key 'threshold'"):
        MogFaceHandler().initialize(context(folder))


PART = {"content-type": "image/jpeg"}
#: What TorchServe 0.12 hands over as a request's headers, seen by a handler that printed them.
BY_REST: dict[str, dict[str, Any]] = {
    "HTTP/1.1": {"body": {"content-type": ""}, "Host": "127.0.0.1:8080", "Content-Length": "5"},
    # The front end adds the length where there is none.
    "HTTP/1.0 without headers or body": {"body": {"content-type": ""}, "content-length": "0"},
    "chunked": {"body": {"content-type": ""}, "Transfer-Encoding": "chunked", "content-length": "5"},
    "multipart": {"image": PART, "max_faces": PART, "Content-Length": "900", "Content-Type": "multipart/form-data"},
}
BY_GRPC: dict[str, dict[str, Any]] = {
    "one entry": {"image": {"content-type": ""}},
    "entries called as headers are": {"Content-Length": {"content-type": ""}, "host": {"content-type": ""}},
    "no entry": {},
}


@pytest.mark.parametrize("headers", BY_REST.values(), ids=BY_REST)
def test_a_request_with_any_header_came_by_rest(headers: dict[str, Any]) -> None:
    assert not came_by_grpc(headers)


@pytest.mark.parametrize("headers", BY_GRPC.values(), ids=BY_GRPC)
def test_a_request_without_headers_came_by_grpc(headers: dict[str, Any]) -> None:
    assert came_by_grpc(headers)


def test_only_answers_over_grpc_say_that_no_more_come(folder: Path) -> None:
    handler = MogFaceHandler()
    handler.initialize(context(folder))
    batch = context(folder, [BY_REST["HTTP/1.1"], BY_GRPC["one entry"], BY_REST["multipart"], BY_GRPC["no entry"]])
    handler.handle([{"image": bytearray(PICTURE)}] * 3 + [{}], batch)
    marks = [batch.get_response_headers(index).get("ts_stream_next") for index in range(4)]
    assert marks == [None, "false", None, "false"]
