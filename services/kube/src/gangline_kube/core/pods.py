"""Pods of jobs: one on each node of a gang, where the node's agent then starts the ranks.

A round compares the gangs that have GPUs with the pods that are there, and returns steps:

1. A pod for each node of a gang is created with a scheduling gate and with affinity to its node.
2. Once all of them are there, and their network (core/gang_network.py), their gates are lifted, and
   kube-scheduler binds them. Gates that others added, such as Kueue, stay theirs to lift.
3. If one is not bound in time, all of the gang's pods are deleted. Its agents fail the attempt, and
   the scheduler places the gang again.
4. The next attempt uses the pods that live on its nodes. Between attempts they stay for a while,
   unless another gang has GPUs of their node. When the job has ended, they are deleted.

`spec.nodeName` is never set: it ignores cordons, other pods' GPUs and volumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gangline_kube.core.job_pod import GATE, JOB, LIFTED, NODE, RANKS, Gang, PodRules, job_pod
from gangline_kube.core.pod_resources import Place
from gangline_kube.core.resource import GROUP, Object, annotation, part_of

_OVER = frozenset({"Succeeded", "Failed"})


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
    """No pods for this attempt any more: some were not bound in time. `why`: of one of them."""

    job_id: str
    attempt: int
    pods: tuple[str, ...]
    why: str


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
        status=("phase", "conditions"),
    )


def plan_pods(
    gangs: Iterable[Gang],
    pods: Iterable[Object],
    places: Mapping[str, Place],
    given_up: frozenset[tuple[str, int]],
    rules: PodRules,
    now_s: float,
    networks: frozenset[str] = frozenset(),
) -> list[Step]:
    """The steps of a round. `places`: nodes of Kubernetes by their ids; `now_s`: Unix time.

    `networks`: jobs whose network is there, by `plan_networks`. Without it no gate of a pod with a
    network of its own is lifted. Pods of jobs that are not in `gangs` are deleted.
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
            gated = rules.own_network and gang.job_id not in networks
            steps += _for_gang(gang, job, places, rules, now_s, ending, gated=gated)
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
    places: Mapping[str, Place],
    rules: PodRules,
    now_s: float,
    ending: set[str | None],
    *,
    gated: bool,
) -> Iterator[Step]:
    """Create what is missing; lift the gates once nothing is; give up what is not bound."""
    shares = [share for share in gang.shares if share.node_id in places]
    missing = [share for share in shares if share.node_id not in job.live]
    for share in missing:
        yield CreatePod(job_pod(gang, share, places[share.node_id], rules))
    late = [pod for pod in job.live.values() if _late(pod, rules, now_s)]
    if late:
        names = tuple(pod["metadata"]["name"] for pod in late)
        yield GiveUp(gang.job_id, gang.attempt, names, _why_unbound(late[0]))
        for pod in job.live.values():
            yield _delete(pod, f"not bound within {rules.bind_s:g} s: {', '.join(names)[:200]}")
    elif gated:
        return
    elif shares and not missing and not any(share.node_id in ending for share in shares):
        for pod in job.live.values():
            gates = _gates(pod)
            if GATE in gates:
                note = {f"{GROUP}/{LIFTED}": f"{now_s:.3f}"}
                left = [{"name": name} for name in gates if name != GATE]
                change = {"metadata": {"annotations": note}, "spec": {"schedulingGates": left}}
                yield LiftGate(pod["metadata"]["name"], change)


def _gates(pod: Object) -> list[str]:
    return [each["name"] for each in pod["spec"].get("schedulingGates") or ()]


def _late(pod: Object, rules: PodRules, now_s: float) -> bool:
    """Whether it has no node, long after our gate was lifted."""
    at = annotation(pod, LIFTED)
    if not at or pod["spec"].get("nodeName") or GATE in _gates(pod):
        return False
    return _age_s(at, now_s) > rules.bind_s


def _why_unbound(pod: Object) -> str:
    """The gates that others added to a pod, else the words of kube-scheduler."""
    gates = _gates(pod)
    if gates:
        return f"scheduling gates that others added: {', '.join(gates)}"
    conditions = (pod.get("status") or {}).get("conditions") or ()
    said = [each.get("message", "") for each in conditions if each["type"] == "PodScheduled"]
    return said[0] if said else "kube-scheduler has not looked at it"


def _age_s(at: str, now_s: float) -> float:
    """The seconds since a time of an annotation; infinite if people have changed it to none."""
    try:
        age_s = now_s - float(at)
    except ValueError:
        return math.inf
    return age_s if math.isfinite(age_s) else math.inf


def _delete(pod: Object, reason: str) -> DeletePod:
    return DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], reason)
