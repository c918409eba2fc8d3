"""The pods of gangs on shared clusters: one pod for each node of a gang, all of them or none.

A round compares the pods that are wanted with those that exist, and returns steps:

1. Create what is missing, gated: no pod of the gang can start. Its affinity names its node.
2. Once all exist, lift the gates. kube-scheduler then binds each pod, and counts it like any other.
3. If a pod is not bound after `BIND_S`, or a kubelet refused one, another owner took the GPUs:
   delete all pods of the gang, and refuse the allocation so that it is placed again.
4. Delete pods that no gang wants. A gang's next attempt on the same nodes keeps its pods.

`spec.nodeName` is never set: kubelets would take a pod on a full node and then fail it. Names are
derived from ids, and all that must be remembered is in the pods, so a process can end at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gangline_kube.core.nodes import OURS
from gangline_kube.core.resource import GROUP, Object, annotation

GATE = f"{GROUP}/gang"
LIFTED = "lifted"
"""The annotation with the time at which a pod's gate was lifted."""
BIND_S = 5.0
_JOB, _ROOM = f"{GROUP}/job", "room"


@dataclass(frozen=True, slots=True)
class Room:
    """The part of a gang on one node. `node`: its name in Kubernetes."""

    node: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang that has GPUs, and the pods that it wants."""

    job_id: str
    attempt: int
    team: str
    image: str
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a gated pod. One of the same name is the same pod."""

    pod: Object


@dataclass(frozen=True, slots=True)
class Lift:
    """Lift the gate of a pod, if it is still as it was seen."""

    name: str
    change: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this pod, and no later one of the same name."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The gang cannot have these nodes. It must be placed again."""

    job_id: str
    attempt: int
    nodes: tuple[str, ...]
    reason: str


Step = Create | Lift | Delete | Refuse


def pod_name(job_id: str, node: str) -> str:
    """The name of a gang's pod on a node, the same for each attempt."""
    return f"{job_id}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def manifest(gang: Gang, room: Room, gpu_resource: str) -> Object:
    """A gated pod, within Kubernetes' restricted profile."""
    asked = {gpu_resource: room.gpus} if room.gpus else {}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [room.node]}]}]
    container = {
        "name": _ROOM,
        "image": gang.image,
        "resources": {"limits": asked},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 -- of the pod
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(gang.job_id, room.node),
            "labels": {OURS: _ROOM, _JOB: gang.job_id, f"{GROUP}/team": gang.team},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "schedulingGates": [{"name": GATE}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                }
            },
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


def plan(
    gangs: Iterable[Gang], pods: Iterable[Object], gpu_resource: str, now: datetime
) -> list[Step]:
    """The steps of a round, those of a gang in their order. `pods`: those with our label."""
    by_job: dict[str, dict[str, Object]] = {}
    for pod in pods:
        job_id = (pod["metadata"].get("labels") or {}).get(_JOB, "")
        by_job.setdefault(job_id, {})[pod["metadata"]["name"]] = pod
    steps: list[Step] = []
    for gang in gangs:
        steps += _steps(gang, by_job.pop(gang.job_id, {}), gpu_resource, now)
    for unwanted in by_job.values():
        steps += _deletions(unwanted.values())
    return steps


def _steps(
    gang: Gang, found: Mapping[str, Object], gpu_resource: str, now: datetime
) -> Iterator[Step]:
    wanted = {pod_name(gang.job_id, room.node): room for room in gang.rooms}
    yield from _deletions(pod for name, pod in found.items() if name not in wanted)
    own = {name: pod for name, pod in found.items() if name in wanted}
    going = {name for name, pod in own.items() if "deletionTimestamp" in pod["metadata"]}
    missing = [room for name, room in wanted.items() if name not in own]
    lost = {name: why for name, pod in own.items() if (why := _lost(pod, now)) is not None}
    if lost and not going:
        nodes = tuple(sorted(wanted[name].node for name in lost))
        yield Refuse(gang.job_id, gang.attempt, nodes, next(iter(lost.values())))
        yield from _deletions(own.values())
        return
    for room in missing:
        yield Create(manifest(gang, room, gpu_resource))
    if missing or going:
        return
    for pod in own.values():
        if _gated(pod):
            yield _lift(pod, now)


def _deletions(pods: Iterable[Object]) -> Iterator[Delete]:
    for pod in pods:
        if "deletionTimestamp" not in pod["metadata"]:
            yield Delete(pod["metadata"]["name"], pod["metadata"]["uid"])


def _gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def _lift(pod: Object, now: datetime) -> Lift:
    metadata = pod["metadata"]
    change: Object = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {f"{GROUP}/{LIFTED}": now.isoformat()},
        },
        "spec": {"schedulingGates": []},
    }
    return Lift(metadata["name"], change)


def _lost(pod: Object, now: datetime) -> str | None:
    """Why this pod will not run on its node; None: it does, or still may."""
    status = pod.get("status") or {}
    if status.get("phase") in {"Failed", "Succeeded"}:
        return f"{status.get('reason') or 'Failed'}: {status.get('message') or 'the pod ended'}"
    since = annotation(pod, LIFTED)
    if pod["spec"].get("nodeName") or since is None:
        return None
    if now - datetime.fromisoformat(since) < timedelta(seconds=BIND_S):
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("message"):
            return str(condition["message"])
    return f"not bound within {BIND_S:g} s"
