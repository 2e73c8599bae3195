from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from archive import configure as module
from archive import properties
from archive.build import Workspace, export_centerface
from archive.cli import main
from archive.configure import PRESETS, Archive, Plan, check, configure, memory_bytes, read_archive
from archive.engine import Order
from archive.pack import Recipe, pack, read_settings
from handler.config import Limits, Settings
from handler.errors import ArtifactError, ConfigError
from handler.options import Options
from handler.plans import read as read_plans
from tests import fake_tensorrt
from tests.archive.conftest import ROOT
from tests.fake_plans import fake_plans

SHIPPED = properties.read(ROOT / "config.properties")
OPTIONS = Options(score_threshold=0.5, nms_threshold=0.3)
GB = 1_000_000_000


def archive(
    detector: str = "centerface", version: str = "1.0", has_model_config: bool = False, **changes: Any
) -> Archive:
    settings = dataclasses.replace(Settings(detector, "none", OPTIONS), **changes)
    return Archive(f"{detector}.mar", detector, version, settings, has_model_config)


BOTH = [archive("centerface"), archive("mogface")]
ENTRY = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 4,
    "maxBatchDelay": 1,
    "responseTimeout": 120,
    "startupTimeout": 120,
}


def shipped(entry: dict[str, Any] | None = None, version: str = "1.0") -> dict[str, str]:
    """The shipped configuration of one model, with another entry."""
    return {**SHIPPED, "models": json.dumps({"centerface": {version: ENTRY if entry is None else entry}})}


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 16 * GB)


def test_the_shipped_configuration_passes_with_the_built_archive(mar: Path) -> None:
    assert check(SHIPPED, [read_archive(mar)]) == []


def test_the_shipped_configuration_passes_with_both_models() -> None:
    assert check(SHIPPED, BOTH) == []
    assert set(properties.models(SHIPPED)) == {"centerface", "mogface"}


ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "no delay": ({"maxBatchDelay": 0}, "maxBatchDelay is 0: TorchServe takes 0 or less for 100; expected 1 or more"),
    "delay over an int": ({"maxBatchDelay": 2**40}, "maxBatchDelay is 1099511627776: TorchServe wraps round"),
    "negative delay": ({"maxBatchDelay": -1}, "maxBatchDelay is -1"),
    "no batch": ({"batchSize": 0}, "batchSize is 0: expected 1 or more"),
    "no workers": ({"minWorkers": 0, "maxWorkers": 0}, "minWorkers is 0"),
    "workers the wrong way round": ({"minWorkers": 2, "maxWorkers": 1}, "minWorkers 2 is over maxWorkers 1"),
    "timeout in text": ({"responseTimeout": "120"}, "responseTimeout is '120': expected a whole number"),
    "a fraction": ({"batchSize": 1.5}, "batchSize is 1.5: expected a whole number"),
    "a flag": ({"batchSize": True}, "batchSize is True: expected a whole number"),
    "key that is not honoured": ({"jobQueueSize": 10}, "jobQueueSize: TorchServe ignores it; it honours minWorkers"),
    "misspelt key": ({"batch_size": 4}, "batch_size: TorchServe ignores it"),
    "timeout before the deadline": ({"responseTimeout": 60}, "responseTimeout is 60 s: images are begun up to 60 s"),
    "batch that outlasts the deadline": ({"batchSize": 601}, "batchSize is 601: at 100 ms an image a full batch takes"),
    "more memory than there is": ({"minWorkers": 25, "maxWorkers": 25}, "need about 16,[0-9]{3} MB, .* has 16,000"),
}


@pytest.mark.parametrize(("changes", "message"), ENTRIES.values(), ids=ENTRIES)
def test_silent_traps_in_an_entry_are_named(changes: dict[str, Any], message: str) -> None:
    assert check(shipped(), [archive()]) == []
    (problem,) = check(shipped({**ENTRY, **changes}), [archive()])
    assert re.search(message, problem)


@pytest.mark.parametrize("key", ENTRY)
def test_missing_keys_are_named(key: str) -> None:
    entry = {name: value for name, value in ENTRY.items() if name != key}
    (problem,) = check(shipped(entry), [archive()])
    assert problem.startswith(f"centerface 1.0: {key} is missing")


