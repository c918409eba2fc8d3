"""The devices of a gang that runs in an image, as its node's files of CDI give them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from gangline_schemas.events.workers import GpuInfo, NodeInfo
from gangline_storage.local import LocalStore
from gangline_worker.agent.bootstrap import gang_devices
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.config import AgentSettings
from gangline_worker.agent.decide.inputs import Prepared, PrepareFailed
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.host.inventory import Labels, take_inventory
from gangline_worker.agent.workspace.limits import sandbox_plan, visible_gpus
from gangline_worker.agent.workspace.prepare import GangWorkspace, KeptWorkspace, Preparer
from support.builders.cdi import GPUS, cdi_text, gpu_machine
from support.builders.images import AS_ROOT
from support.fakes.oci_registry import OciRegistry
from support.fixtures.node_checkpoints import ALLOCATION
from support.harnesses.image_node import SMALL, ImageNode

pytestmark = AS_ROOT
KEY = GangKey("job", 1)


@pytest.fixture
def info() -> NodeInfo:
    """A node with eight GPUs."""
    plain = take_inventory(Labels("n", "i", "127.0.0.1", "r", "b"), slots=1, ports=(20000,))
    gpus = tuple(GpuInfo(index=index, model="h100-80gb", memory_gb=80) for index in range(8))
    return plain.model_copy(update={"gpus": gpus})


def prepared(
    hub: OciRegistry, node: ImageNode, info: NodeInfo, cdi: Path, *gpus: int
) -> tuple[GangWorkspace | None, Prepared | PrepareFailed]:
    hub.push("a", [SMALL])
    data = node.folder
    (data / "sockets").mkdir(exist_ok=True)
    folders = Folders(data, data / "sockets", data / "secrets")
    store = LocalStore(data.parent / "store")
    settings = AgentSettings(store_url=f"file://{data}", cdi_folders=f"{cdi}")
    preparer = Preparer(
        folders,
        store,
        Checkpoints(data / "checkpoints", store, node_id="n", link=False),
        lambda _: None,
        images=node.images,
        devices=gang_devices(settings, info),
    )
    spec = ALLOCATION.spec.model_copy(update={"image": f"{hub.host}/team/one:a"})
    assignment = ALLOCATION.nodes[0].model_copy(update={"gpus": gpus})
    gang = ALLOCATION.model_copy(update={"spec": spec, "nodes": (assignment,)})
    return preparer.prepare(KEY, gang, assignment)


def test_its_sandbox_has_its_own_gpus_counted_from_0(
    hub: OciRegistry, node: ImageNode, info: NodeInfo, tmp_path: Path
) -> None:
    gpu_machine(tmp_path / "machine")
    (tmp_path / "nvidia.yaml").write_text(cdi_text(tmp_path / "machine"), encoding="utf-8")
    workspace, _ = prepared(hub, node, info, tmp_path, 1)
    assert workspace is not None
    plan = sandbox_plan(info, tmp_path, workspace)
    assert plan is not None
    assert plan.image.devices is not None
    assert (GPUS[1], "/dev/nvidia1") in plan.image.devices.nodes
    assert visible_gpus(info, workspace, in_pod=False) == "0"
    codec = TypeAdapter(KeptWorkspace)
    kept = codec.validate_json(codec.dump_json(workspace.kept(KEY)))
    assert kept.devices == workspace.devices, "an agent that restarts in place has lost them"


def test_without_a_file_it_has_all_of_the_node(
    hub: OciRegistry, node: ImageNode, info: NodeInfo, tmp_path: Path
) -> None:
    workspace, _ = prepared(hub, node, info, tmp_path / "none", 3, 5)
    assert workspace is not None
    assert workspace.devices is None
    assert visible_gpus(info, workspace, in_pod=False) == "3,5"


def test_a_file_that_does_not_name_its_gpu_is_named_and_no_fault_of_the_user(
    hub: OciRegistry, node: ImageNode, info: NodeInfo, tmp_path: Path
) -> None:
    gpu_machine(tmp_path / "machine")
    (tmp_path / "nvidia.yaml").write_text(cdi_text(tmp_path / "machine"), encoding="utf-8")
    _, failed = prepared(hub, node, info, tmp_path, 5)
    assert isinstance(failed, PrepareFailed)
    assert failed.message.startswith("image devices refused: ")
    assert "nvidia.com/gpu=5 is in no file: " in failed.message
    assert not failed.user_fault
