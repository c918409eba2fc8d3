"""Which nodes take gangs: joining, leaving, failing, recovering, draining."""

from __future__ import annotations

from typing import Literal

from gangline_scheduler.core import jobs
from gangline_scheduler.core.model import Node
from gangline_scheduler.core.plan import Plan
from gangline_schemas.events.faults import NodeDistrusted, NodeFailed, NodeLeft, NodeRecovered
from gangline_schemas.events.scheduling import NodeAdmitted, NodeCordoned, NodeUncordoned
from gangline_schemas.events.workers import NodeInfo, NodeLeaving

CordonReason = Literal["failed", "leaving", "drain", "superseded"]


def joined(plan: Plan, info: NodeInfo) -> None:
    """Admit a new incarnation. A drain outlives it, and so does a failure that overtook it.

    The same incarnation with another release is an agent that reloaded: its gangs run on.
    """
    node_id = info.node_id
    known = plan.state.nodes.get(node_id)
    if known is not None:
        old = known.info.incarnation
        if old == info.incarnation:
            if known.down is None and known.info.release != info.release:
                _admit_again(plan, known, info)
            return
        if info.incarnation in known.past:
            return
        if known.schedulable:
            _cordon(plan, node_id, old, "superseded")
    lost = plan.state.lost.get(node_id) == info.incarnation
    plan.add(node_id, NodeAdmitted(node=info))
    if known is not None:
        _end_waits(plan, known)
        if known.drained:
            _drain(plan, known, info.incarnation)
    if lost:
        _cordon(plan, node_id, info.incarnation, "failed")


def leaving(plan: Plan, event: NodeLeaving | NodeLeft) -> None:
    """Take the node out, and let its gangs checkpoint and stop while it still lives."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is None or node.down is not None:
        return
    _cordon(plan, event.node_id, event.incarnation, "leaving")
    for job_id, _ in node.holds:
        jobs.drain_gang(plan, job_id)


def failed(plan: Plan, event: NodeFailed) -> None:
    """Take the node out; what becomes of its gangs is said by gang.failed."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is not None:
        if node.down != "failed":
            _cordon(plan, event.node_id, event.incarnation, "failed")
        _end_waits(plan, node)
        return
    _lose(plan, event)


def _lose(plan: Plan, event: NodeFailed | NodeLeft) -> None:
    """Note an incarnation that is gone before it joined: topics are read in any order."""
    known = plan.state.nodes.get(event.node_id)
    if known is not None and event.incarnation in known.past:
        return
    if plan.state.lost.get(event.node_id) != event.incarnation:
        _cordon(plan, event.node_id, event.incarnation, "failed")


def left(plan: Plan, event: NodeLeft) -> None:
    """Take the node out, if its own goodbye is not read yet; wait for none of its checkpoints."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is None:
        _lose(plan, event)
        return
    leaving(plan, event)
    _end_waits(plan, node)


def recovered(plan: Plan, event: NodeRecovered) -> None:
    """Admit a node that was cordoned as failed; a drain stays."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is None:
        if plan.state.lost.get(event.node_id) == event.incarnation:
            plan.add(
                event.node_id,
                NodeUncordoned(node_id=event.node_id, incarnation=event.incarnation),
            )
        return
    if node.down == "failed":
        _admit_again(plan, node, node.info)


def distrusted(plan: Plan, event: NodeDistrusted) -> None:
    """Keep new gangs off a node that failed too often, as a drain without moving its jobs does."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is not None and not node.drained:
        _cordon(plan, event.node_id, event.incarnation, "drain")


def drain(plan: Plan, node_id: str, *, on: bool, move_jobs: bool = True) -> None:
    """Stop or resume placing gangs on a node.

    `move_jobs`: those that run there leave by checkpoint (moving.py); else they run on.
    """
    node = plan.state.nodes.get(node_id)
    if node is None:
        return
    moving = on and move_jobs
    if (node.drained, node.moving_since is not None) == (on, moving):
        return
    if on:
        _cordon(plan, node_id, node.info.incarnation, "drain", move_jobs=move_jobs)
    else:
        plan.add(node_id, NodeUncordoned(node_id=node_id, incarnation=node.info.incarnation))


def _end_waits(plan: Plan, node: Node) -> None:
    """No checkpoint comes from here: gangs that failed and waited for one start again."""
    for job_id, _ in node.holds:
        jobs.go_on_if_saved(plan, job_id)


def _current(plan: Plan, node_id: str, incarnation: str) -> Node | None:
    node = plan.state.nodes.get(node_id)
    return node if node is not None and node.info.incarnation == incarnation else None


def _admit_again(plan: Plan, known: Node, info: NodeInfo) -> None:
    plan.add(info.node_id, NodeAdmitted(node=info))
    if known.drained:
        _drain(plan, known, info.incarnation)


def _drain(plan: Plan, known: Node, incarnation: str) -> None:
    """The drain of a node that was admitted anew goes on, and its time begins anew."""
    moving = known.moving_since is not None
    _cordon(plan, known.info.node_id, incarnation, "drain", move_jobs=moving)


def _cordon(
    plan: Plan, node_id: str, incarnation: str, reason: CordonReason, *, move_jobs: bool = False
) -> None:
    event = NodeCordoned(
        node_id=node_id, incarnation=incarnation, reason=reason, move_jobs=move_jobs
    )
    plan.add(node_id, event)
