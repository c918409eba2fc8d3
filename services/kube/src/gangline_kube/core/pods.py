"""Pods of jobs: one on each node of a gang, where the node's agent then starts the ranks.

A round compares the gangs that have GPUs with the pods that are there, and returns steps:

1. A pod for each node of a gang is created with a scheduling gate and with affinity to its node.
2. Once all of them are there, their gates are lifted, and kube-scheduler binds them.
3. If one is not bound in time, all of the gang's pods are deleted. Its agents fail the attempt, and
   the scheduler places the gang again.
4. The next attempt uses the pods that live on its nodes. Between attempts they stay for a while,
   unless another gang has GPUs of their node. When the job has ended, they are deleted.

`spec.nodeName` is never set: it ignores cordons, other pods' GPUs and volumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gangline_kube.core.nodes import OURS
from gangline_kube.core.resource import GROUP, Object, annotation, part_of
from gangline_schemas.job import JobSpec
from gangline_schemas.job_pods import POD_SOCKET, pod_folder, team_user

JOB, TEAM = f"{GROUP}/job", f"{GROUP}/team"
"""Labels of a job's pods; the label OURS has the value `job`."""
NODE, RANKS, LIFTED = "node", "ranks", "lifted"
"""Annotations: the node's id, how many ranks it has there, and when the gate was lifted (Unix)."""
GATE = f"{GROUP}/gang"
_OVER = frozenset({"Succeeded", "Failed"})
_HOST = "/gangline/pod_host.py"
_LEASE_S, _GRACE_S = 60, 120
_RESTRICTED: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, slots=True)
class Share:
    """The ranks of a gang on one node."""

    node_id: str
    ranks: int


@dataclass(frozen=True, slots=True)
class Gang:
    """A job that has not ended. `shares`: empty between attempts, since `idle_s` seconds."""

    job_id: str
    attempt: int
    team: str
    spec: JobSpec | None
    shares: tuple[Share, ...] = ()
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PodRules:
    """How pods are made. `agent_image` has the first process; `image` is of jobs without one.

    `data`: the data folder of agents; `uids`: of theirs for teams.
    """

    namespace: str
    image: str
    agent_image: str
    data: str
    uids: range
    gpu_resource: str = "nvidia.com/gpu"
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    bind_s: float = 5.0
    keep_s: float = 30.0


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create it, unless it is there."""

    item: Object


@dataclass(frozen=True, slots=True)
class LiftGate:
    """Let kube-scheduler bind the pod."""

    name: str
    change: Object


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete just this pod."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No pods for this attempt any more: some were not bound in time."""

    job_id: str
    attempt: int
    pods: tuple[str, ...]


Step = CreatePod | LiftGate | DeletePod | GiveUp


@dataclass
class _Job:
    """The pods of a job: those that live, and whether some are just ending."""

    live: dict[str, Object] = field(default_factory=dict)
    gone: list[Object] = field(default_factory=list)
    ending: list[Object] = field(default_factory=list)


def job_pod_part(pod: Object) -> Object:
    """The fields of a pod that `plan_pods` reads."""
    return part_of(
        pod,
        metadata=("name", "namespace", "uid", "labels", "annotations", "deletionTimestamp"),
        spec=("nodeName", "schedulingGates"),
        status=("phase",),
    )


def plan_pods(
    gangs: Iterable[Gang],
    pods: Iterable[Object],
    names: Mapping[str, str],
    given_up: frozenset[tuple[str, int]],
    rules: PodRules,
    now_s: float,
) -> list[Step]:
    """The steps of a round. `names`: of nodes of Kubernetes by their ids; `now_s`: Unix time.

    Pods of jobs that are not in `gangs` are deleted.
    """
    known = {gang.job_id: gang for gang in gangs}
    jobs = _by_job(pods)
    taken = {share.node_id: gang.job_id for gang in known.values() for share in gang.shares}
    steps: list[Step] = []
    for job_id, job in jobs.items():
        steps += [_delete(pod, "it has ended") for pod in job.gone]
        gang = known.get(job_id)
        for node_id, pod in list(job.live.items()):
            reason = _unwanted(gang, node_id, pod, taken, rules)
            if reason:
                steps.append(_delete(pod, reason))
                job.ending.append(job.live.pop(node_id))
    ending = {annotation(pod, NODE) for job in jobs.values() for pod in (*job.ending, *job.gone)}
    for gang in known.values():
        job = jobs.get(gang.job_id, _Job())
        if (gang.job_id, gang.attempt) in given_up:
            steps += [_delete(pod, "the attempt was given up") for pod in job.live.values()]
        else:
            steps += _for_gang(gang, job, names, rules, now_s, ending)
    return steps


def _by_job(pods: Iterable[Object]) -> dict[str, _Job]:
    jobs: dict[str, _Job] = {}
    for pod in pods:
        job_id = (pod["metadata"].get("labels") or {}).get(JOB)
        node_id = annotation(pod, NODE)
        if job_id is None or node_id is None:
            continue
        job = jobs.setdefault(job_id, _Job())
        if pod["metadata"].get("deletionTimestamp"):
            job.ending.append(pod)
        elif (pod.get("status") or {}).get("phase") in _OVER:
            job.gone.append(pod)
        else:
            job.live[node_id] = pod
    return jobs


def _unwanted(
    gang: Gang | None, node_id: str, pod: Object, taken: Mapping[str, str], rules: PodRules
) -> str:
    """Why a pod must go; "" if it stays."""
    if gang is None:
        return "its job has ended"
    if not gang.shares:
        if taken.get(node_id, gang.job_id) != gang.job_id:
            return "another gang has its node"
        return "its job has no GPUs" if gang.idle_s > rules.keep_s else ""
    ranks = {share.node_id: share.ranks for share in gang.shares}
    if node_id not in ranks:
        return "its gang has moved"
    return "" if annotation(pod, RANKS) == str(ranks[node_id]) else "its gang has another size"


