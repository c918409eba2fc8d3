"""A cordon and a broken node, from Kubernetes to gangs that train elsewhere, on the real platform.

The API server is in memory. The process that follows nodes, the gateway, the services and the
agents are real, and their nodes have the same names on both sides.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline.sdk import Gangline, connect
from support.builders.held_job import training
from support.fakes.kube_api import KubeServer
from support.fixtures.platform import RunningPlatform
from support.harnesses.kube_operator import OperatorProcess
from support.harnesses.log_watch import LogWatch

CONDITION = "KernelDeadlock"
AS_SHIPPED = {"GANGLINE_KUBE_ROUND_S": "5"}
HOURS = {"interval_minutes": 600}  # nothing is saved before it is asked for


@dataclass
class Stand:
    """Both sides of the platform's nodes, and the process between them."""

    server: KubeServer
    process: OperatorProcess
    gateway: Gangline
    watch: LogWatch

    def change(self, name: str, edit: Callable[[dict[str, Any]], None], part: str = "") -> None:
        """Change a node in Kubernetes, as others do."""

        def now() -> None:
            kind = self.server.store.kind("", "nodes")
            item = self.server.store.get(kind, "", name)
            new = copy.deepcopy(item)
            edit(new)
            self.server.store.update(kind, item, new, part, strict=True)

        self.server.do(now)

    def cordon(self, name: str, *, on: bool) -> None:
        self.change(name, lambda node: node["spec"].update(unschedulable=on))

    def condition(self, name: str, status: str) -> None:
        broken = {"type": CONDITION, "status": status, "message": "task hung"}
        self.change(name, lambda node: node.update(status={"conditions": [broken]}), "status")

    def until(self, status: str, name: str) -> None:
        self.process.wait(f"{name} {status}", lambda: self.gateway.node(name).status == status)

    def trained(self, job: str, attempt: int) -> int:
        """The last step of an attempt that was reported so far."""
        self.watch.settle()
        reports = [seen.data for seen in self.watch.of("worker.step") if seen.data.run_id == job]
        return max(step for each in reports if each.attempt == attempt for step in each.step)

    def allocated(self, job: str, attempt: int) -> Any:
        """The decision that gave an attempt its GPUs."""
        return self.watch.wait_for(
            lambda seen: (
                seen.type == "gang.allocated"
                and seen.data.job_id == job
                and seen.data.attempt == attempt
            )
        ).data


@pytest.fixture
def stand(platform: RunningPlatform, tmp_path: Path) -> Iterator[Stand]:
    url, token = platform.client.url, platform.client.token
    with (
        platform.watching() as watch,
        connect(url, token) as gateway,
        KubeServer() as server,
    ):
        for node in gateway.nodes():
            item = {"metadata": {"name": node.node_id}, "spec": {}}
            server.do(lambda item=item: server.add("nodes", item))
        config = server.kubeconfig(tmp_path)
        with OperatorProcess(
            config, url, tmp_path, "gangline_kube", **AS_SHIPPED, GANGLINE_KUBE_TOKEN=token
        ) as process:
            yield Stand(server, process, gateway, watch)


def moved(stand: Stand, job: str, attempt: int, cause: Callable[[str], None], reason: str) -> str:
    """Let `cause` happen to the node of an attempt, and check how the gang leaves it; the node."""
    (node,) = stand.allocated(job, attempt).nodes
    before = stand.trained(job, attempt)
    began = time.monotonic()
    cause(node.node_id)
    following = stand.allocated(job, attempt + 1)
    placed_s = time.monotonic() - began
    stand.watch.wait_step(job, following.resume.step + 1, attempt=attempt + 1)
    trains_s = time.monotonic() - began
    assert node.node_id not in {other.node_id for other in following.nodes}
    assert following.resume.step >= before, "what was trained before the cause is lost"
    lost = stand.trained(job, attempt) - following.resume.step
    asked = [seen.data.reason for seen in stand.watch.of("node.drain.admitted")]
    assert asked[-1] == reason
    print(f"{reason}: placed in {placed_s:.1f} s, trains in {trains_s:.1f} s, {lost} steps lost")
    return node.node_id


def test_a_gang_leaves_a_node_that_kubernetes_cordons_and_one_that_breaks(
    stand: Stand, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = stand.watch.submit("leaves", **training(gate), checkpoint=HOURS)
    stand.watch.wait_step(job, 5)
    first = moved(stand, job, 1, lambda name: stand.cordon(name, on=True), "cordoned in Kubernetes")
    stand.cordon(first, on=False)
    stand.until("ready", first)
    second = moved(
        stand, job, 2, lambda name: stand.condition(name, "True"), f"{CONDITION}: task hung"
    )
    stand.condition(second, "False")
    stand.until("ready", second)
    gate.touch()
    stand.watch.wait_state(job, "succeeded")
    assert not stand.watch.of("gang.failed", job)
