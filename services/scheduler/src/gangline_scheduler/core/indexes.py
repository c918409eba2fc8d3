"""Indexes derived from nodes, jobs and settings: free resources, and the queue's order."""

from __future__ import annotations

from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import empty_of, left_on
from gangline_scheduler.core.model import Node
from gangline_scheduler.core.policy.config import ORDERS
from gangline_scheduler.core.queue import PendingIndex
from gangline_scheduler.core.searches import Searches
from gangline_scheduler.core.state import State


def put_node(state: State, node: Node) -> None:
    """Keep a node as it is now, and what is derived from it."""
    node_id = node.info.node_id
    known = state.nodes.get(node_id)
    state.nodes[node_id] = node
    if known is None or known.standing != node.standing:
        state.unreservable.forget()
        state.failed.pop(node_id, None)
        if node.down == "failed" and node.down_at is not None:
            state.failed[node_id] = node.down_at
    if node.schedulable and node.info.gpus:
        empty = state.empty.get(node_id)
        if empty is None or known is None or known.info is not node.info:
            empty = empty_of(node, levels=state.levels, mix_from=state.mix_from)
            state.empty.put(empty)
        state.free.put(left_on(empty, node))
    else:
        state.free.pop(node_id)
        state.empty.pop(node_id)


def reindex(state: State) -> None:
    """Derive again what depends on the settings: the queue, and what is free. O(nodes + jobs).

    An order that this version does not know changes nothing: its scheduler says another one next.
    """
    policy, order = state.policy, None
    if policy is not None:
        state.levels, state.mix_from = policy.levels, policy.mix_from
        order = ORDERS.get(policy.order)
    state.queue = PendingIndex(state.queue.slot_of if order is None else order.slot)
    state.cpu_queue = PendingIndex(state.cpu_queue.slot_of)
    state.free, state.empty, state.unreservable = FreeIndex(), FreeIndex(), Searches()
    for job_id in state.pending:
        state.queue.add(state.jobs[job_id])
    for job_id in state.cpu_pending:
        state.cpu_queue.add(state.jobs[job_id])
    for node in list(state.nodes.values()):
        put_node(state, node)
