"""docs/openapi.yaml against a real server: every answer is what it says, and what is wrong is refused by it."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import OpenAPIV31SpecValidator
from PIL import Image

from archive.server import Server
from handler import errors
from handler.options import NAMES, Options
from tests.photographs import ASTRONAUT, HOPPER, NO_FACES
from tests.serving.conftest import ROOT, Start, centerface_mar, post, server, start, workspace

__all__ = ["centerface_mar", "post", "server", "start", "workspace"]

DOCUMENT = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
JPEG = HOPPER.path.read_bytes()
PNG = ASTRONAUT.path.read_bytes()
Post = Callable[..., httpx.Response]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def resolve(part: Any) -> Any:
    """What a reference names."""
    while isinstance(part, dict) and "$ref" in part:
        found: Any = DOCUMENT
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name.replace("~1", "/")]
        part = found
    return part


def validator(schema: dict[str, Any] | str) -> Draft202012Validator:
    """As docs/calling.md tells to make one; by a schema's name or by the schema."""
    reference = {"$ref": f"#/components/schemas/{schema}"} if isinstance(schema, str) else schema
    return Draft202012Validator(
        reference | {"components": DOCUMENT["components"]}, format_checker=FormatChecker(formats=["date-time", "uuid"])
    )


def check(answer: httpx.Response, path: str, method: str = "post") -> Any:
    """A reply is one that the document has for its status and type; its JSON, or None."""
    told = resolve(DOCUMENT["paths"][path][method]["responses"][str(answer.status_code)])
    by_worker = "headers" in told and (answer.status_code == 200 or answer.text.startswith('{"error"'))
    for name in told["headers"] if by_worker else ():
        assert name in answer.headers
    content = told.get("content", {})
    if not answer.content.strip():
        assert answer.status_code in (200, 413)
        return None
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in content
    if kind != "application/json":
        return None
    value = answer.json()
    validator(content[kind]["schema"]).validate(value)
    return value


