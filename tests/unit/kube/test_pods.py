"""The pods of jobs: created gated, lifted together, given up together, used again, deleted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gangline_kube.core.job_pod import GATE, Gang, PodRules, Share
from gangline_kube.core.pod_resources import Place
from gangline_kube.core.pods import (
    CreatePod,
    DeletePod,
    GiveUp,
    LiftGate,
    Step,
    job_pod_part,
    plan_pods,
)
from gangline_kube.core.resource import PODS
from gangline_kube.service.config import PodSettings
from gangline_schemas.job import JobSpec
from gangline_schemas.job_pods import pod_folder, team_user

RULES = PodRules(
    namespace="jobs",
    image="agents:1",
    agent_image="agents:1",
    data="/var/lib/gangline",
    uids=range(1_900_000_000, 1_900_001_000),
    bind_s=5.0,
    keep_s=30.0,
)
PLACES = {f"n-{number}": Place(f"n.{number}") for number in range(4)}
SPEC = JobSpec.model_validate(
    {
        "name": "j",
        "team": "nlp",
        "image": "train:1",
        "resources": {"gpus": 4, "cpus_per_gpu": 3, "memory_per_gpu_gb": 2},
    }
)


def gang(*nodes: int, job_id: str = "j-1", attempt: int = 1, **more: Any) -> Gang:
    shares = tuple(Share(f"n-{number}", 2) for number in nodes)
    return Gang(job_id, attempt, "nlp", SPEC, shares, **more)


class Cluster:
    """Pods by name, changed by steps."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.given_up: frozenset[tuple[str, int]] = frozenset()
        self._uids = 0

    def round(self, *gangs: Gang, now_s: float = 100.0) -> list[Step]:
        steps = plan_pods(gangs, self.pods.values(), PLACES, self.given_up, RULES, now_s)
        for step in steps:
            match step:
                case CreatePod():
                    self._uids += 1
                    metadata = {**step.item["metadata"], "uid": str(self._uids)}
                    pod = {**step.item, "metadata": metadata, "status": {"phase": "Pending"}}
                    assert self.pods.setdefault(metadata["name"], pod) is pod
                case LiftGate():
                    pod = self.pods[step.name]
                    pod["metadata"]["annotations"] |= step.change["metadata"]["annotations"]
                    pod["spec"] |= step.change["spec"]
                case DeletePod():
                    assert self.pods.pop(step.name)["metadata"]["uid"] == step.uid
                case GiveUp():
                    self.given_up |= {(step.job_id, step.attempt)}
        return steps

    def gate(self, name: str) -> None:
        """As a webhook of others does when a pod is created."""
        for pod in self.pods.values():
            pod["spec"]["schedulingGates"].append({"name": name})

    def gates(self) -> list[list[str]]:
        """The names of each pod's gates."""
        return [[g["name"] for g in pod["spec"]["schedulingGates"]] for pod in self.pods.values()]

    def bind(self, *nodes: str) -> None:
        for pod in self.pods.values():
            if pod["metadata"]["annotations"]["gangline.dev/node"] in nodes:
                node_id = pod["metadata"]["annotations"]["gangline.dev/node"]
                pod["spec"]["nodeName"] = PLACES[node_id].name
                pod["status"]["phase"] = "Running"

    @property
    def nodes(self) -> set[str]:
        return {pod["metadata"]["annotations"]["gangline.dev/node"] for pod in self.pods.values()}


def kinds(steps: list[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_a_pod_asks_for_its_node_its_gpus_and_no_rights() -> None:
    (step,) = Cluster().round(gang(1))
    assert isinstance(step, CreatePod)
    spec, (container,) = step.item["spec"], step.item["spec"]["containers"]
    assert spec["schedulingGates"] == [{"name": GATE}]
    assert "nodeName" not in spec
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n.1"]
    assert container["image"] == "train:1"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert container["resources"]["requests"]["cpu"] == "6000m"
    assert (spec["enableServiceLinks"], spec["automountServiceAccountToken"]) == (False, False)
    user = team_user("nlp", RULES.uids[1:])
    assert spec["securityContext"]["runAsUser"] == user
    folder = f"{RULES.data}/sockets/{pod_folder('j-1')}"
    for each in (*spec["initContainers"], container):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert f"{folder}/pod.sock" in each["command"]
        assert {"name": "job", "mountPath": folder} in each["volumeMounts"]
    assert PODS.path(step.item["metadata"]["namespace"]) == "/api/v1/namespaces/jobs/pods"


def test_gates_are_lifted_once_all_pods_are_there() -> None:
    cluster = Cluster()
    assert kinds(cluster.round(gang(0, 1))) == ["CreatePod"] * 2
    cluster.pods.popitem()  # one was not created, or is not seen yet
    assert kinds(cluster.round(gang(0, 1))) == ["CreatePod"]
    assert kinds(cluster.round(gang(0, 1))) == ["LiftGate"] * 2
    assert cluster.round(gang(0, 1)) == []


def test_gates_stay_while_the_gang_has_no_gpus() -> None:
    cluster = Cluster()
    cluster.round(gang(0, 1))
    assert cluster.round(gang(idle_s=1.0)) == []
    assert kinds(cluster.round(gang(0, 1, attempt=2))) == ["LiftGate"] * 2


def test_a_gang_that_is_not_bound_in_time_loses_all_pods_for_this_attempt() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0, 1), now_s=100.0)
    cluster.bind("n-0")
    assert cluster.round(gang(0, 1), now_s=104.0) == []
    assert kinds(cluster.round(gang(0, 1), now_s=105.5)) == ["GiveUp", "DeletePod", "DeletePod"]
    assert cluster.round(gang(0, 1), now_s=106.0) == []
    assert cluster.pods == {}
    assert kinds(cluster.round(gang(2, 3, attempt=2), now_s=107.0)) == ["CreatePod"] * 2


