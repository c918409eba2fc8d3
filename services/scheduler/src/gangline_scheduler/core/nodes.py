"""Which nodes take gangs: joining, leaving, failing, recovering, draining."""

from __future__ import annotations

from gangline_scheduler.core import jobs
from gangline_scheduler.core.model import Node
from gangline_scheduler.core.plan import Plan
from gangline_schemas.events.faults import NodeDistrusted, NodeFailed, NodeLeft, NodeRecovered
from gangline_schemas.events.scheduling import (
    CordonReason,
    NodeAdmitted,
    NodeCordoned,
    NodeUncordoned,
)
from gangline_schemas.events.workers import NodeInfo, NodeLeaving
from gangline_schemas.features import is_older


def joined(plan: Plan, info: NodeInfo, oldest: str | None) -> None:
    """Admit a new incarnation. A drain outlives it, and so does a failure that overtook it.

    The same incarnation with another release is an agent that reloaded: its gangs continue.
    `oldest`: the oldest release of an agent that is accepted; None: any.
    """
    node_id = info.node_id
    known = plan.state.nodes.get(node_id)
    if known is not None:
        old = known.info.incarnation
        if old == info.incarnation:
            if known.info.release != info.release:
                _reloaded(plan, known, info, oldest)
            return
        if info.incarnation in known.past:
            return
        if known.schedulable:
            _cordon(plan, node_id, old, "superseded")
    lost = plan.state.lost.get(node_id) == info.incarnation
    _admit(plan, info, oldest)
    if known is not None:
        _end_waits(plan, known)
    if lost:
        _cordon(plan, node_id, info.incarnation, "failed")


def leaving(plan: Plan, event: NodeLeaving | NodeLeft) -> None:
    """Take the node out, and let its gangs checkpoint and stop while it still lives."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is None or node.down is not None:
        return
    _cordon(plan, event.node_id, event.incarnation, "leaving")
    for job_id in node.jobs:
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


def recovered(plan: Plan, event: NodeRecovered, oldest: str | None) -> None:
    """Admit a node that was cordoned as failed; a drain stays, and so does an outdated agent."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is None:
        if plan.state.lost.get(event.node_id) == event.incarnation:
            plan.add(
                event.node_id,
                NodeUncordoned(node_id=event.node_id, incarnation=event.incarnation),
            )
        return
    if node.down == "failed":
        _admit(plan, node.info, oldest)


def distrusted(plan: Plan, event: NodeDistrusted) -> None:
    """Keep new gangs off a node that failed too often, as a drain without moving its jobs does."""
    node = _current(plan, event.node_id, event.incarnation)
    if node is not None and not node.drained:
        _cordon(plan, event.node_id, event.incarnation, "drain")


def drain(plan: Plan, node_id: str, *, on: bool, move_jobs: bool = True) -> None:
    """Stop or resume placing gangs on a node.

    `move_jobs`: those that run there leave by checkpoint (relocate.py); else they run on.
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


def check_agents(plan: Plan, oldest: str | None) -> None:
    """Keep gangs off nodes whose agents are outdated since an upgrade; those there continue.

    If a rollback accepts them again, so do these nodes. A node that joins, reloads or recovers
    later is judged then. Cost: O(nodes).
    """
    changed = [
        node
        for node in plan.state.nodes.values()
        if node.down is None and node.outdated != _outdated(node.info, oldest)
    ]
    for node in changed:
        if _outdated(node.info, oldest) is None:
            _admit(plan, node.info, oldest)
        else:
            _cordon_outdated(plan, node.info, oldest)


def _end_waits(plan: Plan, node: Node) -> None:
    """No checkpoint comes from here: gangs that failed and waited for one start again."""
    for job_id in node.jobs:
        jobs.restart_if_saved(plan, job_id)


def _current(plan: Plan, node_id: str, incarnation: str) -> Node | None:
    node = plan.state.nodes.get(node_id)
    return node if node is not None and node.info.incarnation == incarnation else None


def _reloaded(plan: Plan, known: Node, info: NodeInfo, oldest: str | None) -> None:
    """The agent's new release counts. A node that failed stays so until it recovers."""
    if known.down in {None, "failed"}:
        _admit(plan, info, oldest)
    if known.down == "failed":
        _cordon(plan, info.node_id, info.incarnation, "failed")


def _admit(plan: Plan, info: NodeInfo, oldest: str | None) -> None:
    """Admit it. In the same decision, a drain starts again and an outdated agent is cordoned."""
    known = plan.state.nodes.get(info.node_id)
    plan.add(info.node_id, NodeAdmitted(node=info))
    if known is not None and known.drained:
        moving = known.moving_since is not None
        _cordon(plan, info.node_id, info.incarnation, "drain", move_jobs=moving)
    _cordon_outdated(plan, info, oldest)


def _cordon_outdated(plan: Plan, info: NodeInfo, oldest: str | None) -> None:
    if _outdated(info, oldest) is not None:
        _cordon(plan, info.node_id, info.incarnation, "outdated", oldest_accepted=oldest)


def _outdated(info: NodeInfo, oldest: str | None) -> str | None:
    """The oldest release that is accepted, if its agent is older; else None."""
    return oldest if oldest is not None and is_older(info.release, oldest) else None


def _cordon(
    plan: Plan,
    node_id: str,
    incarnation: str,
    reason: CordonReason,
    *,
    move_jobs: bool = False,
    oldest_accepted: str | None = None,
) -> None:
    event = NodeCordoned(
        node_id=node_id,
        incarnation=incarnation,
        reason=reason,
        move_jobs=move_jobs,
        oldest_accepted=oldest_accepted,
    )
    plan.add(node_id, event)
