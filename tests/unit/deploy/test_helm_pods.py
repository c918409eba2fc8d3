"""What the chart's values of `kube.pods` give to the pods of jobs.

Needs Helm 3.14 or later: `helm` on the PATH, or GANGLINE_HELM=FILE. `make test-kube` builds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline_kube.core.job_pod import PodRules
from gangline_kube.service.config import PodSettings
from support.builders.helm_chart import HELM, NAMESPACE, example, pods, rendered, templates

PODS = example("pods")
BOTH = example("both-kinds-of-ranks")
pytestmark = pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it")


def values() -> dict[str, Any]:
    """The values of the example that `kube.pods` has."""
    found: dict[str, Any] = yaml.safe_load(PODS.read_text(encoding="utf-8"))["kube"]["pods"]
    return found


def rules(monkeypatch: pytest.MonkeyPatch, of: Path = PODS) -> PodRules:
    """How the process that an example installs makes pods."""
    (spec,) = [spec for name, spec in pods(of) if name == "gangline-kube-pods"]
    for each in spec["containers"][0]["env"]:
        if each["name"] != "GANGLINE_CONFIG":
            monkeypatch.setenv(each["name"], each.get("value", "value-from-elsewhere"))
    return PodSettings().rules()


def test_pods_have_the_priority_classes_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rules(monkeypatch)
    assert made.priority_classes == values()["priorityClasses"]
    assert made.priority_class(25) == "research-high"


def test_the_account_of_pods_is_there_without_a_right_or_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, items = rules(monkeypatch), rendered(PODS)
    (account,) = [
        item
        for item in items
        if item["kind"] == "ServiceAccount" and item["metadata"].get("namespace") == made.namespace
    ]
    assert account["metadata"]["name"] == made.account
    assert account["automountServiceAccountToken"] is False
    subjects = [each["name"] for item in items for each in item.get("subjects", [])]
    assert made.account not in subjects
    assert made.team_accounts == values()["teamServiceAccounts"]


def test_pods_of_a_team_have_the_volumes_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    made, wanted = rules(monkeypatch), values()["volumes"]
    assert made.team_claims.keys() == wanted.keys()
    corpus, scratch = made.team_claims["nlp"]
    assert (corpus.claim, corpus.mount_path, corpus.read_only) == ("corpus", "/data/corpus", True)
    assert (scratch.claim, scratch.mount_path, scratch.read_only) == (
        "nlp-scratch",
        "/scratch",
        False,
    )


def agent(of: Path, pool: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec of the agents of a pool, and the environment of all their containers."""
    (spec,) = [spec for name, spec in pods(of) if name == f"gangline-agent-{pool}"]
    every = [*spec["initContainers"], *spec["containers"]]
    given = [each for container in every for each in container.get("env", [])]
    return spec, {each["name"]: each.get("value", "") for each in given}


