from __future__ import annotations

import re
from pathlib import Path

import pytest

from archive import cli, properties
from archive.build import Workspace
from archive.cli import main
from archive.files import sha256
from archive.pack import read_settings
from archive.verify import PHOTOGRAPH
from tests.archive.conftest import ROOT

Output = pytest.CaptureFixture[str]


@pytest.fixture
def folders(workspace: Workspace) -> list[str]:
    return ["--build", str(workspace.build), "--store", str(workspace.store)]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["nonsense"],
        ["build", "retinaface"],
        ["verify"],
        ["configure", "--preset", "v100"],
        ["configure", "--batch", "many"],
        ["configure", "--workers", "1", "--workers-per-gpu", "1"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: Output) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage: mogface-archive" in capsys.readouterr().err


def refusal(capsys: Output, *arguments: str) -> str:
    """The message of a verb that must be refused, with nothing on the output."""
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"mogface-archive {arguments[0]}: ")
    assert "Traceback" not in err
    return err


def test_build_says_what_it_made_and_what_was_there(mar: Path, folders: list[str], capsys: Output) -> None:
    assert main(["build", "centerface", *folders]) == 0
    assert capsys.readouterr().out == f"{mar}  sha256 {sha256(mar)}  (unchanged)\n"
    mar.unlink()
    assert main(["build", "centerface", *folders]) == 0
    assert capsys.readouterr().out == f"{mar}  sha256 {sha256(mar)}\n"


def test_weights_and_export_say_where_they_lie(folders: list[str], capsys: Output) -> None:
    assert main(["weights", "centerface", *folders]) == 0
    path, _, digest = capsys.readouterr().out.strip().partition("  sha256 ")
    assert sha256(Path(path)) == digest
    assert main(["export", "centerface", *folders]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert Path(line).name == "centerface.onnx"
    assert Path(line).is_file()


def test_an_engine_that_is_not_there_is_refused(folders: list[str], capsys: Output) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["build", "centerface", "--engine", "nothing", *folders])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err


def test_what_centerface_cannot_be_built_of_is_refused(folders: list[str], capsys: Output) -> None:
    build = ("build", "centerface", *folders)
    assert "score_threshold" in refusal(capsys, *build, "--set", "options.score_threshold=2")
    assert "CenterFace has its own" in refusal(capsys, *build, "--weights", "seeded:3")
    assert "int8 needs a folder of pictures" in refusal(capsys, *build, "--precision", "int8")
    assert "ort and trt run int8" in refusal(capsys, *build, "--precision", "int8", "--engine", "torch")
    assert "plans are for the engine trt" in refusal(capsys, *build, "--plans", "somewhere")


def test_another_precision_is_judged_before_it_reaches_the_store(folders: list[str], capsys: Output) -> None:
    assert main(["build", "centerface", "--precision", "fp16", *folders]) == 0
    out = capsys.readouterr().out
    assert "fp16) against centerface" in out
    assert "6 images, 6 faces of the reference, 6 of the candidate" in out
    assert main(["build", "centerface", "--precision", "fp16", *folders]) == 0
    assert "(unchanged)" in capsys.readouterr().out
    # As the other tests find it.
    assert main(["build", "centerface", *folders]) == 0


