"""Whether this node takes gangs: its incarnation, its lease and its check. No I/O, no clock.

The lease: when the bus has acknowledged no heartbeat that was sent in the last `lease_s`
seconds, others may believe this node dead and run its ranks elsewhere. So all ranks are killed,
and the node joins again as a new incarnation once the bus answers and the last rank is gone. It
also does so when the fault manager no longer knows it (`node.failed` with reason `forgotten`).

The check: before it joins, at the start and after a lost lease, the node is checked. While that
fails it does not join, says why (`node.unfit`), and is checked again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gangline_schemas.events.workers import NodeInfo

from . import announce
from .effects import CheckNode, Effect, Note
from .gang import Gang
from .inputs import HeartbeatAcked, NodeChecked
from .keys import Moment


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """How often heartbeats go out, and how long ranks may run without one acknowledged.

    `check_node`: it joins only when its check passed; one that failed is done again
    `check_again_s` later.
    """

    heartbeat_interval_s: float = 1.0
    lease_s: float = 45.0
    check_node: bool = False
    check_again_s: float = 30.0


@dataclass(slots=True)
class Standing:
    """The node as the agent announced it, and the conditions that it waits for.

    `boot` is the incarnation that it began with; times are monotonic seconds.
    """

    node: NodeInfo
    boot: str
    joined: bool = False
    leaving: str | None = None
    unfit_for: tuple[str, ...] = ()
    rejoins: int = 0
    acked_mono_s: float = 0.0
    heartbeats: int = 0
    heartbeat_due_s: float = 0.0
    fit: bool = False
    checking: bool = False
    check_due_s: float = 0.0


class Membership:
    """The node as the cluster sees it. After a lost lease a counter is appended to its incarnation.

    All that changes is in `standing`.
    """

    def __init__(self, node: NodeInfo, limits: AgentLimits) -> None:
        self._limits = limits
        checked = limits.check_node  # the first check begins before the core does
        self.standing = Standing(node, node.incarnation, fit=not checked, checking=checked)

    @property
    def node(self) -> NodeInfo:
        """The node as this incarnation."""
        return self.standing.node

    @property
    def takes_gangs(self) -> bool:
        """Whether it has offered its GPUs, and stays."""
        return self.standing.joined and self.standing.leaving is None

    @property
    def lease_ends_s(self) -> float:
        """When the lease ends unless another heartbeat is acknowledged (monotonic seconds)."""
        return self.standing.acked_mono_s + self._limits.lease_s

    def start(self, at: Moment) -> list[Effect]:
        """Join, unless the node is to be checked: it joins when that is done."""
        self.standing.acked_mono_s = self.standing.heartbeat_due_s = at.mono_s
        return [*self.offer(at, busy=False), *self.beat((), at)]

    def adopt(self, standing: Standing) -> list[Effect]:
        """Be the member that had this standing. A node that joined announces another release."""
        release, self.standing = self.node.release, standing
        if release == standing.node.release:
            return []
        standing.node = standing.node.model_copy(update={"release": release})
        return [announce.joined(self.node)] if self.takes_gangs else []

    def beat(self, gangs: Iterable[Gang], at: Moment) -> list[Effect]:
        """A heartbeat, when it is due."""
        if at.mono_s < self.standing.heartbeat_due_s:
            return []
        self.standing.heartbeat_due_s = at.mono_s + self._limits.heartbeat_interval_s
        self.standing.heartbeats += 1
        number, joined = self.standing.heartbeats, self.standing.joined
        return [announce.heartbeat(self.node, gangs, number, at, joined=joined)]

    def acked(self, item: HeartbeatAcked) -> None:
        """A heartbeat of this incarnation extends the lease."""
        if item.incarnation == self.node.incarnation:
            self.standing.acked_mono_s = max(self.standing.acked_mono_s, item.sent_mono_s)

    def lose(self, at: Moment) -> list[Effect]:
        """The effects of a lease that is over: all that runs here must end; else []."""
        if not self.standing.joined or at.mono_s < self.lease_ends_s:
            return []
        return self._join_again("lease.lost")

    def forgotten(self, incarnation: str) -> list[Effect]:
        """The cluster does not know this incarnation any more: as a lost lease; else []."""
        if not self.standing.joined or incarnation != self.node.incarnation:
            return []
        return self._join_again("node.forgotten")

    def _join_again(self, why: str) -> list[Effect]:
        self.standing.joined = False
        self.standing.fit = not self._limits.check_node
        self.standing.rejoins += 1
        renewed = f"{self.standing.boot}.{self.standing.rejoins}"
        self.standing.node = self.node.model_copy(update={"incarnation": renewed})
        return [Note(why, detail=f"rejoining as {renewed}")]

    def offer(self, at: Moment, *, busy: bool) -> list[Effect]:
        """Join when nothing is against it; first check the node, when that is due.

        `busy`: ranks of an earlier incarnation are left. Call it when a heartbeat was acknowledged.
        """
        cut_off = at.mono_s >= self.lease_ends_s
        if self.standing.joined or busy or cut_off or self.standing.leaving is not None:
            return []
        if self.standing.fit:
            self.standing.joined = True
            return [announce.joined(self.node)]
        if self.standing.checking or at.mono_s < self.standing.check_due_s:
            return []
        self.standing.checking = True
        return [CheckNode()]

    def checked(self, item: NodeChecked, at: Moment, *, busy: bool) -> list[Effect]:
        """Join, or say why not, after each check: what was said before may have been lost."""
        logged, self.standing.unfit_for = self.standing.unfit_for, item.failures
        self.standing.checking = False
        self.standing.fit = not item.failures
        self.standing.check_due_s = at.mono_s + self._limits.check_again_s
        if self.standing.fit:
            return self.offer(at, busy=busy)
        out: list[Effect] = [announce.unfit(self.node, item.failures, at)]
        if item.failures != logged:
            out.append(Note("node.unfit", detail="; ".join(item.failures)))
        return out

    def leave(self, reason: str) -> list[Effect]:
        """Say that the node will go, once."""
        if self.standing.leaving is not None:
            return []
        self.standing.leaving = reason
        return [announce.leaving(self.node, reason)]