TOP: dict[str, tuple[dict[str, str], str]] = {
    "batch size": ({"batch_size": "8"}, "batch_size: TorchServe ignores it at the top level"),
    "batch delay": ({"max_batch_delay": "8"}, "max_batch_delay: TorchServe ignores it at the top level"),
    "request size": ({"max_request_size": "21000000"}, "max_request_size is 21000000, the archive takes 21000000"),
    "response size": ({"max_response_size": "1000"}, "max_response_size is 1000, the archive takes 28000000"),
    "response size in words": (
        {"max_response_size": "30MB"},
        "max_response_size is '30MB': expected a whole number from 1 to 2147483647",
    ),
    "heap under the queue": ({"vmargs": "-Xmx1g"}, "job_queue_size x max_request_size is 3,000 MB"),
    "queue no number": ({"job_queue_size": "x"}, "job_queue_size is 'x': expected a whole number"),
    "queue under nothing": ({"job_queue_size": "-1"}, "job_queue_size is '-1'"),
    "request over an int": ({"max_request_size": "2147483648"}, "max_request_size is '2147483648'"),
    "token of no time": ({"token_expiration_min": "0"}, "token_expiration_min is '0'"),
    "switch in capitals": ({"disable_token_authorization": "True"}, "expected true or false, in small letters"),
    "metrics in a log": ({"metrics_mode": "log"}, "TorchServe drops the handler's metrics"),
    "heap in gigabytes": ({"vmargs": "-Xmx16g"}, "need about 17,"),
    "heap in megabytes": ({"vmargs": "-Xms1g -Xmx15800M"}, "need about 17,"),
    "heap in kilobytes": ({"vmargs": "-Xmx16000000k"}, "need about 17,"),
    "heap in bytes": ({"vmargs": "-Xmx16000000000"}, "need about 16,700 MB"),
}


@pytest.mark.parametrize(("changes", "message"), TOP.values(), ids=TOP)
def test_silent_traps_at_the_top_are_named(changes: dict[str, str], message: str) -> None:
    (problem,) = check(shipped() | changes, [archive()])
    assert message in problem


def test_metrics_that_are_not_declared_are_named() -> None:
    values = shipped()
    del values["metrics_config"]
    (problem,) = check(values, [archive()])
    assert "TorchServe drops the handler's metrics" in problem


@pytest.mark.parametrize("vmargs", ["-Xmx3g", "-Xmx3072m", "-Xmx3145728K", "-Xmx3221225472", ""])
def test_heaps_that_fit_pass(vmargs: str) -> None:
    assert check(shipped() | {"vmargs": vmargs}, [archive()]) == []


@pytest.mark.parametrize("key", ["max_request_size", "max_response_size"])
def test_torchserves_own_size_is_too_small(key: str) -> None:
    values = shipped()
    del values[key]
    (problem,) = check(values, [archive()])
    assert f"{key} is unset (6553500)" in problem
    assert check(values, [archive(limits=Limits(bytes=6_000_000, response_bytes=6_000_000))]) == []


def test_a_version_that_is_not_the_archives_is_named() -> None:
    (problem,) = check(shipped(version="1.1"), [archive()])
    assert problem.startswith("centerface 1.0: models={...} has 1.1 for it")
    (problem,) = check({**SHIPPED, "models": "{}"}, [archive()])
    assert problem.startswith("centerface 1.0: models={...} has none for it")


def test_a_model_config_in_the_archive_is_named() -> None:
    (problem,) = check(shipped(), [archive(has_model_config=True)])
    assert problem.startswith("centerface.mar carries a model-config.yaml")


def test_an_empty_store_is_no_success() -> None:
    (problem,) = check(shipped(), [])
    assert "holds no archive: run `mogface-archive build` first" in problem
    with pytest.raises(ConfigError, match="holds no archive"):
        configure(SHIPPED, [], Plan())


def test_models_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="models: expected JSON"):
        check({**SHIPPED, "models": "{"}, [archive()])


def test_every_problem_is_named_at_once() -> None:
    problems = check(shipped({**ENTRY, "maxBatchDelay": 0, "batchSize": 0}) | {"batch_size": "1"}, BOTH)
    assert len(problems) == 4
    with pytest.raises(ConfigError) as refused:
        configure(SHIPPED, BOTH, Plan(delay_ms=0, response_s=60))
    lines = refused.value.message.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["centerface 1.0"] * 2 + ["mogface 1.0"] * 2


def configured(plan: Plan, archives: list[Archive] = BOTH, **top: str) -> tuple[dict[str, str], dict[str, Any]]:
    values = properties.parse(configure({**SHIPPED, **top}, archives, plan))
    return values, properties.models(values)


