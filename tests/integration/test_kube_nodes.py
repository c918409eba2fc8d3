"""The process that follows nodes, and the settings that an agent gets from its node's labels."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gangline_kube.node_settings import NodeSettingsSettings, main
from gangline_service.private_copies import copy_changed
from gangline_worker.agent.config import AgentSettings
from support.fakes.job_gateway import JobGateway
from support.fakes.kube_api import KubeServer
from support.harnesses.kube_operator import OperatorProcess


def node(server: KubeServer) -> dict[str, Any]:
    return server.objects("nodes")[0]


def change(server: KubeServer, edit: Callable[[dict[str, Any]], None]) -> None:
    def now() -> None:
        kind = server.store.kind("", "nodes")
        item = server.store.get(kind, "", "n.1")
        new = copy.deepcopy(item)
        edit(new)
        server.store.update(kind, item, new, "", strict=True)

    server.do(now)


def cordon(*, on: bool) -> Callable[[dict[str, Any]], None]:
    return lambda item: item["spec"].update(unschedulable=on)


def test_cordons_drain_and_drains_cordon_over_broken_watches(tmp_path: Path) -> None:
    with KubeServer() as server, JobGateway() as gateway:
        server.do(lambda: server.add("nodes", {"metadata": {"name": "n.1"}, "spec": {}}))
        gateway.nodes = {"n-1": "ready"}
        with OperatorProcess(
            server.kubeconfig(tmp_path), gateway.url, tmp_path, "gangline_kube"
        ) as process:
            change(server, cordon(on=True))
            process.wait("drained", lambda: gateway.nodes["n-1"] == "draining")
            assert gateway.drains == [
                {"drain": True, "move_jobs": True, "reason": "cordoned in Kubernetes"}
            ]
            server.break_watches()
            change(server, cordon(on=False))
            process.wait("ended", lambda: gateway.nodes["n-1"] == "ready")
            process.wait("noted", lambda: not node(server)["metadata"].get("annotations"))
            server.busy = 3
            server.break_watches()
            server.cut_history()
            gateway.nodes["n-1"] = "draining"
            process.wait("cordoned", lambda: bool(node(server)["spec"].get("unschedulable")))
            gateway.nodes["n-1"] = "ready"
            process.wait("free", lambda: not node(server)["spec"].get("unschedulable"))
            limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
            pod = {
                "metadata": {"name": "other"},
                "spec": {"nodeName": "n.1", "containers": [limits]},
            }
            server.do(lambda: server.add("pods", pod, "default"))
            process.wait("closed", lambda: gateway.nodes["n-1"] == "cordoned")
            assert gateway.drains[-1]["reason"] == "pods of others have 2 GPUs"


def test_an_agent_reads_the_settings_that_its_node_s_labels_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, target = tmp_path / "base.toml", tmp_path / "gangline.toml"
    base.write_text('store_url = "file:///store"\n[agent]\ncpus = 4\n[scheduler]\norder = "fair"\n')
    labels = {"topology.kubernetes.io/rack": "r7", "nvidia.com/gpu.product": "H100", "x": "y"}
    with KubeServer() as server:
        server.do(lambda: server.add("nodes", {"metadata": {"name": "n.1", "labels": labels}}))
        server.busy = 1
        main(
            NodeSettingsSettings(
                kubeconfig=server.kubeconfig(tmp_path),
                kube_node="n.1",
                kube_base=base,
                kube_target=target,
            )
        )
    assert "scheduler" not in tomllib.loads(target.read_text(encoding="utf-8"))
    monkeypatch.setenv("GANGLINE_CONFIG", str(target))
    agent = AgentSettings()
    assert (agent.node_id, agent.rack, agent.cpus) == ("n-1", "r7", 4)
    assert agent.node_labels == {"nvidia.com/gpu.product": "H100"}


def test_copies_of_secrets_are_their_owner_s_alone(tmp_path: Path) -> None:
    source, target = tmp_path / "mounted", tmp_path / "private"
    source.mkdir()
    target.mkdir()
    (source / "tokens.json").write_text("1")
    (source / "..data").mkdir()
    (source / ".hidden").write_text("x")
    assert copy_changed(source, target) == 1
    assert (target / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert copy_changed(source, target) == 0
    (source / "tokens.json").write_text("2")
    assert copy_changed(source, target) == 1
    assert (target / "tokens.json").read_text() == "2"
    (source / "tokens.json").unlink()
    assert copy_changed(source, target) == 1
    assert list(target.iterdir()) == []
