"""deploy/compose: what must hold between its files and those of the images."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from archive import properties
from tests.deploy.container import one, stages
from tests.deploy.nginx import blocks, free_port, shell
from tests.requirements import lacking
from tests.serving.conftest import ROOT

FOLDER = ROOT / "deploy" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = {name: each for name, each in SERVICES.items() if name.startswith("server-")}
STAGES = stages(ROOT / "deploy" / "docker" / "Dockerfile")


def test_nginx_knows_every_server_by_its_own_address() -> None:
    conf = (FOLDER / "mogface" / "servers.conf").read_text(encoding="utf-8")
    shipped = properties.read(ROOT / "config.properties")
    addresses = [each["networks"]["inside"]["ipv4_address"] for each in SERVERS.values()]
    assert len(set(addresses)) == len(SERVERS) == 2
    for group, port in {
        "mogface_rest": shipped["inference_address"].rpartition(":")[2],
        "mogface_grpc": shipped["grpc_inference_port"],
    }.items():
        [block] = re.findall(rf"upstream {group} {{(.*?)}}", conf, re.DOTALL)
        listed = re.findall(r"^    server (\S+) max_fails=0;$", block, re.MULTILINE)
        assert listed == [f"{address}:{port}" for address in addresses]
        assert "least_conn;" in block
    # But for the servers it is the shipped file.
    single = (ROOT / "deploy" / "nginx" / "servers.conf").read_text(encoding="utf-8")

    def others(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith(("#", "    server"))]

    assert others(conf) == others(single)


def test_callers_reach_nginx_alone() -> None:
    assert COMPOSE["networks"]["inside"]["internal"] is True
    for server in SERVERS.values():
        assert list(server["networks"]) == ["inside"]
        assert "ports" not in server
        # nginx asks for the token; behind it TorchServe's own, other in each server, would be refused.
        assert server["command"][-1] == "--disable-token-auth"
        assert server["command"][:3] == ["torchserve", "--start", "--models"]
    assert SERVICES["proxy"]["ports"] == ["${PORT:-443}:443"]


@pytest.mark.parametrize("name", SERVICES)
def test_containers_have_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "memory", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    assert not {"privileged", "network_mode", "user", "cap_add", "pid"} & service.keys()
    assert service["build"]["target"] in STAGES
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()


def test_the_proxy_writes_where_its_configuration_says() -> None:
    main = (ROOT / "deploy" / "docker" / "nginx.conf").read_text(encoding="utf-8")
    written = re.findall(r"^ *(?:pid|\w+_temp_path) (\S+);", main, re.MULTILINE)
    assert len(written) == 6
    assert all(path.startswith("/tmp/") for path in written)
    user = one(STAGES["proxy"], "USER").value.partition(":")[0]
    assert SERVICES["proxy"]["tmpfs"] == [f"/tmp:uid={user},gid={user},mode=0700"]
    assert SERVICES["proxy"]["depends_on"] == {name: {"condition": "service_healthy"} for name in SERVERS}


def test_gpu_hosts_give_each_server_its_own() -> None:
    services = yaml.safe_load((FOLDER / "gpu.yaml").read_text(encoding="utf-8"))["services"]
    assert services.keys() == SERVERS.keys()
    given = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in services.values()]
    assert given == [["0"], ["1"]]
    assert all(each["build"]["args"] == {"HOST": "gpu"} for each in services.values())


class FakeTorchServe(http.server.BaseHTTPRequestHandler):
    """Openly a fake: it takes a request, says so, and answers once it is told to."""

    arrived = threading.Event()
    answer = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.arrived.set()
        self.answer.wait(30)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on the console."""


@pytest.fixture
def behind_fake() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeTorchServe)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("servers", ["deploy/nginx/servers.conf", "deploy/compose/mogface/servers.conf"])
def test_nginx_takes_the_proxys_configuration_and_ends_once_all_is_answered(
    servers: str, behind_fake: str, tmp_path: Path
) -> None:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        lacking("nginx", "no nginx on PATH: apt-get install nginx")
    port, etc = free_port(), tmp_path / "etc" / "nginx"
    (etc / "mogface").mkdir(parents=True)
    shell(blocks("openssl req").replace("/etc/nginx", str(etc)), tmp_path)
    (etc / "mogface" / "tokens").write_text('"Bearer t" alice;\n', encoding="utf-8")
    (etc / "conf.d").mkdir()
    for source, target, here in (
        ("deploy/docker/nginx.conf", "nginx.conf", {" /tmp/": f" {tmp_path}/"}),
        ("deploy/nginx/mogface.conf", "conf.d/mogface.conf", {"/var/log/nginx": str(tmp_path)}),
        (servers, "mogface/servers.conf", {}),
    ):
        text = (ROOT / source).read_text(encoding="utf-8")
        for shipped, changed in here.items():
            assert shipped in text
            text = text.replace(shipped, changed)
        if source.endswith("mogface.conf"):
            text = text.replace("    listen [::]:443 ssl http2 default_server;\n", "")
            text = text.replace("listen 443 ", f"listen 127.0.0.1:{port} ")
        # Every server is the fake.
        (etc / target).write_text(
            re.sub(r"(?m)^    server [^{;]* max_fails", f"    server {behind_fake} max_fails", text)
        )
    command = [program, *one(STAGES["proxy"], "CMD").words[1:], "-c", str(etc / "nginx.conf")]
    FakeTorchServe.arrived.clear()
    FakeTorchServe.answer.clear()
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    answers: list[int] = []
    trust = ssl.create_default_context(cafile=str(etc / "mogface" / "tls.crt"))

    def call() -> None:
        address = f"https://localhost:{port}/predictions/centerface"
        retrying = httpx.HTTPTransport(verify=trust, retries=8)
        with httpx.Client(transport=retrying, timeout=60) as client:
            answers.append(client.post(address, content=b"x", headers={"Authorization": "Bearer t"}).status_code)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        assert FakeTorchServe.arrived.wait(30), process.poll()
        process.send_signal(getattr(signal, one(STAGES["proxy"], "STOPSIGNAL").value))
        deadline = time.monotonic() + 30
        while not refused(port):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.poll() is None
        FakeTorchServe.answer.set()
        caller.join(30)
        assert answers == [200]
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False
