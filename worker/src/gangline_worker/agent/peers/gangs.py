"""Gangs and their nodes as an agent knows them: peers that it may answer and ask for files.

All of it comes from the logs that every agent reads. A node that started a moment ago has read
little, and asks fewer others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gangline_schemas.base import Event
from gangline_schemas.events.faults import NodeFailed, NodeLeft
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    NodeAssignment,
    ReleaseReason,
)

_JOBS_REMEMBERED = 10_000
_ATTEMPTS_REMEMBERED = 4
_FAILURES_REMEMBERED = 10_000
_ELSEWHERE_LIMIT = 16
_ENDED = {ReleaseReason.SUCCEEDED, ReleaseReason.FAILED, ReleaseReason.CANCELLED}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node's agent, and where it gives files."""

    node_id: str
    incarnation: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class KnownGang:
    """One attempt: its nodes, by first rank, and the checkpoint that it starts from."""

    job_id: str
    attempt: int
    team: str
    nodes: tuple[NodeAssignment, ...]
    resume: CheckpointRef | None

    @property
    def node_ids(self) -> frozenset[str]:
        """All of its nodes."""
        return frozenset(node.node_id for node in self.nodes)


class Gangs:
    """The newest attempts of each job that has not ended; bounded. May be used by many threads."""

    def __init__(self) -> None:
        self._by_job: OrderedDict[str, dict[int, KnownGang]] = OrderedDict()
        self._released: dict[str, int] = {}  # by job: all attempts up to this one
        self._failed: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._changed = threading.Condition()

    def note(self, event: Event) -> None:
        """Take in an event of the scheduler's or the fault manager's log."""
        with self._changed:
            match event:
                case GangAllocated():
                    self._allocated(event)
                    self._changed.notify_all()
                case GangReleased(reason=reason) if reason in _ENDED:
                    self._forget(event.job_id)
                case GangReleased() if event.job_id in self._by_job:
                    self._released[event.job_id] = event.attempt
                case NodeFailed() | NodeLeft():
                    self._failed[event.node_id, event.incarnation] = None
                    if len(self._failed) > _FAILURES_REMEMBERED:
                        self._failed.popitem(last=False)
                case _:
                    pass

    def live(self, job_id: str, attempt: int, wait_s: float) -> KnownGang | None:
        """An attempt that is neither released nor superseded.

        One that is not known yet is waited for: its own agents may have read of it first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._newest(job_id) >= attempt, wait_s)
            over = self._newest(job_id) > attempt or self._released.get(job_id, 0) >= attempt
            return None if over else self._by_job.get(job_id, {}).get(attempt)

    def beside(self, allocation: GangAllocated, own: str) -> tuple[Peer, ...]:
        """The other nodes of a gang that give files, in the order in which `own` asks them."""
        nodes = sorted(allocation.nodes, key=lambda node: node.first_rank)
        return self._peers(around(nodes, own))

    def at(self, gang: KnownGang, address: str, own: str) -> tuple[Peer, ...]:
        """Agents of a gang's nodes at an address, except `own`."""
        nodes = [node for node in gang.nodes if node.address == address and node.node_id != own]
        return self._peers(nodes)

    def elsewhere(self, allocation: GangAllocated, own: str) -> tuple[Peer, ...]:
        """Nodes of earlier gangs that saved or loaded what this one starts from, newest first.

        Only such as are not its own, and of which no failure is known.
        """
        if allocation.resume is None:
            return ()
        gangs_nodes = {node.node_id for node in allocation.nodes} | {own}
        found: dict[str, NodeAssignment] = {}
        with self._changed:
            known = self._by_job.get(allocation.resume.job_id, {})
            for attempt in sorted(known, reverse=True):
                if attempt >= allocation.resume.attempt:
                    for node in known[attempt].nodes:
                        if node.node_id not in gangs_nodes:
                            found.setdefault(node.node_id, node)
        return self._peers(list(found.values()))[:_ELSEWHERE_LIMIT]

    def _allocated(self, event: GangAllocated) -> None:
        known = self._by_job.setdefault(event.job_id, {})
        nodes = tuple(sorted(event.nodes, key=lambda node: node.first_rank))
        known[event.attempt] = KnownGang(
            event.job_id, event.attempt, event.team, nodes, event.resume
        )
        self._by_job.move_to_end(event.job_id)
        for old in sorted(known)[:-_ATTEMPTS_REMEMBERED]:
            del known[old]
        if len(self._by_job) > _JOBS_REMEMBERED:
            self._forget(next(iter(self._by_job)))

    def _forget(self, job_id: str) -> None:
        self._by_job.pop(job_id, None)
        self._released.pop(job_id, None)

    def _newest(self, job_id: str) -> int:
        return max(self._by_job.get(job_id, {}), default=0)

    def _peers(self, nodes: Sequence[NodeAssignment]) -> tuple[Peer, ...]:
        with self._changed:
            return tuple(
                Peer(node.node_id, node.incarnation, node.address, node.copies_port)
                for node in nodes
                if node.copies_port is not None
                and (node.node_id, node.incarnation) not in self._failed
            )


def around(nodes: Sequence[NodeAssignment], own: str) -> list[NodeAssignment]:
    """The others, beginning with the one after `own`: so each is asked by another one at first."""
    ids = [node.node_id for node in nodes]
    at = ids.index(own) if own in ids else 0
    return [node for node in [*nodes[at:], *nodes[:at]] if node.node_id != own]
