"""The alert rules, by Prometheus' own tool; and that its tests would see a wrong rule."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import PROMETHEUS

Promtool = Callable[..., "subprocess.CompletedProcess[str]"]
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}


def test_configuration_and_rules_are_sound(promtool: Promtool) -> None:
    done = promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_each_alert_fires_and_keeps_silent_as_written(promtool: Promtool) -> None:
    done = promtool("test", "rules", str(PROMETHEUS / "alerts_test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("expression", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
@pytest.mark.parametrize("alert", ALERTS)
def test_a_rule_that_never_or_always_fires_fails_its_tests(
    alert: str, expression: str, promtool: Promtool, tmp_path: Path
) -> None:
    shutil.copy(PROMETHEUS / "alerts_test.yml", tmp_path)
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(_with(alert, expression)), encoding="utf-8")
    done = promtool("test", "rules", str(tmp_path / "alerts_test.yml"))
    assert done.returncode != 0
    assert alert in done.stdout + done.stderr


def _with(alert: str, expression: str) -> dict[str, Any]:
    rules = [{**rule, "expr": expression} if name == alert else rule for name, rule in ALERTS.items()]
    return {"groups": [{"name": "mogface", "rules": rules}]}