def test_the_document_is_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_every_schema_is_json_schema_and_allows_nothing_it_does_not_name() -> None:
    def objects(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if part.get("type") == "object":
                yield part
            for each in part.values():
                yield from objects(each)
        elif isinstance(part, list):
            for each in part:
                yield from objects(each)

    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    found = list(objects(SCHEMAS))
    assert len(found) > 15
    assert all(each["additionalProperties"] is False for each in found)


def test_every_option_is_there_with_the_servers_own_limits() -> None:
    headers = [resolve(each) for each in DOCUMENT["paths"]["/predictions/{model}"]["post"]["parameters"]]
    assert {each["name"].lower().removeprefix("x-face-").replace("-", "_") for each in headers} == set(NAMES)
    for name in ("Form", "Request"):
        assert set(SCHEMAS[name]["properties"]) - {"image", "images"} == set(NAMES)
    for header in headers:
        name = header["name"].lower().removeprefix("x-face-").replace("-", "_")
        schema = resolve(header["schema"])
        if "default" in schema:
            assert schema["default"] == getattr(Options(0.5, 0.5), name), name
        for value in (-1, 0, 0.5, 1, 2, 750, 5000, 5001, 100_000, 100_001, True, False, "score", "size", "json", "x"):
            text = isinstance(value, str) and name == "canvas"
            if not text:
                assert _taken(name, value) == Draft202012Validator(schema).is_valid(value), (name, value)


def _taken(name: str, value: Any) -> bool:
    # The server reads 0 and 1 and text as other types too; the document names each option's own.
    own = {"landmarks": bool, "crops": bool, "order": str, "output": str, "canvas": str}.get(name, int | float)
    if not isinstance(value, own) or (isinstance(value, bool) and own is not bool):
        return False
    try:
        Options(0.5, 0.5).updated({name: value}, [])
    except errors.InvalidOption:
        return False
    return True


def test_every_error_is_there_under_its_status() -> None:
    def tree(kind: type[errors.MogFaceError]) -> Iterator[type[errors.MogFaceError]]:
        yield kind
        for below in kind.__subclasses__():
            yield from tree(below)

    kinds = [*tree(errors.RequestError), *tree(errors.ServiceError)]
    assert len(kinds) >= 10
    told = resolve(SCHEMAS["Error"])["properties"]["error"]["oneOf"]
    named = {
        (each["properties"]["code"]["const"], name)
        for each in told
        for name in each["properties"]["type"].get("enum", [each["properties"]["type"].get("const")])
    }
    assert named == {(kind.status, kind.type) for kind in kinds}


FORMS: dict[str, dict[str, Any]] = {
    "raw": {"content": JPEG, "headers": {"Content-Type": "image/jpeg"}},
    "raw, no face": {"content": NO_FACES[0].read_bytes()},
    "raw, options in headers": {"content": PNG, "headers": {"X-Face-Max-Faces": "1", "X-Face-Landmarks": "false"}},
    "form": {"files": {"image": JPEG}, "data": {"score_threshold": "0.3"}},
    "form, several": {"files": {"image1": JPEG, "image2": PNG, "image3": b"no picture"}},
    "json": {"json": {"image": b64(JPEG), "canvas": "640x480", "order": "size"}},
    "json, several": {"json": {"images": [b64(JPEG), "%", b64(PNG)], "min_face_size": 10}},
    "json, a list of one": {"json": {"images": [b64(JPEG)]}},
    "crops": {"content": PNG, "headers": {"X-Face-Crops": "true"}},
    "crops, several": {"json": {"images": [b64(JPEG), b64(PNG)], "crops": True}},
    "modelscope": {"content": JPEG, "headers": {"X-Face-Output": "modelscope"}},
    "modelscope, no landmarks": {"json": {"image": b64(JPEG), "output": "modelscope", "landmarks": False}},
    "modelscope, several": {"json": {"images": [b64(JPEG), b64(PNG)], "output": "modelscope"}},
    "picture": {"content": JPEG, "headers": {"X-Face-Output": "image"}},
    "picture, lossless": {"content": PNG, "headers": {"X-Face-Output": "image"}},
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_of_every_form(post: Post, form: str) -> None:
    if "json" in FORMS[form]:
        validator("Request").validate(FORMS[form]["json"])
    answer = post(**FORMS[form])
    assert answer.status_code == 200, answer.text
    value = check(answer, "/predictions/{model}")
    assert (value is None) == form.startswith("picture")
    if form.startswith("crops"):
        answers = value.get("results", [value])
        assert all(face["crop"] for each in answers for face in each["faces"])


WRONG: dict[str, tuple[int, dict[str, Any]]] = {
    "no picture": (400, {"content": b"no picture"}),
    "unknown option": (400, {"content": JPEG, "headers": {"X-Face-Colour": "red"}}),
    "no image": (400, {"json": {"max_faces": 1}}),
    "too many pixels": (413, {"content": b"P"}),
    "too many images": (413, {"json": {"images": [""] * 33}}),
    "over 30 MB": (413, {"content": bytes(30_000_001)}),
    "TIFF": (415, {"content": b"II*\0" + bytes(200)}),
    "declared as a form": (500, {"content": JPEG, "headers": {"Content-Type": "application/x-www-form-urlencoded"}}),
    "no token": (400, {"content": JPEG, "headers": {"Authorization": "Bearer wrong"}}),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_of_every_kind(post: Post, case: str) -> None:
    status, sent = WRONG[case]
    if case == "too many pixels":
        data = io.BytesIO()
        Image.new("L", (9000, 6000)).save(data, "PNG")
        sent = {"content": data.getvalue()}
    answer = post(**sent)
    assert answer.status_code == status, answer.text
    check(answer, "/predictions/{model}")


def test_errors_of_the_front_end(server: Server) -> None:
    def send(path: str) -> httpx.Response:
        return httpx.post(f"{server.inference}/predictions/{path}", content=JPEG, headers=server.headers(), timeout=60)

    assert check(send("nobody"), "/predictions/{model}")["code"] == 404
    assert check(send("centerface/9.9"), "/predictions/{model}/{version}")["code"] == 404
    assert check(send("centerface/1.0"), "/predictions/{model}/{version}")["faces"]


def test_management(server: Server) -> None:
    def ask(method: str, path: str, template: str = "", **query: str) -> Any:
        headers = server.headers("management")
        answer = httpx.request(method, server.management + path, headers=headers, params=query, timeout=60)
        return check(answer, template or path, method.lower())

    model, version = "/models/{model}", "/models/{model}/{version}"
    assert ask("GET", "/models")["models"] == [{"modelName": "centerface", "modelUrl": "centerface.mar"}]
    for path, template in {"": model, "/1.0": version, "/all": "/models/{model}/all"}.items():
        [described] = ask("GET", f"/models/centerface{path}", template)
        assert described["workers"][0]["status"] == "READY"
    assert ask("GET", "/models/nobody", model)["code"] == 404
    assert ask("GET", "/models/centerface/9", version)["code"] == 404
    workers = {"min_worker": "1", "max_worker": "1"}
    assert "status" in ask("PUT", "/models/centerface", model, **workers)
    assert "scaled to 1" in ask("PUT", "/models/centerface", model, synchronous="true", **workers)["status"]
    assert "status" in ask("PUT", "/models/centerface/1.0", version, **workers)
    assert ask("PUT", "/models/centerface", model, min_worker="2", max_worker="1")["code"] == 400
    assert ask("PUT", "/models/nobody", model, **workers)["code"] == 404
    assert "status" in ask("PUT", "/models/centerface/1.0/set-default", f"{version}/set-default")
    assert ask("POST", "/models", url="centerface.mar")["code"] == 405
    assert ask("DELETE", "/models/centerface/1.0", version)["code"] == 405
    for path in ("/models", "/models/centerface"):
        answer = httpx.get(server.management + path)
        assert check(answer, path.replace("centerface", "{model}"), "get")["type"] == "InvalidKeyException"
    ping = httpx.get(f"{server.inference}/ping", headers=server.headers())
    assert check(ping, "/ping", "get") == {"status": "Healthy"}
    metrics = httpx.get(f"{server.values['metrics_address']}/metrics")
    assert (
        metrics.headers["content-type"].partition(";")[0]
        in DOCUMENT["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    )
    token = httpx.get(f"{server.management}/token", params={"type": "inference"}, headers=server.headers("API"))
    assert check(token, "/token", "get") is None


def test_no_worker_and_models_that_come_and_go(start: Start, centerface_mar: Any) -> None:
    server = start("centerface", changes={"enable_model_api": "true"})

    def ask(method: str, path: str, template: str, **query: str) -> httpx.Response:
        headers = server.headers("management")
        answer = httpx.request(method, server.management + path, headers=headers, params=query, timeout=120)
        check(answer, template, method.lower())
        return answer

    ask("PUT", "/models/centerface", "/models/{model}", min_worker="0", max_worker="0", synchronous="true")
    answer = httpx.post(f"{server.inference}/predictions/centerface", content=JPEG, headers=server.headers())
    assert (answer.status_code, check(answer, "/predictions/{model}")["type"]) == (503, "ServiceUnavailableException")
    assert ask("POST", "/models", "/models", url="centerface.mar").status_code == 409
    assert ask("POST", "/models", "/models", url="nobody.mar").status_code == 404
    gone = ask("DELETE", "/models/centerface/1.0", "/models/{model}/{version}")
    assert gone.status_code == 200
    again = ask("POST", "/models", "/models", url="centerface.mar", initial_workers="1", synchronous="true")
    assert again.status_code == 200
    server.stop()


def test_what_is_wrong_is_refused(post: Post) -> None:
    """Each schema can fail: real answers with one thing changed."""
    answer = check(post(content=PNG, headers={"X-Face-Crops": "true"}), "/predictions/{model}")
    modelscope = check(post(content=PNG, headers={"X-Face-Output": "modelscope"}), "/predictions/{model}")
    error = check(post(content=b"no picture"), "/predictions/{model}")

    def set_to(*path: Any) -> Callable[[Any], None]:
        *way, last, value = path

        def change(content: Any) -> None:
            for step in way:
                content = content[step]
            content[last] = value

        return change

    def without(*path: Any) -> Callable[[Any], None]:
        *way, last = path

        def change(content: Any) -> None:
            for step in way:
                content = content[step]
            del content[last]

        return change

    face = ("faces", 0)
    changes: dict[str, tuple[Any, list[Callable[[Any], None]]]] = {
        "Answer": (
            answer,
            [
                *(without(key) for key in answer),
                *(without("model", key) for key in answer["model"]),
                *(without("timing_ms", key) for key in answer["timing_ms"]),
                *(without(*face, key) for key in ("box", "score", "landmarks")),
                *(without(*face, "landmarks", key) for key in answer["faces"][0]["landmarks"]),
                set_to("more", 1),
                set_to("image", "depth", 3),
                set_to("image", "width", 0),
                set_to("image", "width", 1.5),
                set_to("canvas", "640"),
                set_to("scale", 0),
                set_to("scale", 1.2),
                set_to("batch_size", 0),
                set_to("timing_ms", "decode", -1),
                set_to("model", "engine", "tf"),
                set_to(*face, "score", 1.01),
                set_to(*face, "score", "0.9"),
                set_to(*face, "box", [1, 2, 3]),
                set_to(*face, "box", [1, 2, 3, 4, 5]),
                set_to(*face, "box", [-1, 2, 3, 4]),
                set_to(*face, "landmarks", []),
                set_to(*face, "landmarks", "nose", [1]),
                set_to(*face, "landmarks", "ear", [1, 2]),
                set_to(*face, "crop", "no base64"),
                set_to(*face, "age", 30),
            ],
        ),
        "ModelScopeAnswer": (
            modelscope,
            [
                *(without(key) for key in modelscope),
                set_to("keypoints", 0, [1.0] * 9),
                set_to("boxes", 0, [1.0] * 5),
                set_to("scores", 0, 2),
                set_to("more", 1),
            ],
        ),
        "Error": (
            error,
            [
                *(without("error", key) for key in error["error"]),
                set_to("error", "code", 404),
                set_to("error", "type", "too_large"),
                set_to("error", "message", ""),
                set_to("error", "more", 1),
                set_to("more", 1),
            ],
        ),
    }
    tried = 0
    for name, (value, wrong) in changes.items():
        schema = validator(name)
        schema.validate(value)
        for change in wrong:
            content = copy.deepcopy(value)
            change(content)
            assert content != value
            assert not schema.is_valid(content), (name, content)
            tried += 1
    assert tried > 50
    for value, own in ((answer, "Answer"), (modelscope, "ModelScopeAnswer"), (error, "Error")):
        taken = [name for name in ("Answer", "ModelScopeAnswer", "Error", "Results") if validator(name).is_valid(value)]
        assert taken == [own]
