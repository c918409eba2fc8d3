"""The network of gangs whose pods have one of their own: when it is there, and who passes."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

from kubernetes import client

from gangline_kube.core.gang_network import (
    CreateBeside,
    DeleteBeside,
    NetworkPlan,
    beside_part,
    plan_networks,
)
from gangline_kube.core.job_pod import JOB, Gang, PodRules, Share, job_pod
from gangline_kube.core.pod_resources import Place
from gangline_kube.core.pods import CreatePod, LiftGate, plan_pods
from gangline_kube.core.resource import NETWORK_POLICIES, SERVICES, Object, Resource
from gangline_schemas.job import JobSpec
from gangline_schemas.metadata_services import ADDRESSES

SPEC = JobSpec.model_validate({"name": "j", "team": "nlp", "run": "x", "resources": {"gpus": 2}})
RULES = PodRules("jobs", "a:1", "a:1", "/data", range(1000, 2000), own_network=True)


def gang(job_id: str = "j-1", *nodes: str) -> Gang:
    return Gang(job_id, 1, "nlp", SPEC, tuple(Share(node, 1) for node in nodes))


class Beside:
    """Services and NetworkPolicies, changed by steps."""

    def __init__(self, **rules: Any) -> None:
        self.rules = replace(RULES, **rules)
        self.items: dict[Resource, dict[str, Object]] = {SERVICES: {}, NETWORK_POLICIES: {}}

    def round(self, *gangs: Gang, with_pods: tuple[str, ...] = ()) -> NetworkPlan:
        found = {of: map(beside_part, items.values()) for of, items in self.items.items()}
        plan = plan_networks(gangs, with_pods, found, self.rules)
        for step in plan.steps:
            match step:
                case CreateBeside():
                    name = step.item["metadata"]["name"]
                    metadata = {**step.item["metadata"], "uid": f"of-{name}"}
                    assert name not in self.items[step.of]
                    self.items[step.of][name] = {**step.item, "metadata": metadata}
                case DeleteBeside():
                    assert step.uid == f"of-{step.name}"
                    del self.items[step.of][step.name]
        return plan

    def policy(self) -> Any:
        (found,) = self.items[NETWORK_POLICIES].values()
        return found["spec"]


def test_it_comes_with_the_gang_and_goes_after_its_last_pod() -> None:
    beside, job = Beside(), gang("j-1", "n-1")
    assert beside.round(gang("j-1")).steps == ()  # it waits
    assert beside.round(job).ready == frozenset()
    assert beside.round(job) == NetworkPlan((), frozenset({"j-1"}))
    assert beside.round(gang("j-1"), with_pods=("j-1",)).steps == ()  # between attempts
    assert beside.round(with_pods=("j-1",)).steps == ()  # its pods are just ending
    assert len(beside.round().steps) == 2
    assert beside.items == {SERVICES: {}, NETWORK_POLICIES: {}}


def test_what_somebody_deletes_comes_again_and_others_are_left_alone() -> None:
    beside, job = Beside(), gang("j-1", "n-1")
    beside.round(job)
    beside.items[NETWORK_POLICIES].clear()
    foreign = {"metadata": {"name": "own", "uid": "x", "labels": {"app": "y"}}}
    beside.items[SERVICES]["own"] = foreign
    assert beside.round(job).ready == frozenset()
    assert beside.round(job).ready == {"j-1"}
    beside.round()
    assert beside.items[SERVICES] == {"own": foreign}


def test_no_gate_is_lifted_before_it_is_there() -> None:
    places, job = {"n-1": Place("n.1")}, gang("j-1", "n-1")
    (made,) = plan_pods([job], [], places, frozenset(), RULES, 1.0)
    assert isinstance(made, CreatePod)
    pod = {**made.item, "metadata": {**made.item["metadata"], "uid": "1"}}
    assert plan_pods([job], [pod], places, frozenset(), RULES, 1.0) == []
    (lifted,) = plan_pods([job], [pod], places, frozenset(), RULES, 1.0, frozenset({"j-1"}))
    assert isinstance(lifted, LiftGate)


def test_only_the_job_s_pods_reach_its_pods_and_they_reach_no_metadata_service() -> None:
    beside = Beside()
    beside.round(gang("j-1", "n-1"))
    policy = beside.policy()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = policy["ingress"]
    assert rule == {"from": [{"podSelector": policy["podSelector"]}]}
    assert policy["podSelector"] == {"matchLabels": {JOB: "j-1"}}
    (out,) = policy["egress"]
    assert {"namespaceSelector": {}} in out["to"]
    blocks = [each["ipBlock"] for each in out["to"] if "ipBlock" in each]

    def reaches(address: str) -> bool:
        found = ip_address(address)
        return any(
            found in ip_network(block["cidr"])
            and not any(found in ip_network(each) for each in block["except"])
            for block in blocks
        )

    assert all(map(reaches, ("10.0.0.1", "169.254.20.10", "2001:db8::1")))
    assert not any(map(reaches, ADDRESSES))


def test_pods_reach_only_what_is_named_once_something_is() -> None:
    store = {"ipBlock": {"cidr": "10.1.0.0/16"}}
    beside = Beside(peers=(store,))
    beside.round(gang("j-1", "n-1"))
    to, names = beside.policy()["egress"]
    assert to == {"to": [{"podSelector": beside.policy()["podSelector"]}, store]}
    assert {each["port"] for each in names["ports"]} == {53}


def test_a_pod_has_a_name_in_its_service_and_not_the_network_of_the_node() -> None:
    beside, job = Beside(), gang("j-1", "n-1", "n-2")
    beside.round(job)
    (service,) = beside.items[SERVICES].values()
    pods = [job_pod(job, share, Place(share.node_id), RULES) for share in job.shares]
    for pod in pods:
        spec = pod["spec"]
        assert spec["subdomain"] == service["metadata"]["name"]
        assert not spec.get("hostNetwork")
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert len({pod["spec"]["hostname"] for pod in pods}) == 2
    assert service["spec"]["clusterIP"] == "None"
    on_node = job_pod(job, job.shares[0], Place("n-1"), PodRules("jobs", "a", "a", "/d", range(9)))
    assert on_node["spec"]["hostNetwork"] is True


def test_the_objects_fit_the_models_of_their_kinds() -> None:
    beside = Beside()
    for step in beside.round(gang("j-1", "n-1")).steps:
        assert isinstance(step, CreateBeside)
        model = getattr(client, f"V1{step.of.kind}")
        kept = client.ApiClient().sanitize_for_serialization(model.from_dict(step.item))
        assert kept == step.item
