"""Nodes: admitted, cordoned, forgotten."""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile

from gangline_scheduler.core.evolve.registry import fold
from gangline_scheduler.core.indexes import put_node
from gangline_scheduler.core.model import Node
from gangline_scheduler.core.state import LEFT_NODES_KEPT, LOST_NODES_KEPT, State
from gangline_scheduler.core.values import replace
from gangline_schemas.events.scheduling import NodeAdmitted, NodeCordoned, NodeUncordoned
from gangline_schemas.memory import REMEMBERED, keep_newest

PAST_INCARNATIONS_KEPT = 16


@fold.on(NodeAdmitted)
def _(state: State, event: NodeAdmitted, at: datetime) -> None:
    info = event.node
    state.lost.pop(info.node_id, None)
    state.left.pop(info.node_id, None)
    known = state.nodes.get(info.node_id)
    _forget_gone(state, at)
    if known is None:
        put_node(state, Node(info))
        return
    past = known.past
    if known.info.incarnation != info.incarnation:
        past = (*past, known.info.incarnation)[-PAST_INCARNATIONS_KEPT:]
    put_node(
        state,
        replace(
            known,
            info=info,
            admission=known.admission + 1,
            down=None,
            down_at=None,
            drained=False,
            moving_since=None,
            outdated=None,
            past=past,
        ),
    )


@fold.on(NodeCordoned)
def _(state: State, event: NodeCordoned, at: datetime) -> None:
    node = state.nodes.get(event.node_id)
    if node is None or node.info.incarnation != event.incarnation:
        state.lost[event.node_id] = event.incarnation
        keep_newest(state.lost, LOST_NODES_KEPT)
    elif event.reason == "drain":
        moving_since = at if event.move_jobs else None
        put_node(state, replace(node, drained=True, moving_since=moving_since))
    elif event.reason == "outdated":
        put_node(state, replace(node, outdated=event.oldest_accepted))
    else:
        state.left.pop(event.node_id, None)
        put_node(state, replace(node, down=event.reason, down_at=at))
        if event.reason == "leaving":
            _forget_left(state, event.node_id)
    _forget_gone(state, at)


@fold.on(NodeUncordoned)
def _(state: State, event: NodeUncordoned, _at: datetime) -> None:
    node = state.nodes.get(event.node_id)
    if node is None or node.info.incarnation != event.incarnation:
        state.lost.pop(event.node_id, None)
    else:
        admission = node.admission + 1
        put_node(state, replace(node, drained=False, moving_since=None, admission=admission))


def _forget_left(state: State, node_id: str) -> None:
    """This node leaves; of those that did, the first beyond the newest goes, if it is empty."""
    state.left.pop(node_id, None)
    state.left[node_id] = None
    if len(state.left) <= LEFT_NODES_KEPT:
        return
    for first in state.left:
        if not state.nodes[first].jobs:
            del state.left[first], state.nodes[first]
            return


def _forget_gone(state: State, at: datetime) -> None:
    """Forget nodes that failed or left long ago, unless a gang still counts there.

    One that comes back after that joins again.
    """
    old = takewhile(lambda entry: at - entry[1] > REMEMBERED, state.failed.items())
    for node_id in [node_id for node_id, _ in old if not state.nodes[node_id].jobs]:
        del state.failed[node_id]
        del state.nodes[node_id]
    for node_id in [*takewhile(lambda name: _left_long_ago(state.nodes[name], at), state.left)]:
        del state.left[node_id]
        del state.nodes[node_id]


def _left_long_ago(node: Node, at: datetime) -> bool:
    return node.down_at is not None and at - node.down_at > REMEMBERED and not node.jobs
