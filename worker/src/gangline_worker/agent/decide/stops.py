"""How a gang is stopped: its ranks are asked to, get SIGTERM, and then SIGKILL.

The stacks of a hanging gang are taken once, before anything kills its ranks.
"""

from __future__ import annotations

from gangline_schemas.events.scheduling import GangStopping, StopReason
from gangline_schemas.events.workers import ExitReason, NodeInfo

from . import announce
from .effects import Effect, KillRank, TakeStacks, TerminateRank
from .exits import never_ran
from .gang import Gang, Phase, Rank
from .inputs import StacksTaken
from .keys import Moment

STACKS_WAIT_S = 3.0
"""For so long at most a hanging gang is kept from being killed while its stacks are taken."""
_KILL_AGAIN_S = 1.0
_LAST_CALL_S, _LAST_CALL_SHARE = 5.0, 0.25  # before the end of a stop's time, whichever is less


def on_stopping(node: NodeInfo, gang: Gang, event: GangStopping, at: Moment) -> list[Effect]:
    """Stop it by the event's deadline; at once, if it failed."""
    if event.reason is StopReason.FAILED:
        return [*stop(node, gang, event.reason.value, 0.0, at), *kill_rest(gang, at)]
    left_s = (event.deadline - at.utc).total_seconds()
    return stop(node, gang, event.reason.value, left_s, at)


def stop(node: NodeInfo, gang: Gang, reason: str, left_s: float, at: Moment) -> list[Effect]:
    """Ask all ranks to save and exit; they are killed when `left_s` seconds have passed.

    SIGTERM comes at once where no rank asks, else shortly before (`_LAST_CALL_S`).
    """
    if gang.over:
        return []
    # Bounded by the spec: the scheduler's clock may be off.
    left_s = min(max(left_s, 0.0), gang.allocation.spec.stop_grace_seconds)
    by_s = at.mono_s + left_s
    if gang.stop_by_s is None or by_s < gang.stop_by_s:
        gang.stop_by_s = by_s
        gang.terminate_at_s = by_s - min(_LAST_CALL_S, left_s * _LAST_CALL_SHARE)
    if gang.stop == reason:
        return []
    gang.stop = reason
    out: list[Effect] = []
    for rank in gang.ranks.values():
        if rank.phase is Phase.WAITING:
            rank.ending = ExitReason.STOPPED
            out += never_ran(node, gang, rank, "it was stopped before it started")
        elif rank.alive:
            rank.ending = rank.ending or ExitReason.STOPPED
    return [*out, *gang.send_control(), *terminate(gang, at)]


def terminate(gang: Gang, at: Moment) -> list[Effect]:
    """SIGTERM, once a rank, unless the ranks handle the stop and still have time for that."""
    due_s = gang.terminate_at_s
    if due_s is None or gang.over or (gang.handles_stop and at.mono_s < due_s):
        return []
    out: list[Effect] = []
    for rank in gang.ranks.values():
        if rank.phase is Phase.RUNNING and not rank.terminated:
            rank.terminated = True
            out.append(TerminateRank(rank.key, rank.stopper))
    return out


def end(gang: Gang, reason: ExitReason, at: Moment) -> list[Effect]:
    """Kill what is left of a gang that is over. If the lease is lost, without its stacks."""
    if reason is ExitReason.LEASE_LOST:
        gang.stacks_by_s = None
    if not gang.over:
        gang.over = True
        for rank in gang.ranks.values():
            if rank.alive:
                rank.ending = reason
    return kill_rest(gang, at)


def kill_rest(gang: Gang, at: Moment) -> list[Effect]:
    """Kill those ranks that were not killed yet, but not while their stacks are taken."""
    out: list[Effect] = []
    if not gang.stacks_awaited(at.mono_s):
        for rank in gang.ranks.values():
            if rank.alive and rank.killed_at_s is None:
                out += kill(rank, at)
    return out


def kill_again(gang: Gang, at: Moment) -> list[Effect]:
    """Kill those ranks once more that live on."""
    out: list[Effect] = []
    for rank in gang.ranks.values():
        killed = rank.killed_at_s
        if rank.alive and killed is not None and at.mono_s - killed >= _KILL_AGAIN_S:
            out += kill(rank, at)
    return out


def kill(rank: Rank, at: Moment) -> list[Effect]:
    """Kill a rank, or note that it is to be killed when it runs."""
    rank.killed_at_s = at.mono_s
    return [KillRank(rank.key)] if rank.phase is Phase.RUNNING else []


def take_stacks(gang: Gang, at: Moment) -> list[Effect]:
    """Once, of the ranks that nothing has killed yet."""
    pids = {
        rank.key: rank.pid
        for rank in gang.ranks.values()
        if rank.phase is Phase.RUNNING and rank.killed_at_s is None
    }
    if gang.hung or not pids:
        return []
    gang.hung = True
    gang.stacks_by_s = at.mono_s + STACKS_WAIT_S
    return [TakeStacks(gang.key, pids)]


def on_stacks(node: NodeInfo, gang: Gang | None, item: StacksTaken, at: Moment) -> list[Effect]:
    """Publish them, also when they come too late for their gang."""
    ranks = {} if gang is None else gang.ranks
    out: list[Effect] = []
    for found in item.found:
        rank = ranks.get(found.rank.rank)
        out.append(announce.stacks(node, item.gang, found, None if rank is None else rank.step))
    if gang is not None:
        gang.stacks_by_s = None
        if gang.over:
            out += kill_rest(gang, at)
    return out