def test_a_cpu_gets_one_worker_a_model_and_all_else_of_the_base() -> None:
    values, models = configured(Plan())
    expected = {**ENTRY, "startupTimeout": 300}
    assert models == {
        "centerface": {"1.0": {**expected, "batchSize": 8}},
        # Ten seconds an image: two end within half the deadline.
        "mogface": {"1.0": {**expected, "batchSize": 2}},
    }
    assert {**values, "models": ""} == {**SHIPPED, "models": ""}


@pytest.mark.parametrize(
    ("preset", "gpus", "batches"),
    [("t4", 1, (64, 4)), ("a10", 2, (64, 4)), ("a100", 4, (64, 16)), ("h200", 8, (64, 32))],
)
def test_gpus_get_two_workers_each_and_batches_of_a_tenth_of_a_second(
    preset: str, gpus: int, batches: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 256 * GB)
    values, models = configured(Plan(preset, gpus))
    assert values["number_of_gpu"] == str(gpus)
    for name, batch in zip(("centerface", "mogface"), batches, strict=True):
        entry = models[name]["1.0"]
        assert (entry["minWorkers"], entry["maxWorkers"], entry["batchSize"]) == (2 * gpus, 2 * gpus, batch)


def test_more_memory_than_a_card_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 256 * GB)
    eight_together = [archive("mogface", engine_batch=8)]
    with pytest.raises(ConfigError, match=r"workers of a GPU need about 21,000 MB .*preset t4 has 16,000"):
        configure(SHIPPED, eight_together, Plan("t4", 2, workers=6))
    configure(SHIPPED, eight_together, Plan("t4", 2, workers=4))
    configure(SHIPPED, [archive("mogface")], Plan("t4", 2, workers=6))


def test_more_memory_than_the_machine_has_is_refused() -> None:
    # 16 workers, and a heap of 16 GiB for their 512 images of 30 MB.
    with pytest.raises(ConfigError, match=r"need about 57,[0-9]{3} MB, this machine has 16,000: fewer workers"):
        configure(SHIPPED, [archive("mogface")], Plan("h200", 8))


def front_end(values: dict[str, str]) -> tuple[int, str]:
    return int(values["job_queue_size"]), values["vmargs"].split()[0]


@pytest.mark.parametrize(
    ("plan", "archives", "memory_gb", "expected"),
    [
        # 13 images of ten seconds are answered while their callers wait; two are under way.
        (Plan(), [archive("mogface")], 16, (13, "-Xmx2g")),
        (Plan(), [archive("centerface")], 16, (100, "-Xmx4g")),
        (Plan(), BOTH, 16, (100, "-Xmx4g")),
        # Beside a worker and the front end itself there is room for 3 GiB: 77 images of 30 MB, 8 of them under way.
        (Plan(), [archive("centerface")], 4, (69, "-Xmx3g")),
        # Two workers with 4 each: the base's hundred is enough.
        (Plan("t4", 1), [archive("mogface")], 64, (100, "-Xmx4g")),
        # The next batches of 16 workers, and those that they are at.
        (Plan("h200", 8), [archive("mogface")], 256, (512, "-Xmx30g")),
        (Plan("h200", 8), [archive("mogface")], 64, (245, "-Xmx22g")),
    ],
)
def test_the_queue_fills_the_next_batches_and_the_heap_holds_it(
    plan: Plan, archives: list[Archive], memory_gb: int, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: memory_gb * GB)
    values, _ = configured(plan, archives)
    assert front_end(values) == expected
    assert values["vmargs"].split()[1:] == SHIPPED["vmargs"].split()[1:]
    assert check(values, archives, plan.preset, plan.gpus) == []


def test_what_memory_takes_from_the_queue_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 4 * GB)
    text = configure(SHIPPED, [archive()], Plan())
    assert "# More than 69, of 100 that would do, this machine's memory does not hold.\njob_queue_size=69\n" in text


def test_numbers_of_the_base_that_are_none_are_named() -> None:
    with pytest.raises(ConfigError, match="max_request_size is '30MB': expected a whole number"):
        configure({**SHIPPED, "max_request_size": "30MB"}, BOTH, Plan())
    # TorchServe's own take the place of those that are not there.
    base = {key: value for key, value in SHIPPED.items() if key not in ("job_queue_size", "vmargs")}
    values = properties.parse(configure(base, BOTH, Plan()))
    assert (values["job_queue_size"], values["vmargs"]) == ("100", "-Xmx4g")


