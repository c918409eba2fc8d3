"""A kubelet for tests: nodes with GPUs, and the life of pods that are bound to them.

`with Kubelet(plane.cluster(), {"n1": 8}, folder)` registers the nodes and says of each bound pod
that it runs. With `images`, the roots of images by name, its containers really run
(`kube.pod_process`), one after the other if they are init containers; that needs root.

As the real one, it refuses a pod for which the node has too few GPUs, and names a pod's GPUs in
NVIDIA_VISIBLE_DEVICES. It ends containers with SIGTERM and after the grace period with SIGKILL, and
removes a deleted pod once they have ended. Not known: probes, restarts, logs over the API server,
leases of nodes.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from gangline_kube.core.resource import NODES, PODS, Object
from gangline_kube.service.api import Cluster, Conflict, KubeError, NotFound
from kube.pod_process import ADDRESS, PodProcess, StartError
from support.clients.kube_objects import create, delete

GPU = "nvidia.com/gpu"
_AT_ONCE = 16


def node(name: str, gpus: int, labels: Mapping[str, str] | None = None) -> Object:
    """A node that is ready."""
    has = {"cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti"}
    if gpus:
        has[GPU] = str(gpus)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a test's"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
        },
    }


def foreign_pod(name: str, gpus: int, *, cpu: str = "", **spec: Any) -> Object:
    """A pod of others that asks for GPUs and ends at once when it is deleted."""
    limits = {GPU: str(gpus), **({"cpu": cpu} if cpu else {})}
    container = {"name": "main", "image": "other/image", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def gpus_of(pod: Object, resource: str = GPU) -> int:
    """The GPUs that a pod's containers ask for."""
    return sum(
        int(each.get("resources", {}).get("limits", {}).get(resource, 0))
        for each in pod["spec"]["containers"]
    )


@dataclass
class End:
    """Set when a pod is deleted; its containers then have `grace_s` seconds."""

    event: threading.Event = field(default_factory=threading.Event)
    grace_s: float = 30.0

    def set(self, grace_s: float) -> bool:
        """Whether it was not set before."""
        first, self.grace_s = not self.event.is_set(), grace_s
        self.event.set()
        return first


