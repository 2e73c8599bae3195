"""deploy/docker: what its files say, and the server's stage built and run by a stand-in for Docker."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from archive import properties
from tests.deploy.container import Container, Instruction, one, stages, variables
from tests.photographs import HOPPER
from tests.serving.conftest import ROOT

DOCKER = ROOT / "deploy" / "docker"
STAGES = stages(DOCKER / "Dockerfile")
IMAGES = ("server", "proxy")
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def copied(stage: list[Instruction]) -> list[str]:
    return [word for each in stage if each.name == "COPY" and not each.flags for word in each.words[:-1]]


def in_context(path: str) -> bool:
    """Whether .dockerignore lets it through: the last line that fits decides, a folder's line fits all in it."""
    kept = True
    for line in IGNORED:
        pattern = line.lstrip("!").removeprefix("**/")
        if line and not line.startswith("#"):
            parts = Path(path).parts
            starts = ["/".join(parts[: end + 1]) for end in range(len(parts))]
            names = parts if line.lstrip("!").startswith("**/") else starts
            if any(fnmatch.fnmatch(name, pattern) for name in names):
                kept = line.startswith("!")
    return kept


@pytest.mark.parametrize("name", IMAGES)
def test_images_run_as_a_user_without_rights(name: str) -> None:
    [user] = [each.value for each in STAGES[name] if each.name == "USER"]
    assert re.fullmatch(r"[1-9][0-9]{3,}:[1-9][0-9]{3,}", user), "Kubernetes' runAsNonRoot needs numbers"
    names = [each.name for each in STAGES[name]]
    # Nothing is written to the image after it.
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])


@pytest.mark.parametrize("name", STAGES)
def test_what_linters_of_dockerfiles_ask_for(name: str) -> None:
    for each in STAGES[name]:
        if each.name == "RUN" and "apt-get" in each.value:
            assert "apt-get update && apt-get install --yes --no-install-recommends " in each.value
            assert "rm -rf /var/lib/apt/lists/*" in each.value
        if each.name == "FROM":
            assert not each.value.split()[0].endswith(":latest")
        if each.name in ("CMD", "ENTRYPOINT"):
            assert each.value.startswith("["), "a shell in between would get the signals"
        assert each.name not in ("ADD", "MAINTAINER")
        assert not re.search(r"\b(sudo|curl|wget|chmod 777|pip install (?!.*-c))", each.value)
        assert not re.search(r"(?i)(password|secret|token)\s*=", each.value)


def test_the_environment_is_installed_as_make_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-c constraints/$(HOST).txt -e '.[$(1)]'" in makefile
    assert "$(call PIP,$(HOST)$(comma)serve$(comma)build$(comma)client$(JAVA))" in makefile
    [pip] = [each for each in STAGES["install"] if each.name == "RUN" and "pip install" in each.value]
    assert pip.value.endswith('-c "constraints/${HOST}.txt" ".[${HOST},serve,build,client${EXTRAS}]"')
    assert not any("env" in flag and "secret" in flag for flag in pip.flags)
    hosts = {path.stem for path in (ROOT / "constraints").iterdir()}
    assert one(STAGES["install"], "FROM").value == one(STAGES["server"], "FROM").value.replace("server", "install")
    assert [each.value for each in STAGES["install"] if each.name == "ARG"] == ["HOST=cpu", 'EXTRAS=""']
    assert hosts == {"cpu", "gpu"}


def test_the_context_holds_what_is_copied_and_nothing_that_lies_about() -> None:
    for name, stage in STAGES.items():
        for path in copied(stage):
            assert (ROOT / path).exists(), (name, path)
            assert in_context(path), (name, path)
    for path in ("key_file.json", ".git/config", "build/weights/x", "logs/ts_log.log", "tests/oracle.py", ".venv/x"):
        assert not in_context(path)
    assert not in_context("deploy/compose/mogface/tls.key")
    assert in_context("model_store/mogface.mar")
    assert not in_context("handler/__pycache__/errors.cpython-311.pyc")
    assert not in_context("clients/proto/inference_pb2.py")


def test_every_package_that_the_server_needs_is_copied() -> None:
    """Those that the command mogface-archive imports, from the project's own import rules."""
    there = {path.split("/")[0] for path in copied(STAGES["install"])}
    assert {"handler", "archive", "clients"} <= there


