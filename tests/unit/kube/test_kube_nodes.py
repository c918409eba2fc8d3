"""Nodes: causes in Kubernetes drain them in Gangline, and drains of Gangline cordon them."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_kube.core.nodes import (
    AskDrain,
    Patch,
    Rules,
    Step,
    foreign_gpus,
    node_id,
    node_part,
    plan,
    pod_part,
)
from gangline_schemas.api.cluster import DrainBody
from support.fakes.kube_objects import merged

RULES = Rules(conditions=("Gpu*", "KernelDeadlock"), gpu_resource="nvidia.com/gpu")


class Both:
    """One node on both sides, with a process that may end after any step."""

    def __init__(self, **spec: Any) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "n.1", "resourceVersion": "1"},
            "spec": spec,
            "status": {"conditions": []},
        }
        self.status = "ready"
        self.foreign = 0
        self.asked: list[AskDrain] = []

    def round(self, most: int = 100) -> list[Step]:
        foreign = {"n.1": self.foreign} if self.foreign else {}
        steps = plan([node_part(self.node)], {"n-1": self.status}, foreign, RULES)[:most]
        for step in steps:
            if isinstance(step, AskDrain):
                self.asked.append(step)
                wanted = "draining" if step.move_jobs else "cordoned"
                self.status = wanted if step.on else "ready"
            else:
                assert step.change["metadata"]["resourceVersion"] == "1"
                self.node = merged(self.node, step.change)
        return steps

    @property
    def notes(self) -> dict[str, str]:
        return self.node["metadata"].get("annotations") or {}

    def condition(self, kind: str, status: str, message: str = "") -> None:
        one = {"type": kind, "status": status, "message": message}
        self.node["status"]["conditions"] = [one]


def test_a_cordon_by_others_drains_and_its_end_ends_the_drain() -> None:
    both = Both(unschedulable=True)
    both.round()
    assert (both.status, both.asked[0].reason) == ("draining", "cordoned in Kubernetes")
    assert both.round() == []
    both.node["spec"]["unschedulable"] = False
    both.round()
    assert (both.status, both.notes) == ("ready", {})
    assert both.round() == []


@pytest.mark.parametrize("most", [1, 2])
def test_a_process_that_ends_after_a_step_continues_there(most: int) -> None:
    both = Both(unschedulable=True)
    both.round(most)
    both.round()
    assert both.status == "draining"
    both.node["spec"]["unschedulable"] = False
    both.round(most)
    both.round()
    assert (both.status, both.notes) == ("ready", {})


def test_a_drain_of_gangline_cordons_and_is_undone_by_us_alone() -> None:
    both = Both()
    both.status = "draining"
    both.round()
    assert both.node["spec"]["unschedulable"] is True
    assert both.notes == {"gangline.dev/cordon": "Gangline: draining"}
    assert (both.round(), both.asked) == ([], [])
    both.status = "ready"
    both.round()
    assert (both.node["spec"]["unschedulable"], both.notes) == (False, {})


def test_a_cordon_that_a_person_undoes_stays_undone() -> None:
    both = Both()
    both.status = "cordoned"
    both.round()
    both.node["spec"]["unschedulable"] = False
    assert both.round() == []
    both.status = "ready"
    both.round()
    assert both.notes == {}


def test_a_drain_by_others_is_never_ended_here() -> None:
    both = Both(unschedulable=True)
    both.status = "draining"
    assert both.round() == []
    both.node["spec"]["unschedulable"] = False
    both.round()
    assert both.asked == []
    assert both.status == "draining"


def test_conditions_and_taints_are_causes() -> None:
    both = Both()
    both.condition("GpuXid", "True", "Xid 79\non GPU 3")
    both.round()
    assert both.asked[0].reason == "GpuXid: Xid 79 on GPU 3"
    both.condition("GpuXid", "True", "Xid 79 again")
    assert both.round() == []
    both.condition("GpuXid", "False")
    both.round()
    assert both.status == "ready"
    both.condition("DiskPressure", "True")
    both.node["spec"]["taints"] = [
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
        {"key": "dedicated", "effect": "NoSchedule"},
        {"key": "gangline.dev/pool", "effect": "NoExecute"},
    ]
    assert both.round() == []
    both.node["spec"]["taints"] = [{"key": "repair", "effect": "NoExecute"}]
    both.round()
    assert both.asked[-1].reason == "taint repair"


def test_a_reason_has_characters_that_the_gateway_takes() -> None:
    both = Both()
    both.condition("GpuLost", "True", "\x1b[31mXid\n79\u2028\u202eon 3")
    both.round()
    assert both.asked[0].reason == "GpuLost: ?[31mXid 79 ?on 3"
    assert DrainBody(drain=True, reason=both.asked[0].reason)


def test_pods_of_others_with_gpus_keep_new_gangs_off() -> None:
    both = Both()
    both.foreign = 2
    both.round()
    assert both.status == "cordoned"
    assert both.round() == []
    both.foreign = 0
    both.round()
    assert both.status == "ready"


def test_a_node_that_is_down_is_asked_once() -> None:
    both = Both(unschedulable=True)
    both.status = "failed"
    both.round()
    both.status = "failed"
    assert both.round() == []


def test_conditions_drain_at_most_their_share_of_nodes() -> None:
    sick = []
    for index in range(10):
        both = Both()
        both.condition("KernelDeadlock", "True")
        both.node["metadata"]["name"] = f"n{index}"
        sick.append(both.node)
    statuses = {f"n{index}": "ready" for index in range(10)}
    steps = plan(sick, statuses, {}, RULES)
    assert len([step for step in steps if isinstance(step, AskDrain)]) == 5
    done = [merged(node, step.change) for node, step in zip(sick, steps[::2], strict=False)]
    assert all(isinstance(step, Patch) for step in steps[::2])
    statuses |= {f"n{index}": "draining" for index in range(5)}
    assert plan([*done, *sick[5:]], statuses, {}, RULES) == []


def test_nodes_that_gangline_does_not_know_are_left_alone() -> None:
    assert plan([Both(unschedulable=True).node], {}, {}, RULES) == []
    assert node_id("ip-10-0-0-1.ec2.internal") == "ip-10-0-0-1-ec2-internal"


def test_gpus_of_others_are_those_of_bound_pods_that_run() -> None:
    def pod(
        node: str | None, gpus: int | str, phase: str = "Running", **labels: str
    ) -> dict[str, Any]:
        limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {"containers": [limits, {}], "nodeName": node}
        return {"metadata": {"labels": labels}, "spec": spec, "status": {"phase": phase}}

    pods = [
        pod("a", 2),
        pod("a", 1),
        pod(None, 8),
        pod("b", 4, "Succeeded"),
        pod("c", 8, **{"gangline.dev/part": "agent"}),
        pod("d", "1k"),  # as an API server writes 1000
    ]
    assert foreign_gpus(map(pod_part, pods), "nvidia.com/gpu") == {"a": 3, "d": 1000}


@pytest.mark.parametrize("note", ["", "a\nb", "x" * 100_000, " "])
def test_a_drain_ends_whatever_its_annotation_became(note: str) -> None:
    both = Both()
    both.status = "draining"
    both.node["metadata"]["annotations"] = {"gangline.dev/drain": note}
    both.round()
    assert (both.status, both.notes.get("gangline.dev/drain")) == ("ready", None)
    DrainBody(drain=False, reason=both.asked[0].reason)


def test_of_nodes_and_pods_only_what_is_read_stays() -> None:
    metadata = {"name": "a", "namespace": "x", "managedFields": [{"manager": "kubelet"}]}
    node = {"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"images": [{}]}}
    assert node_part(node) == {"metadata": {"name": "a"}, "spec": {}, "status": {}}
    pod = {"metadata": metadata, "spec": {"volumes": [{}], "containers": [{"env": [{}]}]}}
    assert pod_part(pod) == {
        "metadata": {"name": "a", "namespace": "x"},
        "spec": {"containers": [{"resources": None}]},
        "status": {},
    }
