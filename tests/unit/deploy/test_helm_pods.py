"""What the chart's values of `kube.pods` give to the pods of jobs.

Needs Helm 3.14 or later: `helm` on the PATH, or GANGLINE_HELM=FILE. `make test-kube` builds it.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gangline_kube.core.job_pod import PodRules
from gangline_kube.service.config import PodSettings
from support.builders.helm_chart import HELM, example, pods, rendered

PODS = example("pods")
pytestmark = pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it")


def values() -> dict[str, Any]:
    """The values of the example that `kube.pods` has."""
    found: dict[str, Any] = yaml.safe_load(PODS.read_text(encoding="utf-8"))["kube"]["pods"]
    return found


def rules(monkeypatch: pytest.MonkeyPatch) -> PodRules:
    """How the process that the example installs makes pods."""
    (spec,) = [spec for name, spec in pods(PODS) if name == "gangline-kube-pods"]
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
