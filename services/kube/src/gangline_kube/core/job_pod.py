"""The pod of a gang's ranks on one node, as Kubernetes is asked to make it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline_kube.core.claims import Claim, claim_volumes
from gangline_kube.core.nodes import OURS
from gangline_kube.core.pod_resources import Place, pod_resources
from gangline_kube.core.resource import GROUP, Object
from gangline_schemas.job import JobSpec
from gangline_schemas.job_pods import POD_SOCKET, pod_domain, pod_folder, pod_host, team_user

JOB, TEAM = f"{GROUP}/job", f"{GROUP}/team"
"""Labels of a job's pods; the label OURS has the value `job`."""
NODE, RANKS, LIFTED = "node", "ranks", "lifted"
"""Annotations: the node's id, how many ranks it has there, and when the gate was lifted (Unix)."""
GATE = f"{GROUP}/gang"
_HOST = "/gangline/pod_host.py"
_LEASE_S, _GRACE_S = 60, 120
_OF_INSTALL: Object = {
    "requests": {"cpu": "10m", "memory": "64Mi"},
    "limits": {"cpu": "1", "memory": "256Mi"},
}
_RESTRICTED: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, slots=True)
class Share:
    """The ranks of a gang on one node."""

    node_id: str
    ranks: int


@dataclass(frozen=True, slots=True)
class Gang:
    """A job that has not ended. `shares`: empty between attempts, since `idle_s` seconds.

    `priority`: 0 (highest) to 100, as it was when the attempt got its GPUs.
    """

    job_id: str
    attempt: int
    team: str
    spec: JobSpec | None
    shares: tuple[Share, ...] = ()
    idle_s: float = 0.0
    priority: int = 50


@dataclass(frozen=True, slots=True)
class PodRules:
    """How pods are made. `agent_image` has the first process; `image` is of jobs without one.

    `data`: the data folder of agents; `uids`: of theirs for teams. `priority_classes`: by the
    lowest priority, which is the highest number, of the jobs that have them. `team_accounts`: of
    teams whose pods do not run as `account`, which is the namespace's default where it is None.
    `team_claims`: the volumes that pods of a team have. `nodes`: labels of the nodes whose ranks
    run in pods: those of one entry; empty: all nodes. `own_network`: pods do not have the network
    of their node. `peers`: what such pods reach beside their job's, as in a NetworkPolicy; empty:
    all.
    """

    namespace: str
    image: str
    agent_image: str
    data: str
    uids: range
    gpu_resource: str = "nvidia.com/gpu"
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_classes: Mapping[int, str] = field(default_factory=dict)
    account: str | None = None
    team_accounts: Mapping[str, str] = field(default_factory=dict)
    team_claims: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    nodes: tuple[Mapping[str, str], ...] = ()
    own_network: bool = False
    peers: tuple[Mapping[str, Any], ...] = ()
    bind_s: float = 5.0
    keep_s: float = 30.0

    def takes_pods(self, labels: Mapping[str, str]) -> bool:
        """Whether ranks run in pods on a node with these labels."""
        return not self.nodes or any(each.items() <= labels.items() for each in self.nodes)

    def priority_class(self, priority: int) -> str | None:
        """The class of a job's pods; None: the cluster's default."""
        fitting = [number for number in self.priority_classes if priority <= number]
        return self.priority_classes[min(fitting)] if fitting else None


def job_pod(gang: Gang, share: Share, place: Place, rules: PodRules) -> Object:
    """The pod of a gang's ranks on one node, gated, for this node."""
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
        "spec": _placement(gang, place.name, rules)
        | _network(gang.job_id, share.node_id, rules)
        | _rights(gang.team, rules)
        | _processes(gang, gang.spec, share, place, rules),
    }


def _placement(gang: Gang, node: str, rules: PodRules) -> Object:
    """Where and when the pod is bound, whether others take its place, and how it ends."""
    priority_class = rules.priority_class(gang.priority)
    return {
        **({} if priority_class is None else {"priorityClassName": priority_class}),
        "schedulingGates": [{"name": GATE}],
        "affinity": _only_on(node),
        "tolerations": [dict(each) for each in rules.tolerations],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
    }


def _network(job_id: str, node_id: str, rules: PodRules) -> Object:
    """The network of the node; or one of its own, with a name by which the gang's ranks meet."""
    if not rules.own_network:
        return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {"hostname": pod_host(node_id), "subdomain": pod_domain(job_id)}


def _rights(team: str, rules: PodRules) -> Object:
    """The team's user and account, and nothing else."""
    user = team_user(team, rules.uids[1:])
    account = rules.team_accounts.get(team, rules.account)
    writes = any(not claim.read_only for claim in rules.team_claims.get(team, ()))
    owned = {"fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return {
        **({} if account is None else {"serviceAccountName": account}),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
            **(owned if writes else {}),
        },
    }


def _processes(gang: Gang, spec: JobSpec, share: Share, place: Place, rules: PodRules) -> Object:
    """The container that copies the first process, the one that runs it, and their volumes."""
    mounts = _shared(gang, rules)
    shared = [{"name": name, "mountPath": path} for name, path in mounts.items()]
    socket = f"{mounts['job']}/{POD_SOCKET}"
    own = {"name": "gangline", "mountPath": _HOST.rpartition("/")[0]}
    shm = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108
    room = pod_resources(spec.resources, share.ranks, place)
    gpus = {rules.gpu_resource: str(share.ranks)} if spec.resources.gpus else {}
    install = {
        "name": "install",
        "image": rules.agent_image,
        "command": ["python", "-m", "gangline_worker.pod_host", "install", _HOST, socket],
        "securityContext": _RESTRICTED,
        "resources": _OF_INSTALL,
        "volumeMounts": [own, shared[0]],
    }
    claims, claim_mounts = claim_volumes(rules.team_claims.get(gang.team, ()))
    ranks = {
        "name": "ranks",
        "image": spec.image or rules.image,
        "command": ["python3", "-S", _HOST, "run", socket, str(_LEASE_S)],
        "securityContext": _RESTRICTED,
        "resources": {"requests": room.requests | gpus, "limits": room.limits | gpus},
        "volumeMounts": [{**own, "readOnly": True}, shm, *shared, *claim_mounts],
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
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": room.shared_memory}},
            *folders,
            *claims,
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


def _only_on(node: str) -> Object:
    field_ = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