@pytest.mark.parametrize(
    ("preset", "mig", "image_ms", "memory_mb", "batch"),
    [
        ("a100", "1g.5gb", 36.4, 5_000, 2),
        ("a100", "3g.20gb", 5.2 * 7 / 3, 20_000, 8),
        ("h200", "7g.141gb", 2.1, 141_000, 32),
    ],
)
def test_mig_instances_are_smaller_cards(
    preset: str, mig: str, image_ms: float, memory_mb: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 256 * GB)
    plan = Plan(preset, 7, mig=mig)
    assert plan.machine.image_ms["mogface"] == pytest.approx(image_ms)
    assert plan.machine.gpu_memory_mb == memory_mb
    text = configure(SHIPPED, [archive("mogface")], plan)
    values = properties.parse(text)
    entry = properties.models(values)["mogface"]["1.0"]
    assert (entry["minWorkers"], entry["batchSize"], values["number_of_gpu"]) == (14, batch, "7")
    assert "7 MIG instances" in text
    assert f"on {mig[0]} sevenths of the card" in text
    with pytest.raises(
        ConfigError, match=rf"workers of a GPU need about .* MB \(an estimate\), preset {preset} {mig} has"
    ):
        configure(SHIPPED, [archive("mogface", engine_batch=600)], plan)


def test_what_is_asked_is_written() -> None:
    _, models = configured(Plan(workers=3, batch=5, delay_ms=7, response_s=200), [archive()])
    expected = {**ENTRY, "batchSize": 5, "maxBatchDelay": 7, "responseTimeout": 200, "startupTimeout": 300}
    assert models == {"centerface": {"1.0": {**expected, "minWorkers": 3, "maxWorkers": 3}}}


def test_entries_are_of_the_archives_own_versions() -> None:
    _, models = configured(Plan(), [archive(version="2.3"), archive("mogface")])
    assert {name: list(versions) for name, versions in models.items()} == {"centerface": ["2.3"], "mogface": ["1.0"]}


def test_gpus_of_an_earlier_machine_are_forgotten() -> None:
    values, _ = configured(Plan(), number_of_gpu="8")
    assert "number_of_gpu" not in values


def test_each_figure_has_its_ground() -> None:
    text = configure(SHIPPED, BOTH, Plan())
    comment = text[: text.index("models=")].rpartition("\n\n")[2]
    assert "# The heap: 100 requests that wait and 10 that workers have, of 30 MB each, and 900 MB beside." in text
    assert (
        "batches take 10; 1300 are answered before their callers, who wait 130 s, give up.\njob_queue_size=100" in text
    )
    for line in (
        "# centerface: 100 ms an image (measured on two cores, rounded up);",
        "#   engine ort, precision fp32;",
        "#   1 workers, about 500 MB of memory each",
        "#   batches of 2: 20000 ms of network.",
        "# maxBatchDelay: a lone request waits it out",
    ):
        assert line in comment


def test_a_precision_that_the_floor_is_not_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 256 * GB)
    text = configure(SHIPPED, [archive("mogface")], Plan("a10", 1))
    assert "#   engine ort, precision fp32, which is slower than that;" in text
    assert "#   1,750 MB of GPU memory each (an estimate), of 24,000" in text
    text = configure(SHIPPED, [archive("mogface", engine="torch", precision="fp16")], Plan("a10", 1))
    assert "#   engine torch, precision fp16;" in text


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "preset": ({"preset": "v100", "gpus": 1}, "preset is 'v100': expected one of cpu, t4"),
    "GPUs on a CPU": ({"gpus": 1}, "preset cpu with 1 GPUs: cpu goes with 0"),
    "no GPU": ({"preset": "t4"}, "preset t4 with 0 GPUs"),
    "MIG on a CPU": ({"mig": "1g.5gb"}, "mig is '1g.5gb': expected the name of a GPU's MIG instance"),
    "no MIG name": ({"preset": "a100", "gpus": 1, "mig": "8g.80gb"}, "mig is '8g.80gb': expected the name"),
    "MIG over the card": ({"preset": "t4", "gpus": 1, "mig": "1g.20gb"}, "the whole card has 16,000 MB"),
    "negative GPUs": ({"preset": "t4", "gpus": -1}, "gpus is -1"),
    "no workers": ({"workers": 0}, "workers is 0: expected 1 or more"),
    "no batch": ({"batch": 0}, "batch is 0: expected 1 or more"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**changes)


