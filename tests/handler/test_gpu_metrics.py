from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import pytest

from handler import device
from handler.gpu_metrics import Card, claims
from handler.metrics import Meter
from tests import fake_pynvml


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def readings(card: Card) -> dict[tuple[str, ...], float]:
    meter = Meter()
    card.read(meter)
    return {(sample.name.removeprefix("mogface_gpu_"), *sample.labels): sample.value for sample in meter.drain()}


@pytest.mark.usefixtures("pynvml")
def test_use_memory_and_temperature_in_prometheus_units() -> None:
    assert readings(Card(0)) == {
        ("utilization_ratio", "0"): 0.42,
        ("memory_used_bytes", "0"): 20e9,
        ("memory_total_bytes", "0"): 80e9,
        ("temperature_celsius", "0"): 51,
    }


@pytest.mark.usefixtures("pynvml")
@pytest.mark.parametrize(("listed", "temperature"), [("1,0", 88), ("GPU-fake-1, GPU-fake-0", 88), ("0,1", 51)])
def test_the_visible_card_is_read(listed: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert readings(Card(0))["temperature_celsius", "0"] == temperature


@pytest.mark.usefixtures("pynvml")
def test_the_mig_instance_is_read_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOGFACE_VISIBLE_DEVICES", "GPU-fake-1,GPU-fake-0")
    # What the worker itself was shown.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-fake-0")
    assert readings(Card(0))["temperature_celsius", "0"] == 88
    assert readings(Card(1))["temperature_celsius", "1"] == 51


@pytest.mark.usefixtures("pynvml")
def test_what_a_card_refuses_is_left_out_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(card: object) -> None:
        raise fake_pynvml.NVMLError("Not Supported")

    monkeypatch.setattr(fake_pynvml, "nvmlDeviceGetUtilizationRates", refuse)
    card = Card(1)
    with caplog.at_level(logging.WARNING, "mogface"):
        assert ("utilization_ratio", "1") not in readings(card)
        assert readings(card)["memory_used_bytes", "1"] == 79e9
    assert caplog.text.count("Not Supported") == 1


def test_without_the_package_there_are_no_readings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with caplog.at_level(logging.WARNING, "mogface"):
        assert readings(Card(0)) == {}
    assert "install nvidia-ml-py" in caplog.text


@pytest.mark.usefixtures("pynvml")
def test_a_card_that_the_driver_does_not_know_has_no_readings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mogface"):
        assert readings(Card(2)) == {}
    assert "Invalid Argument" in caplog.text


def test_living_claims_on_every_visible_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    held = [device.claim(3, 1), device.claim(2, 1), device.claim(2, 0)]
    meter = Meter()
    claims(meter)
    assert {sample.labels: sample.value for sample in meter.drain()} == {("0",): 2, ("1",): 1, ("2",): 0}
    held[0].release()
    claims(meter)
    assert {sample.labels: sample.value for sample in meter.drain()}["1",] == 0
