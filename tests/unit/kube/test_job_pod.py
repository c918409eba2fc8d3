"""What an installation's settings give to the pods of jobs, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client
from pydantic import ValidationError

from gangline_kube.core.job_pod import Gang, Share, job_pod
from gangline_kube.core.pod_resources import Place
from gangline_kube.service.config import PodSettings
from gangline_schemas.job import JobSpec
from gangline_schemas.job_pods import pod_folder

NEEDED = {
    "kube_gateway_url": "http://g",
    "kube_token": "t",
    "kube_pods_agent_image": "agents:1",
}


def settings(**more: Any) -> PodSettings:
    return PodSettings.model_validate({**NEEDED, **more})


def pod(team: str = "nlp", priority: int = 50, **more: Any) -> dict[str, Any]:
    """A job's pod under these settings."""
    share = Share("n-1", 2)
    gang = Gang("j-1", 1, team, job_spec({"gpus": 2}, team), (share,), priority=priority)
    return job_pod(gang, share, Place("n.1"), settings(**more).rules())


def job_spec(resources: dict[str, Any], team: str = "nlp") -> JobSpec:
    job = {"name": "j", "team": team, "image": "train:1", "resources": resources}
    return JobSpec.model_validate(job)


def pod_spec(team: str = "nlp", priority: int = 50, **more: Any) -> dict[str, Any]:
    """Its spec."""
    found: dict[str, Any] = pod(team, priority, **more)["spec"]
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
        ({"25": "High"}, "a name in Kubernetes"),
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


CLAIMS = {
    "nlp": [
        {"claim": "corpus", "mountPath": "/data/corpus"},
        {"claim": "scratch", "mountPath": "/scratch", "readOnly": False},
    ],
    "vision": [{"claim": "images", "mountPath": "/data/images"}],
}


def mounted(spec: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """The claims that the ranks of a pod have, by their paths, and whether only to read."""
    of = {
        each["name"]: each["persistentVolumeClaim"]
        for each in spec["volumes"]
        if "persistentVolumeClaim" in each
    }
    (ranks,) = spec["containers"]
    return {
        each["mountPath"]: (of[each["name"]]["claimName"], each["readOnly"])
        for each in ranks["volumeMounts"]
        if each["name"] in of
    }


def test_pods_have_the_claims_of_their_team_alone_and_only_read_them_by_default() -> None:
    nlp = pod_spec("nlp", kube_pods_volumes=CLAIMS)
    assert mounted(nlp) == {"/data/corpus": ("corpus", True), "/scratch": ("scratch", False)}
    assert mounted(pod_spec("vision", kube_pods_volumes=CLAIMS)) == {
        "/data/images": ("images", True)
    }
    assert mounted(pod_spec("ads", kube_pods_volumes=CLAIMS)) == {}
    (install,) = nlp["initContainers"]
    assert not [each for each in install["volumeMounts"] if each["name"].startswith("claim-")]


def test_a_team_that_writes_owns_new_volumes_and_others_change_no_owner() -> None:
    own = pod_spec("nlp", kube_pods_volumes=CLAIMS)["securityContext"]
    assert own["fsGroup"] == own["runAsUser"]
    assert own["fsGroupChangePolicy"] == "OnRootMismatch"
    assert "fsGroup" not in pod_spec("vision", kube_pods_volumes=CLAIMS)["securityContext"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("data", "an absolute path"),
        ("/", "an absolute path"),
        ("/data/../etc", "an absolute path"),
        ("/data/", "an absolute path"),
        ("/a:b", "an absolute path"),
        ("/dev/shm", "corpus: its path meets /dev"),
        ("/gangline", "corpus: its path meets /gangline"),
        ("/var/lib", "corpus: its path meets /var/lib/gangline"),
        ("/var/lib/gangline/more", "corpus: its path meets /var/lib/gangline"),
        ("/scratch/deep", "the paths of scratch and corpus meet"),
    ],
)
def test_a_claim_at_a_path_that_pods_need_is_refused(path: str, reason: str) -> None:
    scratch = {"claim": "scratch", "mountPath": "/scratch"}
    corpus = {"claim": "corpus", "mountPath": path}
    message = refused(kube_pods_volumes={"nlp": [scratch, corpus]})
    assert "kube_pods_volumes" in message
    assert reason in message


