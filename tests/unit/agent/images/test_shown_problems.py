"""A user reads in `gangline show` why an image cannot be used, by its name.

From a registry that fails to the printed text: the agent's images and core, then the fault manager,
the scheduler, the gateway's read model and the command's text.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import timedelta

import pytest

from gangline.commands.jobs import description
from gangline_gateway import gang_heartbeats, present
from gangline_schemas.events.faults import GangFailed
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import NodeJoined, WorkerExited
from gangline_worker.agent.decide.inputs import PrepareFailed
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images.problems import ImageProblem
from support.builders.agent_core import NODE, Node, published
from support.builders.deciding import every, only
from support.builders.faults import fault_run
from support.builders.images import AS_ROOT
from support.builders.read_model import ReadModel
from support.builders.scheduler import Cluster
from support.fakes.oci_registry import OciRegistry
from support.harnesses.image_node import BIG, ImageNode

pytestmark = AS_ROOT

Spoil = Callable[[OciRegistry, ImageNode, pytest.MonkeyPatch], None]


def _denied(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.user = "robot:secret"


def _missing(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.manifests.clear()


def _changed(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.wrong.update(hub.blobs)


def _busy(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.busy = 1000


def _cut(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.cuts.extend([1 << 30, *[1000] * 10])


def _other_processor(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.push("a", [BIG], architecture="riscv64")


def _gone(hub: OciRegistry, node: ImageNode, _: pytest.MonkeyPatch) -> None:
    hub.host = "127.0.0.1:1"


def _full(hub: OciRegistry, node: ImageNode, patch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr("gangline_worker.agent.images.layers._sync", full)


def said(hub: OciRegistry, node: ImageNode) -> PrepareFailed:
    with pytest.raises(ImageProblem) as failed:
        node.get(f"{hub.host}/team/one:a")
    user_fault = failed.value.user_fault
    return PrepareFailed(GangKey("job", 1), user_fault=user_fault, message=str(failed.value))


def shown(failed: PrepareFailed, image: str) -> str:
    """The text of `gangline show job`, which may not restart."""
    cluster = Cluster()
    model, faults, agent = ReadModel(), fault_run(), Node()
    joined = NodeJoined(node=NODE.model_copy(update={"runs_images": True}))
    faults.feed(joined)
    cluster.give(joined)
    allocated = only(cluster.submit("job", 2, image=image, restart={"max": 0}), GangAllocated)
    faults.feed(allocated)
    verdicts = []
    agent.do(allocated)
    for exited in published(agent.do(failed), WorkerExited):
        verdicts += every([*faults.feed(exited), *faults.tick(5)], GangFailed)
        cluster.give(exited)
    cluster.give(verdicts[0])
    for decision, at in cluster.log:
        model.apply(decision.event, at)
    model.apply(verdicts[0], cluster.now)
    found = model.view().details("job")
    assert found is not None
    job = present.job(found, cluster.now, gang_heartbeats.GangHeartbeats())
    return description(job, cluster.now + timedelta(seconds=1))


def unwrapped(text: str) -> str:
    """Without the ends of lines, which may lie within a digest."""
    return "".join(text.split())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_missing, "image not found: {image}: {host} answered 404"),
        (
            _denied,
            "image access denied: {image}: {host} answered 401; there are no credentials for it on",
        ),
        (_changed, "image digest mismatch: {image}: sha256:{config} came with other bytes"),
        (_busy, "image registry away: {image}: {host} answered 429; tried 6 times"),
        (
            _cut,
            "image registry away: {image}: {host} or where it leads ended the connection in the",
        ),
        (
            _gone,
            "image registry away: {image}: {host} or where it leads takes no connections; tried 6",
        ),
        (_other_processor, "image platform mismatch: {image}@"),
        (_full, "image disk full: {image}@"),
    ],
)
def test_the_problem_is_read_by_its_name(
    hub: OciRegistry, node: ImageNode, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, says: str
) -> None:
    digest = hub.push("a", [BIG])
    config = json.loads(hub.manifests[digest][1])["config"]["digest"].removeprefix("sha256:")
    spoil(hub, node, monkeypatch)
    image = f"{hub.host}/team/one:a"
    text = shown(said(hub, node), image)
    assert unwrapped("state failed (") in unwrapped(text)
    wanted = says.format(image=image, host=hub.host, config=config)
    assert unwrapped(wanted) in unwrapped(text)
