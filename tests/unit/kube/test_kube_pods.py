"""Pods of gangs: all of a gang start or none, also among pods of others and ended processes."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline_kube.core.pods import (
    BIND_S,
    Create,
    Delete,
    Gang,
    Lift,
    Refuse,
    Room,
    Step,
    manifest,
    plan,
    pod_name,
)

GPU = "nvidia.com/gpu"
START = datetime(2026, 11, 26, 12, tzinfo=UTC)


def gang(job_id: str = "a", *nodes: str, gpus: int = 8, attempt: int = 1) -> Gang:
    return Gang(job_id, attempt, "nlp", "image", tuple(Room(node, gpus) for node in nodes))


class World:
    """An API server, a kube-scheduler and kubelets, as far as pods of gangs see them."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.now = START
        self.nodes = nodes
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.refused: list[Refuse] = []

    def round(self, gangs: list[Gang], most: int = 10**9) -> list[Step]:
        """Do the first `most` steps of a round: a process that ends does not do the others."""
        pods = [copy.deepcopy(pod) for pod in self.pods.values() if pod["metadata"]["labels"]]
        steps = plan(gangs, pods, GPU, self.now)[:most]
        for step in steps:
            self.do(step)
        return steps

    def do(self, step: Step) -> None:
        match step:
            case Create(pod):
                self.add(pod)
            case Lift(name, change):
                pod = self.pods[name]
                assert change["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
                pod["metadata"].setdefault("annotations", {}).update(
                    change["metadata"]["annotations"]
                )
                pod["spec"]["schedulingGates"] = []
                self.touch(pod)
            case Delete(name, uid):
                if self.pods[name]["metadata"]["uid"] == uid:
                    del self.pods[name]
            case Refuse():
                self.refused.append(step)

    def add(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if name in self.pods:
            return
        made = copy.deepcopy(pod)
        made["status"] = {"phase": "Pending"}
        self.touch(made)
        made["metadata"]["uid"] = f"uid-{self.version}"
        self.pods[name] = made

    def touch(self, pod: dict[str, Any]) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)

    def used(self, node: str) -> int:
        return sum(
            pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0)
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") == node
        )

    def schedule(self, seed: random.Random | None = None) -> None:
        """Bind each pod without gates to its node, or to any, if it has GPUs left."""
        waiting = [
            pod
            for pod in self.pods.values()
            if not pod["spec"].get("schedulingGates") and "nodeName" not in pod["spec"]
        ]
        if seed is not None:
            seed.shuffle(waiting)
        for pod in waiting:
            asked = pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0)
            for node in _nodes_of(pod) or list(self.nodes):
                if self.used(node) + asked <= self.nodes[node]:
                    pod["spec"]["nodeName"] = node
                    self.touch(pod)
                    break

    def bound(self, job_id: str) -> list[str]:
        return sorted(
            pod["spec"]["nodeName"]
            for pod in self.pods.values()
            if pod["metadata"]["labels"].get("gangline.dev/job") == job_id
            and "nodeName" in pod["spec"]
        )


def _nodes_of(pod: dict[str, Any]) -> list[str]:
    affinity = pod["spec"].get("affinity")
    if affinity is None:
        return []
    rule = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return list(rule["nodeSelectorTerms"][0]["matchFields"][0]["values"])


def foreign(name: str, gpus: int) -> dict[str, Any]:
    limits = {"limits": {GPU: gpus}}
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {"containers": [{"resources": limits}]},
    }


def test_gates_are_lifted_once_all_pods_are_there() -> None:
    world, wanted = World({"n1": 8, "n2": 8}), [gang("a", "n1", "n2")]
    world.round(wanted, most=1)
    assert not any(isinstance(step, Lift) for step in plan(wanted, world.pods.values(), GPU, START))
    world.round(wanted)
    world.schedule()
    assert world.bound("a") == []
    lifted = world.round(wanted)
    assert [type(step) for step in lifted] == [Lift, Lift]
    world.schedule()
    assert world.bound("a") == ["n1", "n2"]
    world.now += timedelta(seconds=60)
    assert world.round(wanted) == []


def test_a_process_that_ends_between_two_lifts_loses_nothing() -> None:
    world, wanted = World({"n1": 8, "n2": 8}), [gang("a", "n1", "n2")]
    world.round(wanted)
    world.round(wanted, most=1)
    world.schedule()
    world.round(wanted)
    world.schedule()
    assert world.bound("a") == ["n1", "n2"]