def test_wrong_claims_are_refused_by_their_name_and_team() -> None:
    corpus = {"claim": "corpus", "mountPath": "/one"}
    again = {"claim": "corpus", "mountPath": "/two"}
    assert "nlp: corpus is named twice" in refused(kube_pods_volumes={"nlp": [corpus, again]})
    misspelt = {"claim": "corpus", "mountPath": "/one", "readonly": False}
    assert "nlp.0.readonly" in refused(kube_pods_volumes={"nlp": [misspelt]})
    assert "nlp.0.mount_path" in refused(kube_pods_volumes={"nlp": [{"claim": "corpus"}]})
    assert "nlp.0.claim" in refused(kube_pods_volumes={"nlp": [{**corpus, "claim": "A b"}]})


def test_two_teams_may_share_a_claim_at_one_path() -> None:
    corpus = {"claim": "corpus", "mountPath": "/data"}
    made = settings(kube_pods_volumes={"nlp": [corpus], "vision": [corpus]})
    assert made.rules().team_claims["nlp"] == made.rules().team_claims["vision"]


def test_a_pod_with_all_of_it_fits_kubernetes_own_model() -> None:
    made = pod(
        kube_pods_volumes=CLAIMS,
        kube_pods_team_accounts={"nlp": "nlp-train"},
        kube_pods_priority_classes={"100": "research"},
        kube_pods_pull_secrets="registry",
        kube_pods_tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
    )
    model = client.V1Pod.from_dict(made)
    assert client.ApiClient().sanitize_for_serialization(model) == made


LARGE = Place("n.1", cpus=96.0, memory_gb=1024.0, gpus=8)


@pytest.mark.parametrize(
    ("resources", "ranks", "place", "requests", "limits", "shared"),
    [
        ({"gpus": 2}, 2, LARGE, ("2000m", "2048Mi"), ("24000m", "262144Mi"), "131072Mi"),
        (
            {"gpus": 16, "cpus_per_gpu": 4, "memory_per_gpu_gb": 200},
            4,
            LARGE,
            ("16000m", "819200Mi"),
            ("48000m", "819200Mi"),
            "409600Mi",
        ),
        (
            {"gpus": 2, "memory_per_gpu_gb": 8},
            2,
            Place("n.1"),
            ("2000m", "16384Mi"),
            ("2000m", "16384Mi"),
            "8192Mi",
        ),
        (
            {"gpus": 0, "cpus": 1.5, "memory_gb": 0.1},
            1,
            LARGE,
            ("1500m", "102Mi"),
            ("1500m", "102Mi"),
            "64Mi",
        ),
    ],
    ids=["share of the node", "more than the share", "GPUs not known", "no GPUs"],
)
def test_a_pod_may_use_what_it_asked_for_or_its_share_of_the_node(
    resources: dict[str, Any],
    ranks: int,
    place: Place,
    requests: tuple[str, str],
    limits: tuple[str, str],
    shared: str,
) -> None:
    share = Share("n-1", ranks)
    gang = Gang("j-1", 1, "nlp", job_spec(resources), (share,))
    spec = job_pod(gang, share, place, settings().rules())["spec"]
    (container,) = spec["containers"]
    found = container["resources"]
    assert (found["requests"]["cpu"], found["requests"]["memory"]) == requests
    assert (found["limits"]["cpu"], found["limits"]["memory"]) == limits
    (shm,) = (each["emptyDir"] for each in spec["volumes"] if each["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": shared}


def test_every_container_has_limits_as_quotas_of_namespaces_want_them() -> None:
    spec = pod_spec()
    for each in (*spec["initContainers"], *spec["containers"]):
        assert each["resources"]["limits"].keys() >= {"cpu", "memory"}


def test_a_pod_sees_folders_of_its_job_and_team_alone_and_no_processes_of_the_node() -> None:
    spec = pod_spec("nlp")
    assert {each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each} == {
        f"/var/lib/gangline/sockets/{pod_folder('j-1')}",
        "/var/lib/gangline/checkpoints/j-1",
        "/var/lib/gangline/data-cache/nlp",
    }
    assert not {"hostPID", "hostIPC", "shareProcessNamespace"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"] is True
