"""What an installation's settings give to the pods of jobs, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gangline_kube.core.job_pod import Gang, Share, job_pod
from gangline_kube.service.config import PodSettings
from gangline_schemas.job import JobSpec

NEEDED = {
    "kube_gateway_url": "http://g",
    "kube_token": "t",
    "kube_pods_agent_image": "agents:1",
}


def settings(**more: Any) -> PodSettings:
    return PodSettings.model_validate({**NEEDED, **more})


def pod_spec(team: str = "nlp", priority: int = 50, **more: Any) -> dict[str, Any]:
    """The spec of a job's pod under these settings."""
    job = {"name": "j", "team": team, "image": "train:1", "resources": {"gpus": 2}}
    share = Share("n-1", 2)
    gang = Gang("j-1", 1, team, JobSpec.model_validate(job), (share,), priority=priority)
    found: dict[str, Any] = job_pod(gang, share, "n.1", settings(**more).rules())["spec"]
    return found


def refused(**more: Any) -> str:
    """Why these settings are refused, with the name of the field."""
    with pytest.raises(ValidationError) as caught:
        settings(**more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("priority", "wanted"), [(0, "high"), (25, "high"), (26, "middle"), (75, "middle"), (76, None)]
)
def test_a_job_s_priority_chooses_the_class_of_its_pods(priority: int, wanted: str | None) -> None:
    found = pod_spec(priority=priority, kube_pods_priority_classes={"75": "middle", "25": "high"})
    assert found.get("priorityClassName") == wanted


def test_pods_have_the_cluster_s_default_class_unless_some_are_named() -> None:
    assert "priorityClassName" not in pod_spec(priority=0)


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        ({"101": "high"}, "less than or equal to 100"),
        ({"-1": "high"}, "greater than or equal to 0"),
        ({"25": "High"}, "pattern"),
        ({"25": "system-node-critical"}, "25: system-node-critical would outrank agents"),
    ],
)
def test_a_wrong_priority_class_is_refused(classes: dict[str, str], reason: str) -> None:
    message = refused(kube_pods_priority_classes=classes)
    assert "kube_pods_priority_classes" in message
    assert reason in message


def test_pods_run_as_the_account_of_their_team_and_never_get_its_token() -> None:
    given = {"kube_pods_service_account": "ranks", "kube_pods_team_accounts": {"nlp": "nlp-train"}}
    for team, account in (("nlp", "nlp-train"), ("vision", "ranks")):
        spec = pod_spec(team, **given)
        assert spec["serviceAccountName"] == account
        assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod_spec()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kube_pods_service_account", "Ranks"),
        ("kube_pods_team_accounts", {"nlp": ""}),
        ("kube_pods_team_accounts", {"NLP": "ranks"}),
    ],
)
def test_a_wrong_account_is_refused(field: str, value: object) -> None:
    assert field in refused(**{field: value})