@pytest.fixture(scope="module")
def container(centerface_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    scratch = tmp_path_factory.mktemp("container")
    context = scratch / "context"
    for name in copied(STAGES["server"]):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        if name != "model_store":
            shutil.copy(ROOT / name, context / name)
    (context / "model_store").mkdir()
    shutil.copy(centerface_mar, context / "model_store" / "centerface.mar")
    running = Container(STAGES["server"], context, scratch / "overlay", scratch / "console.log")
    yield running
    running.kill()


def test_the_server_serves_without_rights_from_a_read_only_root(container: Container) -> None:
    assert "ready: centerface: 1 of 1 workers ready, a detection took" in container.healthy()
    assert container.run(["id", "-u"]).stdout == "10001\n"
    for path in ("/x", "/tmp/x", "/opt/mogface/x", "/etc/mogface/x", "/opt/mogface/model_store/x"):
        done = container.run(["touch", path])
        assert (done.returncode, "Read-only file system" in done.stderr) == (1, True), path
    found = container.run(["mogface", "detect", str(HOPPER.path), "--format", "table"])
    assert (found.returncode, found.stdout.count("\n")) == (0, 2), found
    # As shipped: tokens, management inside; the addresses that callers need reach out.
    values = properties.parse(container.run(["cat", "/etc/mogface/config.properties"]).stdout)
    shipped = properties.read(ROOT / "config.properties")
    assert {key: value for key, value in values.items() if value != shipped[key]} == {
        "inference_address": "http://0.0.0.0:8080",
        "grpc_inference_address": "0.0.0.0",
        "metrics_address": "http://0.0.0.0:8082",
    }
    first = container.first
    assert "entrypoint" in " ".join(first.cmdline())
    family = first.children(recursive=True)
    assert len(family) >= 3
    # What Docker sends the first process, which without a handler would not get it.
    assert container.stop() == 0, container.console.read_text()
    assert not psutil.wait_procs(family, timeout=10)[1]
    assert "ended by itself" not in container.console.read_text()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The entrypoint beside fakes of the programs that it starts."""
    shutil.copy(DOCKER / "entrypoint", tmp_path)
    for name, text in {
        "torchserve": 'echo "fake torchserve $*: $FROM_ENV $(ls)"\necho $$ > "$TMPDIR/.model_server.pid"\n$FAKE\n',
        "mogface-archive": "echo \"export FROM_ENV='two words'\"\n",
        "mogface": 'echo "fake mogface $*"\n',
    }.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "state").mkdir()
    return tmp_path


def entrypoint(installed: Path, *arguments: str, fake: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [installed / "entrypoint", *arguments],
        cwd=installed / "state",
        env=variables(STAGES["server"])
        | {
            "PATH": f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(installed / "state" / "tmp"),
            "FAKE": fake,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_server_that_ends_by_itself_is_a_failure(installed: Path) -> None:
    process = entrypoint(installed)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "fake torchserve --start --models centerface.mar --foreground: two words deploy\nmodel_store\ntmp" in output
    assert "TorchServe ended by itself" in output


def test_the_bare_command_and_its_end(installed: Path) -> None:
    # Left by an earlier run that was killed.
    (installed / "state" / "tmp").mkdir()
    (installed / "state" / "tmp" / ".model_server.pid").write_text("1")
    (installed / "state" / "key_file.json").write_text("{}")
    process = entrypoint(installed, "torchserve", "--start", "--models", "mogface.mar", fake="exec sleep 60")
    deadline = time.monotonic() + 30
    pid = installed / "state" / "tmp" / ".model_server.pid"
    while not pid.exists() or pid.read_text().strip() in ("", "1"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not (installed / "state" / "key_file.json").exists()
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "--models mogface.mar --foreground" in output


def test_any_other_command_is_run_as_it_is(installed: Path) -> None:
    for command in (("mogface", "health", "--shallow"), ("mogface", "models")):
        output, _ = entrypoint(installed, *command).communicate(timeout=30)
        assert output == f"fake {' '.join(command)}\n"
    process = entrypoint(installed, "sh", "-c", "exit 7")
    process.communicate(timeout=30)
    assert process.returncode == 7