def test_gates_of_others_stay_and_are_why_a_gang_is_given_up() -> None:
    cluster = Cluster()
    cluster.round(gang(0, 1), now_s=100.0)
    cluster.gate("kueue.x-k8s.io/admission")
    assert kinds(cluster.round(gang(0, 1), now_s=100.0)) == ["LiftGate"] * 2
    assert cluster.gates() == [["kueue.x-k8s.io/admission"]] * 2
    assert cluster.round(gang(0, 1), now_s=104.0) == []
    given_up, *deleted = cluster.round(gang(0, 1), now_s=105.5)
    assert isinstance(given_up, GiveUp)
    assert given_up.why == "scheduling gates that others added: kueue.x-k8s.io/admission"
    assert kinds(deleted) == ["DeletePod"] * 2


def test_a_gang_is_bound_once_others_have_lifted_their_gates() -> None:
    cluster = Cluster()
    cluster.round(gang(0), now_s=100.0)
    cluster.gate("kueue.x-k8s.io/admission")
    cluster.round(gang(0), now_s=100.0)
    for pod in cluster.pods.values():
        pod["spec"]["schedulingGates"] = []
    cluster.bind("n-0")
    assert cluster.round(gang(0), now_s=106.0) == []


def test_kube_scheduler_s_words_are_why_a_gang_is_given_up() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0), now_s=100.0)
    (pod,) = cluster.pods.values()
    said = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": said}]
    given_up = cluster.round(gang(0), now_s=105.5)[0]
    assert isinstance(given_up, GiveUp)
    assert given_up.why == said
    assert job_pod_part(pod)["status"]["conditions"][0]["message"] == said


@pytest.mark.parametrize("lifted", ["soon", "nan", "1e999"])
def test_a_pod_whose_time_was_changed_holds_up_no_other_gang(lifted: str) -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0))
    for pod in cluster.pods.values():
        pod["metadata"]["annotations"]["gangline.dev/lifted"] = lifted
    others = gang(1, job_id="j-2")
    assert kinds(cluster.round(gang(0), others)) == ["GiveUp", "DeletePod", "CreatePod"]


def test_the_next_attempt_uses_the_pods_that_live_on_its_nodes() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0, 1))
    cluster.bind("n-0", "n-1")
    assert cluster.round(gang(idle_s=5.0)) == []
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}
    assert kinds(cluster.round(gang(1, 2, attempt=2))) == ["DeletePod", "CreatePod"]
    assert cluster.nodes == {"n-1", "n-2"}
    assert sum(before.get(n) == pod["metadata"]["uid"] for n, pod in cluster.pods.items()) == 1
    assert kinds(cluster.round(gang(1, 2, attempt=2))) == ["LiftGate"]


def test_pods_without_a_gang_give_way_to_another_s_and_go_after_a_while() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0, 1))
    cluster.bind("n-0", "n-1")
    other = gang(1, job_id="j-2")
    assert kinds(cluster.round(gang(idle_s=5.0), other)) == ["DeletePod", "CreatePod"]
    assert kinds(cluster.round(gang(idle_s=5.0), other)) == ["LiftGate"]
    assert kinds(cluster.round(gang(idle_s=31.0), other)) == ["DeletePod"]
    cluster.bind("n-1")
    assert kinds(cluster.round()) == ["DeletePod"]  # the other job has ended


def test_gates_wait_until_the_pod_before_has_left_the_node() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0))
    (pod,) = cluster.pods.values()
    pod["metadata"]["deletionTimestamp"] = "2026-11-26T12:00:00Z"
    assert kinds(cluster.round(gang(0, job_id="j-2"))) == ["CreatePod"]
    assert cluster.round(gang(0, job_id="j-2")) == []
    del cluster.pods[pod["metadata"]["name"]]
    assert kinds(cluster.round(gang(0, job_id="j-2"))) == ["LiftGate"]


def test_a_pod_that_has_ended_is_made_again() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.round(gang(0))
    (pod,) = cluster.pods.values()
    pod["status"]["phase"] = "Failed"
    steps = plan_pods([gang(0)], cluster.pods.values(), PLACES, frozenset(), RULES, 100.0)
    assert kinds(steps) == ["DeletePod", "CreatePod"]


def test_nodes_outside_of_kubernetes_get_no_pods() -> None:
    assert Cluster().round(Gang("j-1", 1, "nlp", SPEC, (Share("bare", 2),))) == []


@pytest.mark.parametrize("uids", ["1900000999-1900000000", "1900000000-1900000000", "0-1999"])
def test_users_of_teams_are_a_range_as_agents_have_it(uids: str) -> None:
    needed = {
        "kube_gateway_url": "http://g",
        "kube_token": "t",
        "kube_pods_agent_image": "agents:1",
    }
    with pytest.raises(ValidationError, match="FIRST-LAST"):
        PodSettings.model_validate({**needed, "kube_pods_uids": uids})
    assert len(PodSettings.model_validate(needed).rules().uids) == 1_000_000