def test_each_pool_has_its_own_place_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    own, of_own = agent(BOTH, "own")
    shared, of_shared = agent(BOTH, "shared")
    assert (own.get("hostPID"), of_own.get("GANGLINE_RANKS_IN_PODS")) == (None, None)
    assert (shared["hostPID"], of_shared["GANGLINE_RANKS_IN_PODS"]) == (True, "true")
    assert own["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert of_own["GANGLINE_KUBE_POOL"] == "own"
    made = rules(monkeypatch, BOTH)
    assert made.data == of_shared["GANGLINE_DATA_DIR"]
    assert made.takes_pods(shared["nodeSelector"] | {"kubernetes.io/os": "linux"})
    assert not made.takes_pods(own["nodeSelector"])


def test_agents_and_pods_have_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for of, own in ((PODS, True), (BOTH, False)):
        pool = "gpu" if own else "shared"
        assert rules(monkeypatch, of).own_network is own
        assert agent(of, pool)[1]["GANGLINE_POD_NETWORK"] == ("pod" if own else "node")
        (role,) = [
            item
            for item in rendered(of)
            if item["kind"] == "Role" and item["metadata"]["name"].endswith("-kube-pods")
        ]
        kinds = {kind for rule in role["rules"] for kind in rule["resources"]}
        assert kinds == {"pods"} | ({"services", "networkpolicies"} if own else set())


def test_ranks_in_pods_reach_what_agents_do_and_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, gateway = rules(monkeypatch).peers
    assert store == {"ipBlock": {"cidr": "10.1.0.0/16"}}
    (labels,) = [
        template["metadata"]["labels"]
        for name, template in templates(PODS)
        if name == "gangline-gateway"
    ]
    assert gateway["podSelector"]["matchLabels"].items() <= labels.items()
    assert gateway["namespaceSelector"] == {
        "matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}
    }


POOL = {"gpus": 0, "hostNetwork": True, "dataPath": "/d", "stopSeconds": 9}


@pytest.mark.parametrize(
    ("enabled", "pools", "why"),
    [
        (True, [{"ranks": "vm"}], r"agents\.pools, p0: ranks: agent or pods, not vm"),
        (False, [{"ranks": "pods"}], r"agents\.pools, p0: ranks: pods needs kube\.pods\.enabled"),
        (True, [{"ranks": "agent"}], r"kube\.pods\.enabled: no pool .* has ranks: pods"),
        (True, [{"gpus": 8}], r"agents\.pools, p0: with ranks in pods a pool has gpus: 0"),
        (
            True,
            [{"nodeSelector": {"a": "1"}}, {"dataPath": "/e", "nodeSelector": {"a": "2"}}],
            r"agents\.pools, p1: .* the dataPath of the others",
        ),
        (
            True,
            [
                {"nodeSelector": {"a": "1", "b": "1"}, "ranks": "agent"},
                {"nodeSelector": {"a": "1"}},
            ],
            r"agents\.pools, p1 and p0: their nodeSelectors have the same nodes",
        ),
        (
            {"network": "host"},
            [{}],
            r"kube\.pods\.network: node or pod, not host",
        ),
        (
            {"network": "pod"},
            [{"ranks": "agent", "nodeSelector": {"a": "2"}}, {"nodeSelector": {"a": "1"}}],
            r"kube\.pods\.network: ranks below the agents of p0 would not reach pods",
        ),
        (
            True,
            [{"ranks": "agent"}, {"nodeSelector": {"a": "1"}}],
            r"agents\.pools, p1 and p0: their nodeSelectors have the same nodes",
        ),
    ],
)
def test_pools_that_contradict_each_other_are_refused(
    tmp_path: Path, enabled: bool | dict[str, Any], pools: list[dict[str, Any]], why: str
) -> None:
    """`enabled`: or more values of `kube.pods`."""
    more = enabled if isinstance(enabled, dict) else {}
    found = yaml.safe_load(example("minimal").read_text(encoding="utf-8"))
    made = [POOL | {"name": f"p{number}"} | pool for number, pool in enumerate(pools)]
    found |= {"agents": {"pools": made}, "kube": {"pods": {"enabled": bool(enabled), **more}}}
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    with pytest.raises(AssertionError, match=why):
        rendered(path)


def test_whole_numbers_of_the_values_are_whole_in_the_environment(tmp_path: Path) -> None:
    """Helm reads all numbers as floats and writes those above a million with an exponent."""
    given = {"GANGLINE_A": 25_000_000, "GANGLINE_B": 0.5, "GANGLINE_C": "x", "GANGLINE_D": True}
    found = yaml.safe_load(example("minimal").read_text(encoding="utf-8"))
    found["services"] = {"scheduler": {"env": given}}
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    (spec,) = [spec for name, spec in pods(path) if name == "gangline-scheduler"]
    kept = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert {name: kept[name] for name in given} == {
        "GANGLINE_A": "25000000",
        "GANGLINE_B": "0.5",
        "GANGLINE_C": "x",
        "GANGLINE_D": "true",
    }