class Kubelet:
    """All pods of some nodes; `nodes`: the number of GPUs of each.

    `taken`: the GPUs by node that running pods have. `processes`: of pods that really run, by uid.
    """

    def __init__(
        self,
        api: Cluster,
        nodes: Mapping[str, int],
        folder: Path,
        *,
        images: Mapping[str, Path] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._api, self._nodes, self._folder = api, dict(nodes), folder
        self._images, self._labels = images, labels
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, list[int]]] = {}
        self._ends: dict[str, End] = {}
        self._ending = threading.Event()
        self.processes: dict[str, PodProcess] = {}

    def __enter__(self) -> Self:
        for name, gpus in self._nodes.items():
            with contextlib.suppress(Conflict):
                create(self._api, NODES, node(name, gpus, self._labels))
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kubelet")
        threading.Thread(target=self._follow, name="kubelet", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all containers, and remove the nodes and their pods."""
        self._ending.set()
        with self._lock:
            for each in self._ends.values():
                each.set(0)
        for pod in self._api.list(PODS).items:
            if pod["spec"].get("nodeName") in self._nodes:
                with contextlib.suppress(KubeError):
                    delete(self._api, PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        for name in self._nodes:
            with contextlib.suppress(KubeError):
                delete(self._api, NODES, name)
        self._pool.shutdown(wait=True)

    def taken(self) -> dict[str, int]:
        """GPUs by node that pods have."""
        with self._lock:
            found = dict.fromkeys(self._nodes, 0)
            for name, gpus in self._held.values():
                found[name] += len(gpus)
            return found

    def _follow(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(KubeError):
                listed = self._api.list(PODS)
                for pod in listed.items:
                    self._see(pod)
                for change in self._api.watch(PODS, listed.version):
                    if self._ending.is_set():
                        return
                    if change.kind in {"ADDED", "MODIFIED"}:
                        self._see(change.item)
                    elif change.kind == "DELETED":
                        self._forget(change.item["metadata"]["uid"])
            self._ending.wait(0.2)

    def _see(self, pod: Object) -> None:
        metadata, on = pod["metadata"], pod["spec"].get("nodeName")
        if on not in self._nodes or self._ending.is_set():
            return
        uid, deleted = metadata["uid"], "deletionTimestamp" in metadata
        with self._lock:
            known = uid in self._ends
            end = self._ends.setdefault(uid, End())
        if deleted:
            first = end.set(metadata.get("deletionGracePeriodSeconds", 0))
            if first and not (known and self._images is not None):
                self._pool.submit(self._remove, pod)
        elif not known:
            refusal = self._admit(uid, on, gpus_of(pod))
            if refusal:
                self._pool.submit(self._say, pod, refusal)
            elif self._images is None:
                self._pool.submit(self._say, pod, _running(pod))
            else:
                threading.Thread(target=self._live, args=(pod, end), daemon=True).start()

    def _admit(self, uid: str, on: str, gpus: int) -> Object:
        """Give the pod its GPUs; a status if there are too few."""
        with self._lock:
            taken = {gpu for name, held in self._held.values() if name == on for gpu in held}
            free = [gpu for gpu in range(self._nodes[on]) if gpu not in taken]
            if len(free) < gpus:
                return {
                    "phase": "Failed",
                    "reason": "UnexpectedAdmissionError",
                    "message": f"requested {gpus} GPUs, {len(free)} are available",
                }
            self._held[uid] = on, free[:gpus]
            return {}

    def _live(self, pod: Object, end: End) -> None:
        """Run the containers of a pod until they or the pod end."""
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        on, gpus = self._held[uid]
        given = {"NVIDIA_VISIBLE_DEVICES": ",".join(f"GPU-{on}-{gpu}" for gpu in gpus) or "void"}
        assert self._images is not None
        own = PodProcess(self._api, pod, self._images, self._folder / uid, given)
        self.processes[uid] = own
        codes: dict[str, int] = {}
        try:
            for each in spec.get("initContainers", []):
                code = _until(own.start(each), end)
                if code != 0:
                    raise StartError("Error", f"init container {each['name']}: exit code {code}")
            started = {each["name"]: own.start(each) for each in spec["containers"]}
            self._say(pod, _running(pod))
            codes = {name: _until(process, end) for name, process in started.items()}
            status = _ended(pod, codes)
        except StartError as error:
            status = _waiting(pod, error)
        if not end.event.is_set():
            self._say(pod, status)
            if codes:
                self._free(uid)
            end.event.wait()
        self._remove(pod)

    def _remove(self, pod: Object) -> None:
        metadata = pod["metadata"]
        self._free(metadata["uid"])
        if not self._ending.is_set():
            with contextlib.suppress(NotFound, Conflict):
                delete(
                    self._api, PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"]
                )

    def _forget(self, uid: str) -> None:
        self._free(uid)
        with self._lock:
            end = self._ends.pop(uid, None)
        if end is not None:
            end.set(0)

    def _free(self, uid: str) -> None:
        with self._lock:
            self._held.pop(uid, None)

    def _say(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        change = {"metadata": {"uid": metadata["uid"]}, "status": status}
        with contextlib.suppress(KubeError):  # it is gone, or another pod has its name
            self._api.patch(PODS, metadata["name"], change, metadata["namespace"], part="status")


def _until(process: subprocess.Popen[bytes], end: End) -> int:
    """The exit code of a process. If the pod ends first, the process gets its grace period."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.05)
        if end.event.is_set():
            break
    _signal(process)
    try:
        return process.wait(end.grace_s)
    except subprocess.TimeoutExpired:
        process.kill()  # unshare ends with it, and by --kill-child its child
        return process.wait()


def _signal(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM for the container's first process, which is unshare's child."""
    own = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()
    subprocess.run(["kill", "-TERM", *own], check=False)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _statuses(pod: Object, states: Mapping[str, Object], *, ready: bool = False) -> list[Object]:
    found: list[dict[str, Any]] = []
    for each in pod["spec"]["containers"]:
        own = {"name": each["name"], "image": each["image"], "imageID": "", "restartCount": 0}
        found.append(own | {"ready": ready, "state": states[each["name"]]})
    return found


def _running(pod: Object) -> Object:
    now = _now()
    states = {each["name"]: {"running": {"startedAt": now}} for each in pod["spec"]["containers"]}
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "hostIP": ADDRESS,
        "conditions": _conditions(pod, "True", now),
        "containerStatuses": _statuses(pod, states, ready=True),
    }


def _conditions(pod: Object, ready: str, now: str) -> list[Object]:
    """The pod's conditions; kube-scheduler's stay."""
    own = ("Ready", "ContainersReady")
    kept = [e for e in pod.get("status", {}).get("conditions", []) if e["type"] not in own]
    return kept + [{"type": name, "status": ready, "lastTransitionTime": now} for name in own]


def _ended(pod: Object, codes: Mapping[str, int]) -> Object:
    states = {
        name: {
            "terminated": {
                "exitCode": code if code >= 0 else 128 - code,
                "reason": "Completed" if code == 0 else "Error",
                "finishedAt": _now(),
            }
        }
        for name, code in codes.items()
    }
    return {
        "phase": "Failed" if any(codes.values()) else "Succeeded",
        "conditions": _conditions(pod, "False", _now()),
        "containerStatuses": _statuses(pod, states),
    }


def _waiting(pod: Object, error: StartError) -> Object:
    waiting = {"waiting": {"reason": error.reason, "message": str(error)}}
    states = {each["name"]: waiting for each in pod["spec"]["containers"]}
    return {"phase": "Pending", "containerStatuses": _statuses(pod, states)}
