"""The API server is killed and comes back: objects get their jobs, and nodes their drains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_kube.core.resource import NODES
from kube.kubelet import node
from kube.plane import ControlPlane
from support.clients.kube_objects import create
from support.fakes.job_gateway import JobGateway
from support.fixtures.kube import PROGRAM, needs_kube
from support.harnesses.kube_operator import OperatorProcess, TrainingJobs

pytestmark = needs_kube
AWAY_S = 5.0
OBJECTS = 20


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of its own, whose API server may end."""
    assert PROGRAM
    with ControlPlane(Path(PROGRAM).resolve(), tmp_path / "plane") as made:
        yield made


def test_an_api_server_that_was_away_loses_and_doubles_nothing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    api, config = plane.cluster(), plane.kubeconfig
    create(api, NODES, node("n-1", 8))
    with (
        JobGateway() as gateway,
        TrainingJobs(api) as objects,
        OperatorProcess(config, gateway.url, tmp_path) as operator,
        OperatorProcess(config, gateway.url, tmp_path, "gangline_kube") as nodes,
    ):
        gateway.nodes = {"n-1": "ready"}
        for index in range(OBJECTS):
            objects.create(f"before-{index}")
        operator.wait("some", lambda: len(gateway.submitted) > OBJECTS // 4)
        plane.kill_api()
        gateway.set("running")
        gateway.nodes["n-1"] = "draining"
        time.sleep(AWAY_S)
        plane.start_api()
        back = time.monotonic()
        for index in range(OBJECTS):
            objects.create(f"after-{index}")
        nodes.wait("cordoned", lambda: bool(api.get(NODES, "n-1")["spec"].get("unschedulable")))

        def answered() -> bool:
            states = objects.states()
            return len(states) == 2 * OBJECTS and all(states.values())

        operator.wait("all answered", answered)
        operator.wait("mirrored", lambda: "running" in objects.states().values())
        print(f"API server away for {AWAY_S:.0f} s: all done {time.monotonic() - back:.1f} s later")
        assert set(gateway.submitted.values()) == {1}
        assert len(gateway.submitted) == 2 * OBJECTS
