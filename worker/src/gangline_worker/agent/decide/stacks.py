"""The stacks of a hanging gang's ranks: taken once, before anything kills them."""

from __future__ import annotations

from gangline_schemas.events.workers import NodeInfo

from . import announce
from .effects import Effect, TakeStacks
from .gang import Gang, Phase
from .inputs import StacksTaken
from .keys import Moment
from .stops import kill_rest

STACKS_WAIT_S = 3.0
"""For so long at most a hanging gang is kept from being killed while its stacks are taken."""


def take(gang: Gang, at: Moment) -> list[Effect]:
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


def on_taken(node: NodeInfo, gang: Gang | None, item: StacksTaken, at: Moment) -> list[Effect]:
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
