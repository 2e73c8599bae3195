"""deploy/kubernetes by Kubernetes' own schemas, Prometheus' own tool, and what must hold between the files."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from archive import properties
from tests.deploy.container import one, stages
from tests.deploy.nginx import shell
from tests.serving.conftest import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS = {
    (document["kind"]): document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
POD = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
[TORCHSERVE], [PROXY] = POD["initContainers"], POD["containers"]
STAGES = stages(ROOT / "deploy" / "docker" / "Dockerfile")
CONF = (ROOT / "deploy" / "nginx" / "mogface.conf").read_text(encoding="utf-8")
Promtool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_are_of_their_schemas(kind: str) -> None:
    # Sidecars are on by default from 1.29 on.
    for version in ("1.29", "1.33", "1.37"):
        kubernetes_validate.validate(MANIFESTS[kind], version, strict=True)


def test_a_misspelt_field_would_be_seen() -> None:
    wrong = {**MANIFESTS["Service"], "spec": {**MANIFESTS["Service"]["spec"], "selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError, match="selectors"):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_lines_for_gpus_are_sound() -> None:
    """What the manifest has in comments, put in."""
    text = (FOLDER / "server.yaml").read_text(encoding="utf-8")
    line = 'limits: {cpu: "2", memory: 6Gi, ephemeral-storage: 4Gi} # with GPUs: nvidia.com/gpu: 1'
    assert text.count(line) == 1
    with_gpu = text.replace("} # with GPUs: nvidia.com/gpu: 1", ", nvidia.com/gpu: 1}")
    [deployment] = [each for each in yaml.safe_load_all(with_gpu) if each["kind"] == "Deployment"]
    kubernetes_validate.validate(deployment, "1.37", strict=True)
    [container] = deployment["spec"]["template"]["spec"]["initContainers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_all_speak_of_the_same_pods() -> None:
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ):
        assert selector == labels
    target = MANIFESTS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", MANIFESTS["Deployment"]["metadata"]["name"])
    assert "replicas" not in MANIFESTS["Deployment"]["spec"], "applying it would undo what the autoscaler did"
    assert POD["serviceAccountName"] == MANIFESTS["ServiceAccount"]["metadata"]["name"]


@pytest.mark.parametrize("container", [TORCHSERVE, PROXY], ids=["torchserve", "proxy"])
def test_containers_have_no_rights_and_write_to_their_volumes_alone(container: dict[str, Any]) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    stage = STAGES["server" if container is TORCHSERVE else "proxy"]
    assert writable == ({one(stage, "WORKDIR").value} if container is TORCHSERVE else {"/tmp"})
    user = one(stage, "USER").value
    assert user == f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert {"cpu", "memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()


def test_the_pod_itself_has_no_rights() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD.keys()
    assert MANIFESTS["NetworkPolicy"]["spec"]["egress"] == []
    assert sorted(port["port"] for rule in MANIFESTS["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]) == [
        443,
        8082,
    ]


def test_nothing_is_lost_when_a_pod_goes() -> None:
    """No Service leads to it any more, nginx answers what is under way, and only then TorchServe is told to end."""
    assert TORCHSERVE["restartPolicy"] == "Always", "a sidecar, which ends after the containers"
    assert "preStop" not in TORCHSERVE.get("lifecycle", {})
    [_, seconds] = PROXY["lifecycle"]["preStop"]["exec"]["command"]
    assert one(STAGES["proxy"], "STOPSIGNAL").value == "SIGQUIT"
    main = (ROOT / "deploy" / "docker" / "nginx.conf").read_text(encoding="utf-8")
    [shutdown] = re.findall(r"worker_shutdown_timeout (\d+)s;", main)
    [longest] = re.findall(r"proxy_read_timeout (\d+)s;", CONF)
    assert int(longest) < int(shutdown)
    # TorchServe itself took 5 s.
    assert POD["terminationGracePeriodSeconds"] >= int(seconds) + int(shutdown) + 15
    update = MANIFESTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": 1, "maxUnavailable": 0}
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert MANIFESTS["HorizontalPodAutoscaler"]["spec"]["minReplicas"] >= 2


def test_probes_ask_what_they_should() -> None:
    commands = {kind: TORCHSERVE[f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "readiness", "liveness")}
    assert commands["startup"][:2] == commands["readiness"][:2] == ["mogface", "health"]
    assert "--shallow" in commands["readiness"]
    assert "--shallow" not in commands["startup"]
    for kind in ("startup", "readiness"):
        probe = TORCHSERVE[f"{kind}Probe"]
        # The command ends by itself before it is killed, and says why.
        assert float(commands[kind][-1]) < probe["timeoutSeconds"]
    # A worker that is started again, or a long queue, is no reason to kill the pod.
    assert "/ping" in commands["liveness"][-1]
    assert "health" not in commands["liveness"]
    startup = TORCHSERVE["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300, "startupTimeout of the configuration"


def test_the_guides_configuration_keeps_torchserve_on_the_pods_loopback(centerface_mar: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```sh\n([^`]*pod\.properties.*?)^```", guide, re.DOTALL | re.MULTILINE)
    shutil.copy(ROOT / "config.properties", tmp_path)
    (tmp_path / "model_store").mkdir()
    shutil.copy(centerface_mar, tmp_path / "model_store")
    shell(block.replace(".venv/bin/mogface-archive", "mogface-archive"), tmp_path)
    shipped = properties.read(ROOT / "config.properties")
    values = properties.read(tmp_path / "build" / "pod.properties")
    changed = {key for key, value in values.items() if value != shipped.get(key)} - {"models"}
    assert changed == {"disable_token_authorization", "metrics_address"}
    assert values["disable_token_authorization"] == "true"
    for key in ("inference_address", "management_address", "grpc_inference_address", "grpc_management_address"):
        assert "127.0.0.1" in values[key]
    # Where nginx of the same pod looks for it.
    servers = (ROOT / "deploy" / "nginx" / "servers.conf").read_text(encoding="utf-8")
    assert f"server {values['inference_address'].removeprefix('http://')} " in servers
    assert f"server {values['grpc_inference_address']}:{values['grpc_inference_port']} " in servers


def test_ports_are_those_of_the_configuration() -> None:
    shipped = properties.read(ROOT / "config.properties")
    [metrics] = TORCHSERVE["ports"]
    assert shipped["metrics_address"].endswith(f":{metrics['containerPort']}")
    assert "listen 443 ssl" in CONF
    [https] = PROXY["ports"]
    assert https["containerPort"] == 443
    [service] = MANIFESTS["Service"]["spec"]["ports"]
    assert service["targetPort"] == https["name"]
    assert POD["securityContext"]["sysctls"] == [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    # 6Gi hold the heap, what lies round it and a worker.
    [heap] = re.findall(r"-Xmx(\d+)g", shipped["vmargs"])
    assert TORCHSERVE["resources"]["limits"]["memory"] == "6Gi"
    assert int(heap) + 1 <= 6


def test_the_autoscaler_goes_by_metrics_that_there_are(promtool: Promtool, tmp_path: Path) -> None:
    folder = FOLDER / "prometheus"
    rules = yaml.safe_load((folder / "rules.yml").read_text(encoding="utf-8"))
    recorded = [rule["record"] for group in rules["groups"] for rule in group["rules"]]
    [rule] = yaml.safe_load((folder / "adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]
    # Go's ${1} is Python's \\1.
    renamed = [re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), name) for name in recorded]
    wanted = [each["pods"]["metric"]["name"] for each in MANIFESTS["HorizontalPodAutoscaler"]["spec"]["metrics"]]
    assert renamed == wanted
    assert all(re.fullmatch(re.findall(r'__name__=~"([^"]*)"', rule["seriesQuery"])[0], name) for name in recorded)
    declared = (ROOT / "deploy" / "metrics.yaml").read_text(encoding="utf-8")
    used = {
        name
        for group in rules["groups"]
        for rule in group["rules"]
        for name in re.findall(r"\b(?:ts|mogface)_\w+", rule["expr"])
    }
    assert len(used) == 3
    assert all(f"name: {name}\n" in declared for name in used)
    done = promtool("test", "rules", str(folder / "rules_test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    # Debian's promtool is built without Kubernetes' discovery.
    shutil.copy(folder / "rules.yml", tmp_path)
    config = (folder / "prometheus.yml").read_text(encoding="utf-8")
    there = "kubernetes_sd_configs: [{role: pod}]"
    assert there in config
    (tmp_path / "prometheus.yml").write_text(config.replace(there, "static_configs: [{targets: [here]}]"))
    done = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rules found" in done.stdout


@pytest.mark.parametrize("record", ["mogface:queue_seconds", "mogface:busy_workers"])
def test_a_wrong_rule_fails_its_test(record: str, promtool: Promtool, tmp_path: Path) -> None:
    folder = FOLDER / "prometheus"
    shutil.copy(folder / "rules_test.yml", tmp_path)
    rules = yaml.safe_load((folder / "rules.yml").read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        if rule["record"] == record:
            # Without the zero of a pod that is asked nothing.
            rule["expr"] = rule["expr"].partition(" or ")[0].partition("\nor ")[0]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    assert promtool("test", "rules", str(tmp_path / "rules_test.yml")).returncode != 0