def test_a_gang_that_loses_a_race_goes_whole_and_is_refused() -> None:
    world, wanted = World({"n1": 8, "n2": 8}), [gang("a", "n1", "n2")]
    world.add(foreign("other", 1) | {})
    world.pods["other"]["spec"]["nodeName"] = "n2"
    world.round(wanted)
    world.round(wanted)
    world.schedule()
    world.now += timedelta(seconds=BIND_S - 0.1)
    assert world.round(wanted) == []
    world.now += timedelta(seconds=0.2)
    world.round(wanted)
    assert [(one.job_id, one.attempt, one.nodes) for one in world.refused] == [("a", 1, ("n2",))]
    assert list(world.pods) == ["other"]


def test_a_pod_that_its_kubelet_refuses_is_no_place() -> None:
    world, wanted = World({"n1": 8}), [gang("a", "n1")]
    world.round(wanted)
    world.round(wanted)
    world.schedule()
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPUs"}
    world.pods[pod_name("a", "n1")]["status"] = status
    world.round(wanted)
    assert world.refused[0].reason == "UnexpectedAdmissionError: no GPUs"


def test_the_next_attempt_keeps_the_pods_of_nodes_that_stay() -> None:
    world = World({"n1": 8, "n2": 8, "n3": 8})
    for _ in range(2):
        world.round([gang("a", "n1", "n2")])
    world.schedule()
    kept = world.pods[pod_name("a", "n1")]["metadata"]["uid"]
    for _ in range(2):
        world.round([gang("a", "n1", "n3", attempt=2)])
    world.schedule()
    assert world.bound("a") == ["n1", "n3"]
    assert world.pods[pod_name("a", "n1")]["metadata"]["uid"] == kept
    world.round([])
    assert world.pods == {}


def test_a_pod_that_is_going_is_waited_for() -> None:
    world, wanted = World({"n1": 8, "n2": 8}), [gang("a", "n1", "n2")]
    world.round(wanted)
    world.pods[pod_name("a", "n1")]["metadata"]["deletionTimestamp"] = "now"
    assert world.round(wanted) == []
    del world.pods[pod_name("a", "n1")]
    assert [type(step) for step in world.round(wanted)] == [Create]


def test_a_pod_keeps_to_the_restricted_profile_and_names_no_node() -> None:
    spec = manifest(gang("a", "n1"), Room("n1", 8), GPU)["spec"]
    assert "nodeName" not in spec
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["resources"]["limits"] == {GPU: 8}
    assert manifest(gang("a", "n1"), Room("n1", 0), GPU)["spec"]["containers"][0]["resources"] == {
        "limits": {}
    }


@pytest.mark.parametrize("seed", range(3))
def test_among_pods_of_others_no_gang_starts_in_part(seed: int) -> None:
    """50 gangs, 200 pods of others, processes that end anywhere: no partial start, no node full."""
    random_ = random.Random(seed)
    nodes = {f"n{index}": 8 for index in range(32)}
    world = World(nodes)
    waiting = [(f"job-{index}", random_.choice([1, 2, 4])) for index in range(50)]
    live: dict[str, Gang] = {}
    whole: set[str] = set()
    others = [foreign(f"other-{index}", random_.choice([1, 2, 4])) for index in range(200)]
    for _ in range(600):
        if others and random_.random() < 0.5:
            world.add(others.pop())
        if random_.random() < 0.3:
            mine = [name for name, pod in world.pods.items() if not pod["metadata"]["labels"]]
            if mine:
                del world.pods[random_.choice(mine)]
        if waiting and len(live) < 8:
            job_id, size = waiting.pop(0)
            live[job_id] = gang(job_id, *random_.sample(list(nodes), size))
        world.round(list(live.values()), most=random_.randint(0, 12))
        if random_.random() < 0.7:
            world.schedule(random_)
        world.now += timedelta(seconds=1)
        assert all(world.used(node) <= most for node, most in nodes.items())
        for one in world.refused:
            if live.pop(one.job_id, None) is not None:
                assert one.job_id not in whole  # a gang that runs is never refused
                waiting.append((one.job_id, len(one.nodes) or 1))
        world.refused.clear()
        for job_id, one in list(live.items()):
            if len(world.bound(job_id)) == len(one.rooms):
                whole.add(job_id)
            if job_id in whole and random_.random() < 0.1:
                del live[job_id]
    assert len(whole) == 50
