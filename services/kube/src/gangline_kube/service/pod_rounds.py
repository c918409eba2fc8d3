"""Rounds over the pods of jobs: the steps of core/pods.py, done at the API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import structlog
from kubernetes.utils.quantity import parse_quantity

from gangline_kube.core.gang_network import CreateBeside, DeleteBeside, plan_networks
from gangline_kube.core.job_pod import JOB, Gang, PodRules, Share
from gangline_kube.core.nodes import node_id
from gangline_kube.core.pod_resources import Place
from gangline_kube.core.pods import CreatePod, DeletePod, GiveUp, LiftGate, Step, plan_pods
from gangline_kube.core.resource import PODS, Object, Resource, part_of
from gangline_kube.service.api import Cluster, Conflict, KubeError, NotFound, Unavailable
from gangline_kube.service.gateway import Gateway
from gangline_schemas.api.jobs import Job, JobSummary

log = structlog.get_logger(__name__)
_THREADS = 24
_GIB = 1024**3
_NOTHING: Mapping[Resource, Iterable[Object]] = MappingProxyType({})
UNKNOWN_S = 600.0
"""So long pods stay of a job that the gateway does not know: it may have just started."""


@dataclass
class PodRounds:
    """Makes the pods of gangs, and deletes them. All methods from one thread."""

    api: Cluster
    gateway: Gateway
    rules: PodRules
    clock: Callable[[], float] = time.monotonic
    _jobs: dict[str, tuple[tuple[int, str], Gang]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _given_up: set[tuple[str, int]] = field(default_factory=set)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS))

    def round(
        self,
        nodes: Iterable[Object],
        pods: Iterable[Object],
        beside: Mapping[Resource, Iterable[Object]] = _NOTHING,
    ) -> int:
        """Compare once; how many steps were done. Raises GatewayError and KubeError.

        `beside`: Services and NetworkPolicies of the namespace, if pods have networks of their own.
        A step that is refused holds up no other; once the server is away, no further ones begin.
        """
        ours = [pod for pod in pods if JOB in (pod["metadata"].get("labels") or {})]
        places = {
            node_id(node["metadata"]["name"]): _place(node, self.rules.gpu_resource)
            for node in nodes
            if self.rules.takes_pods(node["metadata"].get("labels") or {})
        }
        with_pods = {pod["metadata"]["labels"][JOB] for pod in ours}
        gangs = self._gangs(with_pods)
        given_up = frozenset(self._given_up)
        network = plan_networks(gangs, with_pods, beside, self.rules)
        steps: list[Step | CreateBeside | DeleteBeside] = [
            *(network.steps if self.rules.own_network else ()),
            *plan_pods(gangs, ours, places, given_up, self.rules, time.time(), network.ready),
        ]
        refusals = [each for each in self._pool.map(self._do, steps) if each is not None]
        if refusals:
            raise refusals[0]
        return len(steps)

    def _gangs(self, with_pods: set[str]) -> list[Gang]:
        """The jobs that have not ended and have GPUs or pods."""
        now_s = self.clock()
        found: dict[str, Gang] = {}
        active = {summary.job_id: summary for summary in self.gateway.active_jobs()}
        for job_id in {*active, *with_pods}:
            gang = self._gang(job_id, active.get(job_id), now_s)
            if gang is not None and (gang.shares or job_id in with_pods):
                found[job_id] = gang
        for job_id in [one for one in self._jobs if one not in found]:
            del self._jobs[job_id]
        idle = {gang.job_id for gang in found.values() if not gang.shares}
        self._since = {one: at for one, at in self._since.items() if one in idle}
        self._given_up &= {(job_id, summary.attempt) for job_id, summary in active.items()}
        return list(found.values())

    def _gang(self, job_id: str, summary: JobSummary | None, now_s: float) -> Gang | None:
        """The job as the gateway knows it; None: it has ended. Jobs that wait are not asked for."""
        if summary is not None and summary.state == "pending":
            idle_s = self._idle_s(job_id, now_s)
            return Gang(job_id, summary.attempt, summary.team, None, (), idle_s)
        known = self._jobs.get(job_id)
        stands = None if summary is None else (summary.attempt, summary.state)
        if known is not None and known[0] == stands:
            return known[1]
        job = self.gateway.job(job_id)
        if job is None:  # perhaps it is a gateway that does not know it yet
            unknown_s = self._idle_s(job_id, now_s)
            return None if unknown_s > UNKNOWN_S else Gang(job_id, 0, "", None)
        if job.ended:
            return None
        gang = _of(job)
        if gang.shares:
            self._jobs[job_id] = (job.attempt, job.state), gang
            return gang
        return replace(gang, idle_s=self._idle_s(job_id, now_s))

    def _idle_s(self, job_id: str, now_s: float) -> float:
        """Seconds since the job was first seen without GPUs, or not known."""
        return now_s - self._since.setdefault(job_id, now_s)

    def _do(self, step: Step | CreateBeside | DeleteBeside) -> KubeError | None:
        """Why it was refused, if it was. Raises Unavailable."""
        namespace = self.rules.namespace
        try:
            match step:
                case CreatePod():
                    self.api.create(PODS, step.item, namespace)
                case CreateBeside():
                    self.api.create(step.of, step.item, namespace)
                case DeleteBeside():
                    self.api.delete(step.of, step.name, step.uid, namespace)
                case LiftGate():
                    self.api.patch(PODS, step.name, step.change, namespace)
                case DeletePod():
                    log.info("kube.pod_deleted", pod=step.name, reason=step.reason)
                    self.api.delete(PODS, step.name, step.uid, namespace)
                case GiveUp():
                    log.warning(
                        "kube.gang_not_bound",
                        job=step.job_id,
                        attempt=step.attempt,
                        pods=step.pods[:8],
                        why=step.why,
                    )
                    self._given_up.add((step.job_id, step.attempt))
        except (Conflict, NotFound):
            return None
        except Unavailable:
            raise
        except KubeError as refusal:
            return refusal
        return None


def place_part(node: Object) -> Object:
    """The fields of a node that rounds over pods read."""
    return part_of(node, metadata=("name", "labels"), status=("allocatable",))


def _place(node: Object, gpu_resource: str) -> Place:
    has = (node.get("status") or {}).get("allocatable") or {}
    cpus, memory, gpus = (
        float(parse_quantity(has.get(each, "0"))) for each in ("cpu", "memory", gpu_resource)
    )
    return Place(node["metadata"]["name"], cpus, memory / _GIB, int(gpus))


def _of(job: Job) -> Gang:
    shares = tuple(Share(node.node_id, len(node.gpus) or 1) for node in job.nodes)
    return Gang(
        job.job_id,
        job.attempt,
        job.team,
        job.spec,
        shares if job.spec else (),
        priority=job.priority,
    )
