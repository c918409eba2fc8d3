"""The network of a gang whose pods have one of their own: names for its pods, and who reaches them.

A headless Service gives each pod a name, by which ranks meet. A NetworkPolicy lets pods of the job
reach each other, and no other pod reach them. By default pods reach all other addresses, except
metadata services, which give out the rights of the machine.

Both are there before a gate of the job's pods is lifted, and they go after its last pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gangline_kube.core.job_pod import JOB, TEAM, Gang, PodRules
from gangline_kube.core.nodes import OURS
from gangline_kube.core.resource import NETWORK_POLICIES, SERVICES, Object, Resource, part_of
from gangline_schemas.job_pods import pod_domain
from gangline_schemas.metadata_services import ADDRESSES

KINDS = (SERVICES, NETWORK_POLICIES)


@dataclass(frozen=True, slots=True)
class CreateBeside:
    """Create it beside the pods of a job, unless it is there."""

    of: Resource
    item: Object


@dataclass(frozen=True, slots=True)
class DeleteBeside:
    """Delete just this object."""

    of: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """`ready`: jobs of which everything is there."""

    steps: tuple[CreateBeside | DeleteBeside, ...]
    ready: frozenset[str]


def beside_part(item: Object) -> Object:
    """The fields of a Service or a NetworkPolicy that `plan_networks` reads."""
    return part_of(item, metadata=("name", "namespace", "uid", "labels", "deletionTimestamp"))


def plan_networks(
    gangs: Iterable[Gang],
    with_pods: Collection[str],
    found: Mapping[Resource, Iterable[Object]],
    rules: PodRules,
) -> NetworkPlan:
    """The steps of a round. `with_pods`: jobs of which a pod is there, also one that just ends."""
    known = {gang.job_id: gang for gang in gangs}
    have: dict[str, set[Resource]] = {}
    steps: list[CreateBeside | DeleteBeside] = []
    for of, items in found.items():
        for item in items:
            metadata = item["metadata"]
            job_id = (metadata.get("labels") or {}).get(JOB)
            if job_id is None or metadata.get("deletionTimestamp"):
                continue
            have.setdefault(job_id, set()).add(of)
            if job_id not in known and job_id not in with_pods:
                steps.append(DeleteBeside(of, metadata["name"], metadata["uid"]))
    for gang in known.values():
        if gang.shares:
            there = have.get(gang.job_id, set())
            steps += [CreateBeside(of, item) for of, item in _items(gang, rules) if of not in there]
    ready = {job_id for job_id, there in have.items() if there == set(KINDS)}
    return NetworkPlan(tuple(steps), frozenset(ready))


def _items(gang: Gang, rules: PodRules) -> Iterator[tuple[Resource, Object]]:
    pods = {JOB: gang.job_id}
    metadata = {
        "name": pod_domain(gang.job_id),
        "namespace": rules.namespace,
        "labels": {OURS: "job", TEAM: gang.team, **pods},
    }
    yield (
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": SERVICES.kind,
            "metadata": metadata,
            # Ranks look for each other before their pods count as ready.
            "spec": {"clusterIP": "None", "selector": pods, "publishNotReadyAddresses": True},
        },
    )
    own = {"podSelector": {"matchLabels": pods}}
    yield (
        NETWORK_POLICIES,
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": NETWORK_POLICIES.kind,
            "metadata": metadata,
            "spec": {
                **own,
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [own]}],
                "egress": list(_egress(own, rules)),
            },
        },
    )


def _egress(own: Object, rules: PodRules) -> Iterator[Object]:
    if rules.peers:
        yield {"to": [own, *map(dict, rules.peers)]}
        yield {"ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}
    else:  # some plugins do not take addresses of pods for those of a block
        yield {"to": [{"namespaceSelector": {}}, *_elsewhere()]}


def _elsewhere() -> Iterator[Object]:
    """All addresses without those of metadata services."""
    for everything, sign, bits in (("0.0.0.0/0", ".", 32), ("::/0", ":", 128)):
        left_out = [f"{address}/{bits}" for address in ADDRESSES if sign in address]
        yield {"ipBlock": {"cidr": everything, "except": left_out}}
