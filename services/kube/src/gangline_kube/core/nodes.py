"""Drains that Kubernetes asks of Gangline, and cordons that Gangline asks of Kubernetes.

A round compares each node of Kubernetes with the same node of Gangline and returns steps. All that
must be remembered is in two annotations of the node, so a process can end at any time, and two of
them do no harm:

- `gangline.dev/drain`: the cause for which Gangline was asked to drain it. When the cause is gone,
  the drain is ended; drains that others asked for are never ended here.
- `gangline.dev/cordon`: the drain of Gangline for which it is cordoned. It is uncordoned only with
  this annotation, when that drain ends. If a person uncordons it earlier, it stays so.

Causes: a cordon by others, a taint with NoExecute, a condition that the settings name, and GPUs
that pods of others have. For the last one gangs stay, and no new ones come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kubernetes.utils.quantity import parse_quantity

from gangline_kube.core.resource import GROUP, Object, annotation, part_of

DRAIN, CORDON = "drain", "cordon"
OURS = f"{GROUP}/part"
"""The label of all pods of Gangline."""
KEPT_OFF = frozenset({"draining", "cordoned"})
"""The statuses of a node of Gangline that is drained."""
_UP = KEPT_OFF | {"ready"}
"""Where a drain that was asked for shows; a node that is down takes no gangs anyway."""
_NODE_LIFE = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_REASON_CHARS = 200
_PODS_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Rules:
    """The causes of drains.

    `conditions`: types of node conditions, with wildcards, that are a cause when they are True.
    `tolerated`: keys of taints, with wildcards, that are none. `gpu_resource`: of which pods of
    others may have some; "": they are not looked at. `most_drained`: the share of nodes that
    conditions may drain, at least one node: a monitor that is wrong everywhere stops nothing.
    """

    conditions: tuple[str, ...] = ()
    tolerated: tuple[str, ...] = ()
    gpu_resource: str = ""
    most_drained: float = 0.5


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a node must be drained. `move_jobs`: gangs that run there leave."""

    reason: str
    move_jobs: bool = True
    by_condition: bool = False


@dataclass(frozen=True, slots=True)
class AskDrain:
    """Ask Gangline to drain the node, or to end that (`on` is false)."""

    node_id: str
    on: bool
    reason: str
    move_jobs: bool = True


@dataclass(frozen=True, slots=True)
class Patch:
    """Change the node in Kubernetes, if it is still as it was seen."""

    name: str
    change: Object


Step = AskDrain | Patch


def node_id(name: str) -> str:
    """The id of a node of Kubernetes in Gangline, where ids have no dots."""
    return name.replace(".", "-")


def node_part(node: Object) -> Object:
    """The fields of a node that `plan` reads."""
    return part_of(
        node,
        metadata=("name", "annotations", "resourceVersion"),
        spec=("unschedulable", "taints"),
        status=("conditions",),
    )


def pod_part(pod: Object) -> Object:
    """The fields of a pod that `foreign_gpus` reads."""
    found = part_of(
        pod, metadata=("name", "namespace", "labels"), spec=("nodeName",), status=("phase",)
    )
    containers = pod["spec"].get("containers", [])
    found["spec"]["containers"] = [{"resources": each.get("resources")} for each in containers]
    return found


def foreign_gpus(pods: Iterable[Object], resource: str) -> dict[str, int]:
    """GPUs by node name that pods without our label asked for."""
    found: dict[str, int] = {}
    for pod in pods:
        labels, spec = pod["metadata"].get("labels") or {}, pod["spec"]
        node = spec.get("nodeName")
        over = (pod.get("status") or {}).get("phase") in _PODS_OVER
        if not node or over or OURS in labels:
            continue
        asked = sum(
            int(
                parse_quantity(((each.get("resources") or {}).get("limits") or {}).get(resource, 0))
            )
            for each in spec.get("containers", [])
        )
        if asked:
            found[node] = found.get(node, 0) + asked
    return found


def plan(
    nodes: Iterable[Object],
    statuses: Mapping[str, str],
    foreign: Mapping[str, int],
    rules: Rules,
) -> list[Step]:
    """The steps of a round, those of a node in their order.

    `statuses`: of Gangline's nodes by id. Nodes that are not in it are left alone.
    """
    known = [node for node in nodes if node_id(node["metadata"]["name"]) in statuses]
    causes = [_cause(node, foreign.get(node["metadata"]["name"], 0), rules) for node in known]
    room = _room(known, causes, rules)
    steps: list[Step] = []
    for node, cause in zip(known, causes, strict=True):
        now = cause
        if cause is not None and cause.by_condition and annotation(node, DRAIN) is None:
            room -= 1
            now = cause if room >= 0 else None
        steps += _steps(node, statuses[node_id(node["metadata"]["name"])], now)
    return steps


def _room(nodes: list[Object], causes: list[Cause | None], rules: Rules) -> int:
    """How many more nodes conditions may drain."""
    drained = sum(
        cause is not None and cause.by_condition and annotation(node, DRAIN) is not None
        for node, cause in zip(nodes, causes, strict=True)
    )
    return max(1, int(len(nodes) * rules.most_drained)) - drained


def _cause(node: Object, foreign: int, rules: Rules) -> Cause | None:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    if spec.get("unschedulable") and annotation(node, CORDON) is None:
        return Cause("cordoned in Kubernetes")
    for taint in spec.get("taints") or ():
        key = str(taint.get("key", ""))
        spared = key in _NODE_LIFE or _matches(key, (f"{GROUP}/*", *rules.tolerated))
        if taint.get("effect") == "NoExecute" and not spared:
            return Cause(f"taint {key}")
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and _matches(condition["type"], rules.conditions):
            detail = condition.get("message") or condition.get("reason") or ""
            return Cause(_plain(f"{condition['type']}: {detail}"), by_condition=True)
    if foreign:
        return Cause(f"pods of others have {foreign} GPUs", move_jobs=False)
    return None


def _plain(text: str) -> str:
    """A text in one short line, of characters that a reason may have."""
    line = " ".join(text[:_REASON_CHARS].split())
    return "".join(each if each.isprintable() else "?" for each in line)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _steps(node: Object, status: str, cause: Cause | None) -> Iterator[Step]:
    name = node["metadata"]["name"]
    asked, cordoned = annotation(node, DRAIN), annotation(node, CORDON)
    kept_off = status in KEPT_OFF
    if cause is not None:
        wanted = "draining" if cause.move_jobs else "cordoned"
        if asked is None and kept_off:
            pass  # a person drained it: the drain stays theirs
        elif asked is None or (status in _UP and status != wanted):
            yield _annotate(node, DRAIN, cause.reason)
            yield AskDrain(node_id(name), on=True, reason=cause.reason, move_jobs=cause.move_jobs)
        return
    if asked is not None:
        # People can change the annotation.
        yield AskDrain(node_id(name), on=False, reason=_plain(asked) or DRAIN)
        yield _annotate(node, DRAIN, None)
        return
    if kept_off and cordoned is None and not (node.get("spec") or {}).get("unschedulable"):
        yield _annotate(node, CORDON, f"Gangline: {status}", unschedulable=True)
    elif cordoned is not None and not kept_off:
        yield _annotate(node, CORDON, None, unschedulable=False)


def _annotate(
    node: Object, name: str, value: str | None, *, unschedulable: bool | None = None
) -> Patch:
    metadata = node["metadata"]
    change: Object = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {f"{GROUP}/{name}": value},
        }
    }
    if unschedulable is not None:
        change["spec"] = {"unschedulable": unschedulable}
    return Patch(metadata["name"], change)
