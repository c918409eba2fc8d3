"""Nodes of the API server in memory: a scheduler that counts GPUs, and kubelets that run pods.

A pod is bound where its node affinity names a node that is schedulable and has its GPUs free. Its
init container and then its first container run as processes of this machine, in which /gangline is
a folder of the pod's own and all other folders are the machine's.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from support.fakes.kube_api import KubeServer
from support.fakes.kube_objects import Json

GPU = "nvidia.com/gpu"
_ROUND_S = 0.02


class KubeNodes:
    """`gpus`: of each node by name. Pods without an init container just run."""

    def __init__(self, server: KubeServer, gpus: Mapping[str, int]) -> None:
        self._server, self._gpus = server, dict(gpus)
        self._folder = Path(tempfile.mkdtemp(prefix="kubelet-"))
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kube-nodes", daemon=True)
        self.most: dict[str, int] = dict.fromkeys(gpus, 0)
        """The most GPUs that pods ever had on each node."""

    def __enter__(self) -> Self:
        def add() -> None:
            for name in self._gpus:
                self._server.add("nodes", {"metadata": {"name": name}, "spec": {}})

        self._server.do(add)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        lives = self._thread.is_alive()
        self._ended.set()
        self._thread.join(10)
        for process in [each for own in self._processes.values() for each in own]:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        assert lives, "the nodes have failed: see the exception of their thread"

    def _run(self) -> None:
        while not self._ended.wait(_ROUND_S):
            self._server.do(self._round)

    def _round(self) -> None:
        """In the server's thread."""
        kind = self._server.store.kind("", "pods")
        used = dict.fromkeys(self._gpus, 0)
        for pod in list(kind.objects.values()):
            node = pod["spec"].get("nodeName")
            if node in used and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                used[node] += _gpus(pod)
                self.most[node] = max(self.most[node], used[node])
        for pod in list(kind.objects.values()):
            if pod["spec"].get("nodeName"):
                self._keep(pod)
            elif not pod["spec"].get("schedulingGates") and not _deleted(pod):
                self._bind(pod, used)

    def _bind(self, pod: Json, used: dict[str, int]) -> None:
        kind = self._server.store.kind("", "nodes")
        for node in _wanted(pod) or self._gpus:
            found = self._server.store.get(kind, "", node)
            free = self._gpus[node] - used[node]
            if not found["spec"].get("unschedulable") and _gpus(pod) <= free:
                used[node] += _gpus(pod)
                self._change(pod, lambda new, node=node: new["spec"].update(nodeName=node))
                return

    def _keep(self, pod: Json) -> None:
        """Start a bound pod, note its end, and end it when it was deleted."""
        uid, store = pod["metadata"]["uid"], self._server.store
        own = self._processes.get(uid)
        phase = pod["status"]["phase"]
        if own is None and phase == "Pending" and not _deleted(pod):
            starts = "initContainers" in pod["spec"]
            self._processes[uid] = [self._start(pod, "initContainers")] if starts else []
            if not starts:
                self._change(pod, lambda new: new.update(status={"phase": "Running"}), "status")
        elif own and phase == "Pending" and own[-1].poll() == 0:
            own.append(self._start(pod, "containers"))
            self._change(pod, lambda new: new.update(status={"phase": "Running"}), "status")
        elif own and own[-1].poll() is not None and phase == "Running":
            ended = "Failed" if own[-1].returncode else "Succeeded"
            self._change(pod, lambda new: new.update(status={"phase": ended}), "status")
        elif _deleted(pod):
            if own and own[-1].poll() is None:
                own[-1].terminate()
            else:
                store.delete(store.kind("", "pods"), pod, {"gracePeriodSeconds": 0})

    def _start(self, pod: Json, containers: str) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"][containers]
        folder = self._folder / pod["metadata"]["uid"]
        folder.mkdir(exist_ok=True)
        for volume in pod["spec"]["volumes"]:
            if "hostPath" in volume:
                Path(volume["hostPath"]["path"]).mkdir(exist_ok=True)
        command = [each.replace("/gangline/", f"{folder}/") for each in container["command"]]
        if command[0] in {"python", "python3"}:
            command[0] = sys.executable
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def _change(self, pod: Json, edit: Any, part: str = "") -> None:
        kind = self._server.store.kind("", "pods")
        new = copy.deepcopy(pod)
        edit(new)
        self._server.store.update(kind, pod, new, part, strict=True)


def _deleted(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _wanted(pod: Json) -> list[str]:
    """The nodes that it has affinity to; []: all."""
    if "affinity" not in pod["spec"]:
        return []
    required = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return list(term["matchFields"][0]["values"])


def _gpus(pod: Json) -> int:
    limits = [each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"]]
    return sum(int(each.get(GPU, 0)) for each in limits)