def test_verify_says_what_it_found(mar: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    said = {key: f"the {key}" for key in ("name", "version", "detector", "weights", "engine", "precision", "sha256")}
    answer = {"faces": [1, 2], "canvas": "640x640", "timing_ms": {"network": 12.4}}
    monkeypatch.setattr(cli, "verify", lambda _: {**said, "files": {"a": "1", "b": "2", "c": "3"}, "answer": answer})
    assert main(["verify", str(mar)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{mar}: whole, and runs by itself"
    assert [line.split(maxsplit=1) for line in lines[1:8]] == [[key, f"the {key}"] for key in said]
    assert lines[8].split(maxsplit=1)[1] == "3, each as its hash says"
    assert lines[9].endswith("2 faces on astronaut.jpg at 640x640, 12 ms of network")


def test_verify_refuses_what_is_no_archive(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "a.mar").write_text("hello")
    assert "a.mar: expected an archive made by" in refusal(capsys, "verify", str(tmp_path / "a.mar"))
    assert "b.mar: no such archive" in refusal(capsys, "verify", str(tmp_path / "b.mar"))


def configure(store: Path, output: Path, *arguments: str) -> list[str]:
    base = str(ROOT / "config.properties")
    return ["configure", "--store", str(store), "--base", base, "--output", str(output), *arguments]


def test_configure_writes_what_check_accepts(mar: Path, tmp_path: Path, capsys: Output) -> None:
    output = tmp_path / "config.properties"
    assert main(configure(mar.parent, output, "--batch", "2", "--workers", "1")) == 0
    assert capsys.readouterr().out == f"{output}: cpu, centerface 1.0\n"
    entry = properties.models(properties.read(output))["centerface"]["1.0"]
    assert (entry["batchSize"], entry["minWorkers"], entry["maxBatchDelay"]) == (2, 1, 1)
    assert main(["configure", "--store", str(mar.parent), "--check", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}: TorchServe will do what it says, for centerface.mar\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delay", "0"], "centerface 1.0: maxBatchDelay is 0"),
        (["--response-timeout", "60"], "responseTimeout is 60 s"),
        (["--workers", "0"], "workers is 0: expected 1 or more"),
        (["--workers-per-gpu", "0"], "--workers-per-gpu goes with --gpus"),
        (["--workers", "2", "--gpus", "1", "--preset", "t4"], "--workers counts a CPU host's workers"),
        (["--batch", "0"], "batch is 0: expected 1 or more"),
        (["--gpus", "1"], "preset cpu with 1 GPUs"),
        (["--preset", "t4"], "preset t4 with 0 GPUs"),
        (["--base", "/nowhere/config.properties"], "/nowhere/config.properties"),
        (["--output", "/dev/null/config.properties"], "Not a directory|File exists"),
    ],
)
def test_configure_refuses_and_leaves_the_old_file(
    mar: Path, tmp_path: Path, capsys: Output, arguments: list[str], message: str
) -> None:
    output = tmp_path / "config.properties"
    output.write_text("old")
    assert re.search(message, refusal(capsys, *configure(mar.parent, output, *arguments)))
    assert output.read_text() == "old"


def test_an_empty_store_is_no_success(tmp_path: Path, capsys: Output) -> None:
    shipped = str(ROOT / "config.properties")
    for arguments in (["--check", shipped], ["--base", shipped, "--output", str(tmp_path / "out")]):
        assert "the model store holds no archive" in refusal(capsys, "configure", "--store", str(tmp_path), *arguments)
    assert not (tmp_path / "out").exists()


def test_check_lists_every_problem(mar: Path, tmp_path: Path, capsys: Output) -> None:
    wrong = tmp_path / "wrong.properties"
    wrong.write_text((ROOT / "config.properties").read_text().replace('"1.0"', '"0.9"') + "batch_size=4\n")
    lines = refusal(capsys, "configure", "--store", str(mar.parent), "--check", str(wrong)).splitlines()
    assert lines[0] == f"mogface-archive configure: {wrong}:"
    assert [line.split(":")[0] for line in lines[1:]] == ["  batch_size", "  centerface 1.0"]


def test_serving_and_showing_refuse_what_is_missing(tmp_path: Path, capsys: Output) -> None:
    config = tmp_path / "config.properties"
    config.write_text("model_store=store\n")
    given = ["--config", str(config)]
    assert "faces.mar is missing: run `mogface-archive build faces`" in refusal(capsys, "serve", "faces", *given)
    assert "faces.mar is missing" in refusal(
        capsys, "demo", "--model", "faces", *given, "--picture", str(tmp_path / "out.jpg")
    )
    assert "photograph none.jpg" in refusal(capsys, "demo", "--photograph", "none.jpg", *given)
    assert "No such file" in refusal(capsys, "serve", "faces", "--config", str(tmp_path / "none"))


def test_env_prints_exports_or_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    config = ["--config", str(ROOT / "config.properties")]
    assert main(["env", *config]) == 0
    assert f"export TS_CONFIG_FILE={ROOT / 'config.properties'}\n" in capsys.readouterr().out
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "JAVA_HOME is /nowhere" in refusal(capsys, "env", *config)


def test_an_interrupt_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "verify", interrupted)
    assert main(["verify", "a.mar"]) == 130
    assert capsys.readouterr().err == "mogface-archive: interrupted\n"


def test_the_photograph_is_there_wherever_one_is() -> None:
    assert PHOTOGRAPH.is_absolute()
    assert PHOTOGRAPH.is_file()


def test_settings_of_the_archive_are_set_by_name(workspace: Workspace, tmp_path: Path) -> None:
    given = ["--set", "draft=true", "--set", "limits.pixels=1000000", "--set", "limits.images=3"]
    assert main(["pack", "centerface", "--build", str(workspace.build), "--store", str(tmp_path), *given]) == 0
    settings = read_settings(tmp_path / "centerface.mar")
    assert (settings.draft, settings.limits.pixels, settings.limits.images) == (True, 1_000_000, 3)