def _for_gang(
    gang: Gang,
    job: _Job,
    names: Mapping[str, str],
    rules: PodRules,
    now_s: float,
    ending: set[str | None],
) -> Iterator[Step]:
    """Create what is missing; lift the gates once nothing is; give up what is not bound."""
    shares = [share for share in gang.shares if share.node_id in names]
    missing = [share for share in shares if share.node_id not in job.live]
    for share in missing:
        yield CreatePod(job_pod(gang, share, names[share.node_id], rules))
    unbound = {
        pod["metadata"]["name"]: annotation(pod, LIFTED)
        for pod in job.live.values()
        if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
    }
    late = tuple(name for name, at in unbound.items() if at and now_s - float(at) > rules.bind_s)
    if late:
        yield GiveUp(gang.job_id, gang.attempt, late)
        for pod in job.live.values():
            yield _delete(pod, f"not bound within {rules.bind_s:g} s: {', '.join(late)[:200]}")
    elif shares and not missing and not any(share.node_id in ending for share in shares):
        for pod in job.live.values():
            if pod["spec"].get("schedulingGates"):
                note = {f"{GROUP}/{LIFTED}": f"{now_s:.3f}"}
                change = {"metadata": {"annotations": note}, "spec": {"schedulingGates": None}}
                yield LiftGate(pod["metadata"]["name"], change)


def _delete(pod: Object, reason: str) -> DeletePod:
    return DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], reason)


def job_pod(gang: Gang, share: Share, node: str, rules: PodRules) -> Object:
    """The pod of a gang's ranks on one node, gated, for the node of this name."""
    if gang.spec is None:
        raise ValueError("a gang with GPUs has a spec")
    digest = hashlib.sha256(share.node_id.encode()).hexdigest()[:8]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{gang.job_id}-{digest}",
            "namespace": rules.namespace,
            "labels": {OURS: "job", JOB: gang.job_id, TEAM: gang.team},
            "annotations": {
                f"{GROUP}/{NODE}": share.node_id,
                f"{GROUP}/{RANKS}": str(share.ranks),
            },
        },
        "spec": _placement(node, rules)
        | _rights(team_user(gang.team, rules.uids[1:]))
        | _processes(gang, gang.spec, share, rules),
    }


def _placement(node: str, rules: PodRules) -> Object:
    """Where and when the pod is bound, and how it ends."""
    return {
        "schedulingGates": [{"name": GATE}],
        "affinity": _only_on(node),
        "tolerations": [dict(each) for each in rules.tolerations],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
    }


def _rights(user: int) -> Object:
    """The network of the node, the team's user, and nothing else."""
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _processes(gang: Gang, spec: JobSpec, share: Share, rules: PodRules) -> Object:
    """The container that copies the first process, the one that runs it, and their volumes."""
    mounts = _shared(gang, rules)
    shared = [{"name": name, "mountPath": path} for name, path in mounts.items()]
    socket = f"{mounts['job']}/{POD_SOCKET}"
    own = {"name": "gangline", "mountPath": _HOST.rpartition("/")[0]}
    shm = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108
    install = {
        "name": "install",
        "image": rules.agent_image,
        "command": ["python", "-m", "gangline_worker.pod_host", "install", _HOST, socket],
        "securityContext": _RESTRICTED,
        "volumeMounts": [own, shared[0]],
    }
    requests, limits = _resources(spec, share, rules)
    ranks = {
        "name": "ranks",
        "image": spec.image or rules.image,
        "command": ["python3", "-S", _HOST, "run", socket, str(_LEASE_S)],
        "securityContext": _RESTRICTED,
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": [{**own, "readOnly": True}, shm, *shared],
    }
    folders = [
        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        for name, path in mounts.items()
    ]
    return {
        "imagePullSecrets": [{"name": name} for name in rules.pull_secrets],
        "initContainers": [install],
        "containers": [ranks],
        "volumes": [
            {"name": "gangline", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *folders,
        ],
    }


def _shared(gang: Gang, rules: PodRules) -> dict[str, str]:
    """The folders of the node that the pod has under the same paths: the agent's of this job."""
    data = rules.data
    found = {
        "job": f"{data}/sockets/{pod_folder(gang.job_id)}",
        "checkpoints": f"{data}/checkpoints/{gang.job_id}",
        "data-cache": f"{data}/data-cache/{gang.team}",
    }
    if gang.spec is not None and gang.spec.resume_from is not None:
        found["resumed"] = f"{data}/checkpoints/{gang.spec.resume_from}"
    return found


def _resources(spec: JobSpec, share: Share, rules: PodRules) -> tuple[Object, Object]:
    """The requests and the limits of the pod."""
    need = spec.resources
    if need.gpus == 0:
        cpus, memory_gb = need.cpus or 0.0, need.memory_gb or 0.0
    else:
        cpus = need.cpus_per_gpu * share.ranks
        memory_gb = need.memory_per_gpu_gb * share.ranks
    memory = f"{int(memory_gb * 1024)}Mi"
    requests: Object = {"cpu": f"{int(cpus * 1000)}m", "memory": memory}
    limits: Object = {}
    if need.gpus:
        requests[rules.gpu_resource] = limits[rules.gpu_resource] = str(share.ranks)
    else:
        limits["memory"] = memory
    return requests, limits


def _only_on(node: str) -> Object:
    field_ = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
