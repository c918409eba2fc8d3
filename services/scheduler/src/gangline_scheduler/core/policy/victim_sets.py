"""Which gangs to stop so that one that waits fits: the cheapest set, close together.

1. One node: of each node the cheapest set that makes room there (cheapest.py); the cheapest first.
2. For each level above, closest first, up to the widest that the gang may span: the same for each
   domain. A gang that spans nodes is stopped whole, and counts once. An elastic gang may shrink
   instead (steps.py), so a set may hold both.
3. Each set is tried with a `Statement`: all of it evicted, the gang placed. Then gangs that shrink
   give no more than is needed.

Domains are searched in the order of the least that each could cost, and no more of them than can
be the cheapest. Nodes that the gang should avoid are left out at first. The sets come one by one,
so the caller takes the first that is good enough: a close domain, if it is worth its cost, before a
wide one.

A gang may stand better than others that may be stopped, and could have these stopped in turn. It is
left out at first (`steady`), and stopped only if no set without it makes room.

Cost: O(V log V + N) for V gangs that may be stopped and N nodes, for each level. Then the domains
that are searched, and the evictions of the sets that are tried, at most `TRIED` for each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from gangline_scheduler.core.free_node import FreeNode
from gangline_scheduler.core.model import NodeAllocation
from gangline_scheduler.core.policy.cheapest import TIE, Area, Budget, Piece, Search, Wanted
from gangline_scheduler.core.policy.placement import Placement, models, reached
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.policy.steps import given, sizes_below, smaller
from gangline_scheduler.core.policy.victims import Victim
from gangline_scheduler.core.values import replace

TRIED = 4
"""So many domains of a level are tried at most."""
SEARCHED = 256
"""So many of a level are searched at most: those first that could cost least."""
AT_NODE = 0

Gains = dict[str, list[tuple[Victim, NodeAllocation]]]
"""By node: the gangs there that may be stopped, the cheapest for each GPU first."""


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Gangs to stop, where the one that waits goes then, and what it costs in GPU-seconds."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def cost(self) -> float:
        """The cost of stopping them, and of the gang's wait for the slowest of them."""
        delay_s = max((victim.delay_s for victim in self.victims), default=0.0)
        return sum(victim.cost for victim in self.victims) + self.placement.gpus * delay_s


def victim_sets(
    wanted: Wanted,
    snapshot: Snapshot,
    victims: Sequence[Victim],
    steady: Sequence[Victim],
) -> Iterator[VictimSet]:
    """Sets of `victims` (the cheapest for each GPU first) that make room, best first.

    `steady`: those that would stop no gang in turn; sets of these alone come before others.
    """
    yield from _VictimSets(wanted, snapshot, steady).found()
    if len(steady) < len(victims):
        yield from _VictimSets(wanted, snapshot, victims).found()


@dataclass(frozen=True, slots=True)
class _Domain:
    """Nodes to search together, for GPUs of one model; with nodes that should be avoided or not."""

    model: str
    nodes: tuple[FreeNode, ...]
    avoided: bool


