"""The chart: each example renders, fits Kubernetes' models, and its settings are the services'.

Needs Helm 3.14 or later: `helm` on the PATH, or GANGLINE_HELM=FILE. `make test-kube` builds it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.kafka.rights import read_rights
from gangline_alerts.service.alerts_file import read_alerts
from gangline_bus.kafka_token import TokenFile
from gangline_quota.service.teams_file import read_teams
from support.builders.helm_chart import EXAMPLES, HELM, pods, rendered

SETTINGS = {
    "gangline_quota": "gangline_quota.service.config:QuotaSettings",
    "gangline_scheduler": "gangline_scheduler.service.config:SchedulerSettings",
    "gangline_faults": "gangline_faults.service.config:FaultSettings",
    "gangline_checkpoints": "gangline_checkpoints.service.config:CheckpointSettings",
    "gangline_alerts": "gangline_alerts.service.config:AlertSettings",
    "gangline_studies": "gangline_studies.service.config:StudySettings",
    "gangline_pipelines": "gangline_pipelines.service.config:PipelineSettings",
    "gangline_registry": "gangline_registry.service.config:RegistrySettings",
    "gangline_tracker": "gangline_tracker.config:Settings",
    "gangline_tracker.live": "gangline_tracker.views.config:LiveSettings",
    "gangline_mlflow": "gangline_mlflow.config:Settings",
    "gangline_gateway": "gangline_gateway.config:Settings",
    "gangline_console": "gangline_console.config:Settings",
    "gangline_kube": "gangline_kube.service.config:NodeSettings",
    "gangline_kube.operator": "gangline_kube.service.config:OperatorSettings",
    "gangline_kube.pods": "gangline_kube.service.config:PodSettings",
    "gangline_kube.node_settings": "gangline_kube.node_settings:NodeSettingsSettings",
    "gangline_worker.agent": "gangline_worker.agent.config:AgentSettings",
}
SHARED = {"config", "store_url"}
"""Variables that all services are given."""
pytestmark = [
    pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it"),
    pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES]),
]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def lost(given: Any, kept: Any, path: str) -> list[str]:
    """What a model of Kubernetes did not know of an object."""
    if isinstance(given, dict) and isinstance(kept, dict):
        found = [f"{path}.{name}" for name in given if name not in kept and given[name] is not None]
        for name in given.keys() & kept.keys():
            found += lost(given[name], kept[name], f"{path}.{name}")
        return found
    if isinstance(given, list) and isinstance(kept, list):
        pairs = enumerate(zip(given, kept, strict=True))
        return [each for index, (a, b) in pairs for each in lost(a, b, f"{path}[{index}]")]
    return []


def test_each_object_fits_the_model_of_its_kind(example: Path) -> None:
    from kubernetes import client

    for item in rendered(example):
        if item["kind"] in {"PodMonitor", "CustomResourceDefinition"}:
            continue
        version = item["apiVersion"].rpartition("/")[2]
        model = getattr(client, f"{version[0].upper()}{version[1:]}{item['kind']}")
        kept = client.ApiClient().sanitize_for_serialization(model.from_dict(item))
        assert lost(item, kept, item["kind"]) == [], item["metadata"]["name"]


def test_all_pods_but_agents_keep_to_the_restricted_profile(example: Path) -> None:
    for name, spec in pods(example):
        assert "nodeName" not in spec
        assert spec["enableServiceLinks"] is False
        if "-agent-" in name:
            continue
        own = spec["securityContext"]
        assert (own["runAsNonRoot"], own["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert not spec.get("hostNetwork")
        assert all(
            set(each) & {"configMap", "emptyDir", "secret", "projected"} for each in spec["volumes"]
        )
        for container in containers(spec):
            limits = container["securityContext"]
            assert limits["allowPrivilegeEscalation"] is False, container["name"]
            assert limits["capabilities"] == {"drop": ["ALL"]}


def test_names_that_objects_refer_to_exist(example: Path) -> None:
    by_kind: dict[str, set[str]] = {}
    for item in rendered(example):
        by_kind.setdefault(item["kind"], set()).add(item["metadata"]["name"])
    for name, spec in pods(example):
        account = spec.get("serviceAccountName")
        assert account is None or account in by_kind["ServiceAccount"], name
        volumes = {each["name"] for each in spec["volumes"]}
        for container in containers(spec):
            mounted = {each["name"] for each in container.get("volumeMounts", [])}
            assert mounted <= volumes, (name, container["name"])
            ports = {each["name"] for each in container.get("ports", [])}
            probe = container.get("readinessProbe", {}).get("httpGet", {}).get("port")
            assert probe is None or probe in ports
    roles = [item["roleRef"] for item in rendered(example) if "roleRef" in item]
    assert all(role["name"] in by_kind[role["kind"]] for role in roles)


def test_the_environment_is_what_each_service_reads(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = [item for item in rendered(example) if item["kind"] == "ConfigMap"]
    file = tmp_path / "gangline.toml"
    file.write_text(maps[0]["data"]["gangline.toml"], encoding="utf-8")
    kafka = tmp_path / "kafka.toml"
    kafka.write_text('"security.protocol" = "SASL_SSL"\n', encoding="utf-8")
    for name in [name for name in os.environ if name.startswith("GANGLINE_")]:
        monkeypatch.delenv(name)
    checked = set()
    for _, spec in pods(example):
        for container in containers(spec):
            module = " ".join(container["command"]).removeprefix("python -m ")
            if module not in SETTINGS:
                assert re.match(r"gangline_service\.private_copies|gangline kafka", module), module
                continue
            place, _, wanted = SETTINGS[module].partition(":")
            settings = getattr(importlib.import_module(place), wanted)
            with monkeypatch.context() as patch:
                for each in container["env"]:
                    value = each.get("value", "value-from-elsewhere")
                    if each["name"] == "GANGLINE_CONFIG":
                        value = str(file)
                    if each["name"] == "GANGLINE_KAFKA_FILE":
                        value = str(kafka)
                    if each["name"].startswith("GANGLINE_"):
                        known = each["name"].removeprefix("GANGLINE_").lower()
                        fields = settings.model_fields.keys() | SHARED
                        assert known in fields, (module, each["name"])
                    patch.setenv(each["name"], value)
                settings()
            checked.add(module)
    assert {"gangline_gateway", "gangline_scheduler"} <= checked


def test_parts_with_tokens_have_one_of_their_account_for_kafka_alone(example: Path) -> None:
    kafka = yaml.safe_load(example.read_text(encoding="utf-8"))["kafka"]
    accounts = {
        item["metadata"]["name"]: item
        for item in rendered(example)
        if item["kind"] == "ServiceAccount"
    }
    found = set()
    for name, spec in pods(example):
        volumes = {each["name"]: each for each in spec["volumes"]}
        for container in containers(spec):
            given = {each["name"]: each.get("value") for each in container.get("env", [])}
            if kafka.get("auth") != "oauthbearer" or "GANGLINE_BOOTSTRAP_SERVERS" not in given:
                assert "GANGLINE_KAFKA" not in given
                assert "kafka" not in {each["name"] for each in container["volumeMounts"]}, name
                continue
            settings = json.loads(given["GANGLINE_KAFKA"])
            file = TokenFile.named(settings)
            assert file is not None
            (mount,) = [
                each
                for each in container["volumeMounts"]
                if each["mountPath"] == str(file.path.parent)
            ]
            token, authority = volumes[mount["name"]]["projected"]["sources"]
            assert "subPath" not in mount  # kubelet would never replace it
            assert token["serviceAccountToken"] == {
                "path": file.path.name,
                "audience": kafka["oauthbearer"]["audience"],
                "expirationSeconds": kafka["oauthbearer"]["expirationSeconds"],
            }
            (item,) = authority["secret"]["items"]
            assert settings["ssl.ca.location"] == str(file.path.parent / item["path"])
            account = spec["serviceAccountName"]
            assert accounts[account]["automountServiceAccountToken"] is False
            assert spec["automountServiceAccountToken"] is False
            found.add((container["name"], account.removeprefix("gangline-")))
    if found:
        shared = {("mlflow", "gateway"), ("mlflow", "registry")}
        parts = {part for part, _ in found}
        assert found == {(part, part) for part in parts - {"mlflow"}} | shared
        assert parts == set(read_rights()) - {"submitter", "administrator"}


def test_the_files_of_teams_and_alerts_are_those_of_the_values(
    example: Path, tmp_path: Path
) -> None:
    values = yaml.safe_load(example.read_text(encoding="utf-8"))
    maps = [item for item in rendered(example) if item["kind"] == "ConfigMap"]
    for name, text in maps[0]["data"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    named: dict[str, set[str]] = {}
    for name, spec in pods(example):
        for container in containers(spec):
            given = {each["name"]: each.get("value") for each in container.get("env", [])}
            mounted = {each["mountPath"] for each in container["volumeMounts"]}
            for file in given.keys() & {"GANGLINE_TEAMS_FILE", "GANGLINE_ALERTS_FILE"}:
                place = Path(str(given[file]))
                assert str(place.parent) in mounted, name
                named.setdefault(place.name, set()).add(container["name"])
            folder = given.get("GANGLINE_ALERT_SECRETS_DIR")
            assert folder is None or folder in mounted, name
    wanted: dict[str, set[str]] = {}
    if "teams" in values:
        teams = read_teams(tmp_path / "teams.yaml")
        assert [team.team for team in teams] == [team["team"] for team in values["teams"]]
        wanted["teams.yaml"] = {"quota"}
    if "alerts" in values:
        assert list(read_alerts(tmp_path / "alerts.yaml").receivers) == ["on-call"]
        wanted["alerts.yaml"] = {"alerts", "gateway"}
    assert named == wanted


def test_each_process_has_the_settings_file_and_knows_the_gateway_s_authority(
    example: Path,
) -> None:
    values = yaml.safe_load(example.read_text(encoding="utf-8"))
    authority = "caSecret" in values["gateway"]
    for _, spec in pods(example):
        for container in containers(spec):
            module = " ".join(container["command"]).removeprefix("python -m ")
            if module not in SETTINGS or module == "gangline_kube.node_settings":
                continue
            given = {each["name"]: each.get("value") for each in container["env"]}
            mounted = [each["mountPath"] for each in container["volumeMounts"]]
            files = {"GANGLINE_CONFIG"}
            if "GANGLINE_MLFLOW_TRACKING_URI" in given and authority:
                files.add("GANGLINE_MLFLOW_CA_FILE")
            for name in files:
                file = given.get(name)
                assert file is not None, (module, name)
                assert any(Path(file).is_relative_to(place) for place in mounted), (module, name)


def test_the_registry_reaches_mlflow_in_its_own_pod(example: Path) -> None:
    found = []
    for _, spec in pods(example):
        of = {
            " ".join(each["command"]).removeprefix("python -m "): each
            for each in spec["containers"]
        }
        if "gangline_registry" in of:
            given = {each["name"] for each in of["gangline_registry"]["env"]}
            found.append(("gangline_mlflow" in of, "GANGLINE_MLFLOW_URL" in given))
    values = yaml.safe_load(example.read_text(encoding="utf-8"))
    on = "mlflow" in values
    assert found == ([] if values.get("services", {}).get("registry") else [(on, on)])


def test_agents_wait_longer_for_pods_than_these_may_wait_for_their_nodes(example: Path) -> None:
    given = {
        each["name"]: each.get("value")
        for _, spec in pods(example)
        for container in containers(spec)
        for each in container.get("env", [])
    }
    if "GANGLINE_RANKS_IN_PODS" in given:
        assert float(given["GANGLINE_POD_BIND_S"]) > float(given["GANGLINE_KUBE_PODS_BIND_S"])
