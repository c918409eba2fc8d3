"""The state of an agent's core, for the next program in its process (handover.py)."""

from __future__ import annotations

from dataclasses import dataclass

from .effects import CheckNode, CheckShard, Effect, OpenStore, Prepare, StoreOutputs, TakeStacks
from .gang import Gang, Phase
from .membership import Standing


@dataclass(frozen=True, slots=True)
class CoreState:
    """Between two inputs: then no rank is just being started.

    New fields need defaults: an older program may have written it.
    """

    standing: Standing
    gangs: tuple[Gang, ...]
    fences: dict[str, int]
    reports: int


def awaited_effects(state: CoreState) -> list[Effect]:
    """The effects whose answers this state waits for, in the order of their requests."""
    out: list[Effect] = [CheckNode()] if state.standing.checking else []
    for gang in state.gangs:
        if not (gang.over or gang.failed):
            if not gang.prepared:
                out.append(Prepare(gang.key, gang.allocation, gang.assignment))
            elif gang.hosts_store and not gang.store_open:
                rendezvous = gang.allocation.rendezvous
                out.append(OpenStore(gang.key, rendezvous.address, rendezvous.port))
        out += [
            CheckShard(rank.key, ready)
            for rank in gang.ranks.values()
            for ready in rank.uploads.values()
        ]
        out += [StoreOutputs(rank.key) for rank in gang.ranks.values() if rank.storing]
        if gang.stacks_by_s is not None:
            running = [rank for rank in gang.ranks.values() if rank.phase is Phase.RUNNING]
            out.append(TakeStacks(gang.key, {rank.key: rank.pid for rank in running}))
    return out
