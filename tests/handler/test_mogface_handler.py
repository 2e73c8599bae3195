from __future__ import annotations

import dataclasses
import inspect
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from ts.context import Context, RequestProcessor

from handler import device, mogface_handler
from handler.config import FILE, Settings
from handler.errors import ConfigError
from handler.mogface_handler import MogFaceHandler
from tests.handler.fake import CPU, grey
from tests.support import saved

MANIFEST = {"model": {"modelName": "faces", "modelVersion": "2.1"}}
PICTURE = saved(Image.fromarray(grey(40, 60, 90)), "JPEG")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The handler owns its process's logging; here the process is pytest's."""
    root, own = logging.getLogger(), logging.getLogger("mogface")
    before = root.level, own.level, own.propagate, list(own.handlers)
    with warnings.catch_warnings():
        yield
    root.level, own.level, own.propagate, own.handlers = before
    own.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path, centerface_folder: Path, centerface_settings: Settings) -> Path:
    (tmp_path / "graphs").symlink_to(centerface_folder / "graphs")
    (tmp_path / FILE).write_text(centerface_settings.dump(), encoding="utf-8")
    return tmp_path


def context(folder: Path, headers: list[dict[str, str]] | None = None) -> Context:
    made = Context("faces", str(folder), MANIFEST, 4, None, "0.12.0")
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
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
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
