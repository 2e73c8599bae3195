from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from archive import properties, serve
from archive.server import Server
from handler.errors import ArtifactError, ConfigError, EnvironmentFault


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """In a folder whose name a shell and a properties file have to be careful with."""
    folder = tmp_path / "a b é"
    folder.mkdir()
    path = folder / "config.properties"
    path.write_text(
        "inference_address=http://127.0.0.1:8080\nmodel_store=store\ndisable_token_authorization=false\n"
        "metrics_config=deploy/metrics.yaml\nvmargs=-Xmx1g -Dlog4j.configurationFile=deploy/log4j2.xml\n",
        encoding="utf-8",
    )
    return path


def test_an_isolated_configuration_needs_no_folder_of_the_first(config: Path, tmp_path: Path) -> None:
    copy = serve.isolated(config, tmp_path)
    assert copy == tmp_path / "config.properties"
    values = properties.read(copy)
    assert values["model_store"] == str(config.parent / "store")
    assert values["metrics_config"] == str(config.parent / "deploy/metrics.yaml")
    assert values["vmargs"] == f"-Xmx1g -Dlog4j.configurationFile={(config.parent / 'deploy/log4j2.xml').as_uri()}"
    assert len(values["vmargs"].split()) == 2
    assert values["disable_token_authorization"] == "false"
    assert values["inference_address"] not in ("", "http://127.0.0.1:8080")


def test_absolute_paths_stay(config: Path, tmp_path: Path) -> None:
    config.write_text(
        "model_store=/models\nmetrics_config=/etc/metrics.yaml\nvmargs=-Dlog4j.configurationFile=/etc/log4j2.xml\n"
    )
    values = properties.read(serve.isolated(config, tmp_path))
    assert (values["model_store"], values["metrics_config"], values["vmargs"]) == (
        "/models",
        "/etc/metrics.yaml",
        "-Dlog4j.configurationFile=file:///etc/log4j2.xml",
    )


def test_metrics_that_are_declared_nowhere_are_refused(config: Path, tmp_path: Path) -> None:
    """TorchServe would start, and each of its workers die of it."""
    with pytest.raises(ConfigError, match=r"metrics_config=deploy/metrics\.yaml of .* is not there, seen from"):
        serve._server(config, [], tmp_path, tmp_path / "tmp")


def test_the_curl_command_is_one_a_shell_reads(config: Path, tmp_path: Path) -> None:
    (config.parent / "key_file.json").write_text('{"inference": {"key": "abc"}}')
    server = Server(config, [], config.parent, tmp_path)
    command = serve.curl(server, "faces", Path("/a b/it's.jpg"))
    assert shlex.split(command) == [
        "curl",
        "-s",
        "-H",
        "Authorization: Bearer abc",
        "-T",
        "/a b/it's.jpg",
        "http://127.0.0.1:8080/predictions/faces",
    ]


def test_exports_are_ones_a_shell_reads(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java home"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(java))
    lines = [shlex.split(line) for line in serve.env(config).splitlines()]
    assert all(word == "export" for word, _ in lines)
    exported = dict(assignment.split("=", 1) for _, assignment in lines)
    assert exported["JAVA_HOME"] == str(java)
    assert exported["TS_CONFIG_FILE"] == str(config)


def test_no_java_no_exports(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(EnvironmentFault, match="JAVA_HOME is /nowhere"):
        serve.env(config)


def test_a_missing_archive_is_told_before_anything_starts(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: Server) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(Server, "start", start)
    with pytest.raises(ArtifactError, match=r"store/faces\.mar is missing: run `mogface-archive build faces`"):
        serve.serve(config, ["faces"])
    config.write_text("job_queue_size=1\n")
    with pytest.raises(ConfigError, match="has no model_store"):
        serve.serve(config, ["faces"])


def test_a_missing_photograph_is_told_before_anything_starts(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"photograph .*none\.jpg"):
        serve.demo(config, tmp_path / "none.jpg", tmp_path / "out.jpg")
    assert not (tmp_path / "out.jpg").exists()