def test_every_preset_knows_every_detector() -> None:
    for preset in PRESETS.values():
        assert set(preset.image_ms) == {"centerface", "mogface"} == set(module.WORKER_MB)


def test_archives_are_read(mar: Path) -> None:
    found = read_archive(mar)
    assert (found.file, found.name, found.version) == ("centerface.mar", "centerface", "1.0")
    assert found.settings.detector == "centerface"
    assert not found.has_model_config


def test_a_model_config_is_found(mar: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.mar"
    copy.write_bytes(mar.read_bytes())
    with zipfile.ZipFile(copy, "a") as content:
        content.writestr("model-config.yaml", "minWorkers: 9")
    assert read_archive(copy).has_model_config


def test_what_is_no_archive_is_refused(mar: Path, tmp_path: Path) -> None:
    (tmp_path / "text.mar").write_text("hello")
    with pytest.raises(ArtifactError, match=r"text\.mar"):
        read_archive(tmp_path / "text.mar")
    with zipfile.ZipFile(mar) as whole, zipfile.ZipFile(tmp_path / "part.mar", "w") as part:
        part.writestr("artifacts.json", whole.read("artifacts.json"))
    with pytest.raises(ArtifactError, match=r"MANIFEST\.json cannot be read"):
        read_archive(tmp_path / "part.mar")


@pytest.mark.parametrize(
    ("limit", "expected"), [("4000000000\n", 4 * GB), ("max\n", 16 * GB), ("99000000000", 16 * GB), (None, 16 * GB)]
)
def test_memory_is_the_containers_where_that_is_less(
    limit: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit)
    monkeypatch.setattr(module, "_CGROUP_LIMIT", path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 16 * GB}))
    assert memory_bytes() == expected


def test_gpu_memory_is_counted_by_the_plans_an_archive_carries(mar: Path, workspace: Workspace, tmp_path: Path) -> None:
    settings = dataclasses.replace(read_settings(mar), engine="trt")
    graphs = {Path(name).stem: path for name, path in export_centerface(workspace).items()}
    order = Order("centerface", settings.canvases, settings.long_side, batch=1)
    # A GPU that is pretended, so that the scratch is recorded.
    place = fake_plans(graphs, order, tmp_path / "plans", device=fake_tensorrt.Host())
    target = tmp_path / "centerface.mar"
    pack(Recipe("centerface", "1.0", settings, {}, [place]), target)
    [sidecar] = read_plans(place).values()
    packed = read_archive(target)
    # Plan, scratch, CUDA's share, and the largest canvas's tensors: 3 bytes a pixel in, 15 floats a cell out.
    tensors = 960 * 1280 * 3 + 240 * 320 * 15 * 4
    expected = sidecar.plan_bytes + (sidecar.device_memory or 0) + (600 << 20) + tensors
    assert packed.gpu_mb == -(-expected // 1_000_000)
    assert read_archive(mar).gpu_mb == 0
    problems = check(shipped({**ENTRY, "minWorkers": 40, "maxWorkers": 40}), [packed], "t4", 1)
    assert any(f"need about {40 * packed.gpu_mb:,} MB (by its plans)" in problem for problem in problems)


def test_the_command_takes_mig_instances_and_checks_against_them(
    mar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: 256 * GB)
    output = tmp_path / "config.properties"
    common = ["configure", "--store", str(mar.parent), "--preset", "a100", "--gpus", "2"]
    written = ["--mig", "3g.20gb", "--base", str(ROOT / "config.properties"), "--output", str(output)]
    assert main([*common, *written]) == 0
    assert "2 MIG instances" in output.read_text()
    assert main([*common, "--mig", "3g.20gb", "--check", str(output)]) == 0
    # Two workers do not fit into 3 GB.
    assert main([*common, "--mig", "1g.3gb", "--check", str(output)]) == 1


def test_a_workers_cache_is_memory_it_needs() -> None:
    def told(cache_bytes: int) -> str:
        return configure(SHIPPED, [archive(cache_bytes=cache_bytes)], Plan())

    assert "about 500 MB of memory each" in told(0)
    assert "about 1300 MB of memory each" in told(800_000_000)
    with pytest.raises(ConfigError, match="MB"):
        told(20 * GB)
