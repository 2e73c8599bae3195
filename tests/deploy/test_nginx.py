"""deploy/nginx/mogface.conf in a real nginx before a real TorchServe: what passes, and what is logged."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from archive import properties
from archive.server import Server
from archive.verify import PHOTOGRAPH
from clients import (
    Answer,
    Client,
    ClientError,
    NotAuthorised,
    NotFound,
    TooLarge,
    Unavailable,
    Unreachable,
)
from tests.deploy.nginx import (
    GUIDE,
    JPEG,
    LIMIT,
    ONCE,
    Launch,
    Nginx,
    blocks,
    error_of,
    faces,
    free_port,
    predict,
    shell,
)
from tests.photographs import ASTRONAUT, HOPPER
from tests.serving.conftest import ROOT


def test_the_same_faces_as_directly(nginx: Nginx, behind: Server) -> None:
    direct = httpx.post(f"{behind.inference}/predictions/centerface", content=JPEG, timeout=60)
    expected = faces(direct.json())
    assert len(expected) == 1
    for path in ("/predictions/centerface", "/predictions/centerface/1.0", "//predictions/%63enterface"):
        for method in ("POST", "PUT"):
            answer = nginx.post(path, method=method)
            assert answer.status_code == 200, answer.text
            assert faces(answer.json()) == expected
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-model-weights"] == direct.headers["x-model-weights"]
    several = nginx.post(content=None, files={"image1": JPEG, "image2": ASTRONAUT.path.read_bytes()})
    assert [len(each["faces"]) for each in several.json()["results"]] == [1, 1]
    # Options in headers pass, and the detector's own errors as they are.
    assert nginx.post(headers={"X-Face-Max-Faces": "0"}).json()["error"]["type"] == "invalid_option"
    picture = nginx.post(headers={"X-Face-Output": "image"})
    assert (picture.headers["content-type"], picture.content[:2]) == ("image/jpeg", b"\xff\xd8")
    assert error_of(nginx.post("/ping")) == (405, "method_not_allowed")
    assert nginx.post("/ping", method="GET", content=None).json() == {"status": "Healthy"}
    with nginx.channel() as channel:
        assert faces(json.loads(predict(channel, nginx.token).prediction)) == expected


def test_http_1_0_is_answered(nginx: Nginx) -> None:
    status, headers, body = nginx.raw(f"POST /predictions/centerface HTTP/1.0\nContent-Length: {len(JPEG)}", JPEG)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert len(json.loads(body)["faces"]) == 1


def test_the_guides_calls_and_the_clients(nginx: Nginx, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(PHOTOGRAPH, nginx.prefix / "photo.jpg")
    commands = blocks("grpcs://")
    for shipped, here in {
        "/etc/nginx/mogface/tls.crt": str(nginx.roots),
        "localhost:443": f"localhost:{nginx.port}",
    }.items():
        assert shipped in commands
        commands = commands.replace(shipped, here)
    commands = commands.replace("https://localhost", nginx.address)
    curl, rest, by_grpc = shell(f'curl() {{ command curl "$@"; echo; }}\n{commands}', nginx.prefix).splitlines()
    expected = faces(json.loads(curl))
    assert len(expected) == 1
    assert faces(json.loads(rest)["answer"]) == faces(json.loads(by_grpc)["answer"]) == expected

    monkeypatch.setenv("SSL_CERT_FILE", str(nginx.roots))
    for address in (nginx.address, f"grpcs://localhost:{nginx.port}"):
        outcomes: list[object] = []
        for token, model, image in (
            (nginx.token, "centerface", HOPPER.path),
            ("wrong", "centerface", HOPPER.path),
            (nginx.token, "nobody", HOPPER.path),
            (nginx.token, "centerface", bytes(LIMIT + 1)),
        ):
            with Client(address, model, token=token, retry=ONCE, max_message_bytes=2 * LIMIT) as client:
                outcomes += client.detect_each([image])
        over = TooLarge if address == nginx.address else Unreachable
        assert [type(each) for each in outcomes] == [Answer, NotAuthorised, NotFound, over], address
        assert f"over {LIMIT:,} bytes" in str(outcomes[-1])
    # Whom it does not know it does not talk to.
    monkeypatch.delenv("SSL_CERT_FILE")
    for address in (nginx.address, f"grpcs://localhost:{nginx.port}"):
        with Client(address, token=nginx.token, retry=ONCE) as client, pytest.raises(Unavailable):
            client.detect(HOPPER.path)


def test_a_server_that_is_not_there(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = launch(f"127.0.0.1:{free_port()}", str(free_port()))
    assert error_of(alone.post()) == (502, "unavailable")
    monkeypatch.setenv("SSL_CERT_FILE", str(alone.roots))
    for address in (alone.address, f"grpcs://localhost:{alone.port}"):
        with Client(address, token=alone.token, retry=ONCE) as client, pytest.raises(ClientError) as caught:
            client.detect(HOPPER.path)
        assert isinstance(caught.value, Unavailable)
        assert "TorchServe cannot be reached" in caught.value.message


def test_logs_find_a_request_and_keep_its_secrets(nginx: Nginx, behind: Server) -> None:
    answer = nginx.post(
        "/predictions/centerface?key=in-the-query", headers={"X-Face-Max-Faces": "3", "Cookie": "crumb"}
    )
    assert answer.status_code == 200
    refusal = nginx.post("/models?key=in-the-query", headers={"Referer": "https://from.example/"})
    wrong = nginx.post(headers={"Authorization": "Bearer not-a-token"})
    deadline = time.monotonic() + 20
    found: dict[str, dict[str, Any]] = {}
    identities = [each.headers["x-request-id"] for each in (answer, refusal, wrong)]
    while not set(identities) <= found.keys():
        assert time.monotonic() < deadline
        found = {line["id"]: line for line in nginx.lines()}
    lines = [found[identity] for identity in identities]
    assert [(line["caller"], line["path"], line["status"]) for line in lines] == [
        ("alice", "/predictions/centerface", 200),
        ("alice", "/models", 404),
        ("", "/predictions/centerface", 401),
    ]
    assert lines[0]["torchserve_status"] == "200"
    assert lines[0]["bytes_in"] > len(JPEG)
    assert identities[0] in (behind.folder / "logs" / "model_log.log").read_text(errors="replace")
    written = [path.read_bytes() for path in (nginx.prefix / "log").iterdir()]
    assert len(written) == 3
    for secret in (nginx.token, "not-a-token", "in-the-query", "crumb", "from.example", "X-Face"):
        assert not any(secret.encode() in each for each in written), secret
    # Nor does TorchServe come to know the token.
    for path in (behind.folder / "logs").iterdir():
        assert nginx.token.encode() not in path.read_bytes()


def test_the_guides_configuration_turns_torchserves_tokens_off(tmp_path: Path) -> None:
    shutil.copy(ROOT / "config.properties", tmp_path)
    commands = [line for line in blocks("disable_token_authorization").splitlines() if "configure" not in line]
    shell("\n".join(commands), tmp_path)
    shipped = properties.read(ROOT / "config.properties")
    changed = properties.read(tmp_path / "build" / "config.properties")
    assert changed == shipped | {"disable_token_authorization": "true"} != shipped


def test_every_block_of_the_guide_is_run_or_needs_a_whole_machine() -> None:
    found = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    run = ("disable_token", "deploy/nginx/mogface.conf", "rand -hex", "openssl req", "nginx -t", "grpcs://")
    machine = ("apt-get install", "useradd")
    for words in (*run, *machine):
        assert len([each for each in found if words in each]) == 1, words
    assert len(found) == len(run) + len(machine)