class _VictimSets:
    def __init__(self, wanted: Wanted, snapshot: Snapshot, victims: Sequence[Victim]) -> None:
        self._wanted, self._base, self._victims = wanted, snapshot, victims
        order = sorted(victims, key=lambda victim: victim.turn)
        self._prices = {
            victim.turn: victim.cost + TIE * number / len(order)
            for number, victim in enumerate(order)
        }
        delay_s = min((victim.delay_s for victim in victims), default=0.0)
        self._wait = wanted.demand.gpus * delay_s
        self._gains: dict[str, Gains] = {}

    def found(self) -> Iterator[VictimSet]:
        """See `victim_sets`."""
        demand, base = self._wanted.demand, self._base
        if self._wanted.short:
            found = self._search(_Domain("", (), avoided=False), Budget())
            victim_set = self._try(found[1]) if found is not None else None
            if victim_set is not None:
                yield victim_set
        there = {"", *base.free.models()}
        for model in models(demand):
            if model in there:
                self._gains[model] = self._gains_of(model)
        nodes = [node for node in base.free.nodes() if node.node_id not in demand.never]
        for level in (AT_NODE, *(number for number, _ in reached(demand, base.levels))):
            yield from self._at_level(nodes, level)

    def _gains_of(self, model: str) -> Gains:
        """The GPUs of this model that stops could give back to each node."""
        found: Gains = {}
        for victim in self._victims:
            for part in victim.job.gang.nodes if victim.job.gang is not None else ():
                node = self._base.free.get(part.node_id)
                if node is None:
                    continue
                allocation = NodeAllocation.of(
                    part.gpus, victim.job.spec.resources, victim.job.team
                )
                if model:
                    known = self._base.nodes[part.node_id].gpu_models
                    of_model = {index for index, name in known if name == model}
                    allocation = replace(
                        allocation, gpus=tuple(i for i in allocation.gpus if i in of_model)
                    )
                found.setdefault(part.node_id, []).append((victim, allocation))
        return found

    def _at_level(self, nodes: Sequence[FreeNode], level: int) -> Iterator[VictimSet]:
        """The cheapest set of each domain of a level, the cheapest first."""
        numbers = count()
        waiting: list[tuple[bool, float, int, _Domain, tuple[Victim, ...] | None]] = [
            (domain.avoided, lowest, next(numbers), domain, None)
            for domain in self._domains(nodes, level)
            if (lowest := self._lowest(domain)) is not None
        ]
        heapify(waiting)
        tried = searched = 0
        budget = Budget()
        while waiting and tried < TRIED:
            avoided, _, _, domain, victims = heappop(waiting)
            if victims is not None:
                tried += 1
                victim_set = self._try(victims)
                if victim_set is not None:
                    yield victim_set
            elif searched < SEARCHED:
                searched += 1
                found = self._search(domain, budget)
                if found is not None:
                    heappush(waiting, (avoided, found[0], next(numbers), domain, found[1]))

    def _domains(self, nodes: Sequence[FreeNode], level: int) -> Iterator[_Domain]:
        avoid = self._wanted.demand.avoid
        for model in self._gains:
            domains: dict[str, list[FreeNode]] = {}
            for node in nodes:
                domains.setdefault(node.path[level], []).append(node)
            for members in domains.values():
                open_to = tuple(node for node in members if node.node_id not in avoid)
                if open_to:
                    yield _Domain(model, open_to, avoided=False)
                if len(open_to) < len(members):
                    yield _Domain(model, tuple(members), avoided=True)

    def _lowest(self, domain: _Domain) -> float | None:
        """The least that room in a domain could cost; None when it cannot have enough GPUs."""
        gains, missing, price = self._gains[domain.model], self._wanted.demand.gpus, 0.0
        missing -= sum(len(node.indexes(domain.model)) for node in domain.nodes)
        most, best = 0, inf
        for node in domain.nodes:
            for number, (victim, allocation) in enumerate(gains.get(node.node_id, ())):
                most += min(len(allocation.gpus), victim.gpus)
                if not number:
                    best = min(best, victim.cost / victim.gpus)
        if most < missing:
            return None
        if missing <= 0:
            return 0.0
        if len(domain.nodes) > 1:
            return (best + TIE) * missing + self._wait
        for victim, allocation in gains.get(domain.nodes[0].node_id, ()):
            gpus = min(len(allocation.gpus), victim.gpus, missing)
            price += gpus * victim.cost / victim.gpus
            missing -= gpus
            if missing <= 0:
                break
        return price + self._wait

    def _search(self, domain: _Domain, budget: Budget) -> tuple[float, tuple[Victim, ...]] | None:
        area = Area(self._wanted.demand, domain.model, domain.nodes)
        parts: dict[int, list[tuple[int, NodeAllocation]]] = {}
        victims: dict[int, Victim] = {}
        gains = self._gains.get(domain.model, {})
        for at, node in enumerate(domain.nodes):
            for victim, allocation in gains.get(node.node_id, ()):
                parts.setdefault(victim.turn, []).append((at, allocation))
                victims[victim.turn] = victim
        if self._wanted.short:
            for victim in self._victims:
                if self._wanted.above in victim.line:
                    victims.setdefault(victim.turn, victim)
        pieces = [
            self._piece(area, victim, given(victim, parts.get(turn, ())))
            for turn, victim in victims.items()
        ]
        return Search(self._wanted, area, pieces, budget).run()

    def _piece(
        self, area: Area, victim: Victim, parts: Sequence[tuple[int, NodeAllocation]]
    ) -> Piece:
        if victim.left:
            gpus = tuple((area.nodes[at].node_id, allocation) for at, allocation in parts)
            victim = replace(victim, given=gpus)
        amounts = (
            float(sum(len(allocation.gpus) + area.spare(at) for at, allocation in parts)),
            sum(allocation.cpus for _, allocation in parts),
            sum(allocation.memory_gb for _, allocation in parts),
            victim.gpus if self._wanted.short and self._wanted.above in victim.line else 0,
        )
        return Piece(victim, self._prices[victim.turn], tuple(parts), amounts)

    def _try(self, victims: tuple[Victim, ...]) -> VictimSet | None:
        in_order = sorted(victims, key=lambda victim: victim.turn)
        placement = self._place(in_order)
        if placement is None:
            return None
        for at, victim in enumerate(in_order):
            if not victim.left:
                continue
            for size in sizes_below(victim.job):
                if size <= victim.left:
                    break
                less = [*in_order[:at], smaller(victim, size), *in_order[at + 1 :]]
                allowed = self._enough(less) and self._wanted.improves(less)
                found = self._place(less) if allowed else None
                if found is not None and found.level == placement.level:
                    in_order, placement = less, found
                    break
        return VictimSet(tuple(in_order), placement)

    def _enough(self, victims: Sequence[Victim]) -> bool:
        """Whether the team of the waiting job may have its GPUs then."""
        wanted = self._wanted
        own = sum(victim.gpus for victim in victims if wanted.above in victim.line)
        return not wanted.short or (own >= wanted.short and wanted.enough(victims))

    def _place(self, victims: Sequence[Victim]) -> Placement | None:
        statement = Statement(self._base.copy())
        for victim in victims:
            if victim.left:
                statement.give(victim.given)
            else:
                statement.evict(victim.job)
        return statement.place(self._wanted.demand)
