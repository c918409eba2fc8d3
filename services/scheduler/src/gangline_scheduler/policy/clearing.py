"""Which gangs to stop so that one that waits fits: the cheapest set, close together.

1. One node: for each node its cheapest gangs until the demand fits there; the cheapest node first.
2. For each level above, closest first, up to the widest that the gang may span: nodes in the order
   of what one GPU of them costs, those that are free first, until their domain holds the gang; the
   cheapest domain first.
3. Each set is tried with a `Statement`: all of it evicted, the gang placed; then those are let go
   on without which it fits as well, the dearest first, and the rest is tried again.

A gang that spans nodes is stopped whole, and counts once. The sets come one by one, so whoever asks
takes the first that is good enough: a close domain, if it is worth its cost, before a wide one.

Cost: O(V log V + N log N) for V gangs that may be stopped and N nodes at each level, and the
evictions of the sets that are tried: at most `TRIED` for each level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gangline_scheduler.free import FreeNode
from gangline_scheduler.model import Demand, Hold, Node
from gangline_scheduler.policy.placement import Placement, models, ranks_in, reached
from gangline_scheduler.policy.statement import Snapshot, Statement
from gangline_scheduler.policy.victims import Guarantees, Victim
from gangline_scheduler.values import replace

TRIED = 4
"""So many nodes, and so many domains of a level, are tried at most."""

Enough = Callable[[Sequence[Victim]], bool]
"""Whether stopping these is enough for reasons other than room: what the team may hold."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """Gangs to stop, where the one that waits goes then, and what it costs in GPU-seconds."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def cost(self) -> float:
        """What stopping them costs."""
        return sum(victim.cost for victim in self.victims)


def clearings(
    demand: Demand,
    snapshot: Snapshot,
    victims: Sequence[Victim],
    guarantees: Guarantees,
    *,
    first: Sequence[Victim] = (),
    enough: Enough = lambda _: True,
) -> Iterator[Clearing]:
    """Sets of `victims` (in order of their cost for each GPU) that make room, best first.

    `first` are stopped at any rate, unless `enough` says that fewer do.
    """
    search = _Search(demand, snapshot, guarantees, tuple(first), enough)
    chosen = {victim.job.job_id for victim in first}
    search.offer([victim for victim in victims if victim.job.job_id not in chosen])
    if first:
        yield from search.tried([()])
    yield from search.on_one_node()
    for number, _ in reached(demand, snapshot.levels):
        yield from search.in_a_domain(number)


@dataclass(slots=True)
class _Offer:
    """A node, and what the gangs there that may be stopped would add to its room."""

    node: FreeNode
    model: str
    gains: list[tuple[Victim, Hold]]
    room: int
    price: float


@dataclass(slots=True)
class _Domain:
    """Nodes of one domain that are cleared one after the other."""

    name: str
    room: int = 0
    cost: float = 0.0
    victims: dict[str, Victim] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)


class _Search:
    def __init__(
        self,
        demand: Demand,
        snapshot: Snapshot,
        guarantees: Guarantees,
        first: tuple[Victim, ...],
        enough: Enough,
    ) -> None:
        self._demand, self._base, self._guarantees = demand, snapshot, guarantees
        self._first, self._enough = first, enough
        self._taken: dict[str, int] = {}
        self._after_first = snapshot.copy()
        statement = Statement(self._after_first)
        for victim in first:
            guarantees.take(victim, self._taken)
            statement.evict(victim.job)
        self._offers: list[list[_Offer]] = []

    def offer(self, victims: Sequence[Victim]) -> None:
        """Find what each node could give: one list for each GPU model that the gang accepts."""
        holds: dict[str, list[tuple[Victim, Hold]]] = {}
        free, nodes = self._after_first.free, self._base.nodes
        for victim in victims:
            for part in victim.job.gang.nodes if victim.job.gang is not None else ():
                if free.get(part.node_id) is not None:
                    hold = Hold.of(part.gpus, victim.job.spec.resources, victim.job.team)
                    holds.setdefault(part.node_id, []).append((victim, hold))
        for model in models(self._demand):
            offers = [
                offer
                for node in free.nodes()
                if node.node_id not in self._demand.never
                and (offer := self._offer_of(node, nodes[node.node_id], model, holds)) is not None
            ]
            avoid = self._demand.avoid
            offers.sort(
                key=lambda offer: (
                    offer.node.node_id in avoid,
                    offer.price,
                    -offer.room,
                    offer.node.node_id,
                )
            )
            self._offers.append(offers)

    def _offer_of(
        self,
        node: FreeNode,
        full: Node,
        model: str,
        holds: dict[str, list[tuple[Victim, Hold]]],
    ) -> _Offer | None:
        gains = holds.get(node.node_id, [])
        if len(node.gpus) > 1 and model:
            of_model = {index for index, name in full.gpu_models if name == model}
            gains = [
                (victim, replace(hold, gpus=tuple(of_model.intersection(hold.gpus))))
                for victim, hold in gains
            ]
        elif model and [name for name, _ in node.gpus] != [model]:
            return None
        size = self._room(node, model, [hold for _, hold in gains])
        if size <= 0:
            return None
        spent = sum(
            victim.cost * len(hold.gpus) / victim.gpus for victim, hold in gains if hold.gpus
        )
        return _Offer(node, model, gains, size, spent / min(size, self._demand.gpus))

    def _room(self, node: FreeNode, model: str, back: Sequence[Hold]) -> int:
        """Ranks of the gang that a node holds once these are given back."""
        demand = self._demand
        if demand.labels and not set(demand.labels) <= set(node.labels):
            return 0
        if not node.is_open_to(demand.team, back):
            return 0
        gpus, cpus, memory_gb = len(node.indexes(model)), node.cpus, node.memory_gb
        for hold in back:
            gpus += len(hold.gpus)
            cpus += hold.cpus
            memory_gb += hold.memory_gb
        return ranks_in(demand, gpus, cpus, memory_gb)

    def on_one_node(self) -> Iterator[Clearing]:
        """The nodes that could hold the whole gang, the cheapest first."""
        sets: list[tuple[float, str, tuple[Victim, ...]]] = []
        for offers in self._offers:
            for offer in offers:
                if offer.room >= self._demand.gpus:
                    chosen = self._fewest(offer)
                    if chosen is not None:
                        cost = sum(victim.cost for victim in chosen)
                        sets.append((cost, offer.node.node_id, chosen))
        sets.sort(key=lambda entry: entry[:2])
        yield from self.tried([chosen for _, _, chosen in sets])

    def _fewest(self, offer: _Offer) -> tuple[Victim, ...] | None:
        """The cheapest of a node's gangs until the demand fits, without those not needed."""
        taken = dict(self._taken)
        chosen: list[tuple[Victim, Hold]] = []
        for victim, hold in offer.gains:
            if self._fits(offer, chosen):
                break
            if self._guarantees.allow(victim, taken):
                self._guarantees.take(victim, taken)
                chosen.append((victim, hold))
        if not self._fits(offer, chosen):
            return None
        for gain in sorted(chosen, key=lambda gain: -gain[0].cost):
            others = [other for other in chosen if other is not gain]
            if self._fits(offer, others):
                chosen = others
        return tuple(victim for victim, _ in chosen)

    def _fits(self, offer: _Offer, chosen: Sequence[tuple[Victim, Hold]]) -> bool:
        back = [hold for _, hold in chosen]
        return self._room(offer.node, offer.model, back) >= self._demand.gpus

    def in_a_domain(self, level: int) -> Iterator[Clearing]:
        """The domains of a level that could hold the gang, the cheapest first."""
        whole: list[_Domain] = []
        for offers in self._offers:
            domains: dict[str, _Domain] = {}
            for offer in offers:
                name = offer.node.path[level]
                domain = domains.setdefault(name, _Domain(name, taken=dict(self._taken)))
                if domain.room < self._demand.gpus:
                    self._clear(offer, domain)
                    if domain.room >= self._demand.gpus:
                        whole.append(domain)
        whole.sort(key=lambda domain: (domain.cost, domain.name))
        yield from self.tried([tuple(domain.victims.values()) for domain in whole])

    def _clear(self, offer: _Offer, domain: _Domain) -> None:
        """Stop what may be stopped on one more node."""
        back: list[Hold] = []
        for victim, hold in offer.gains:
            name = victim.job.job_id
            if name not in domain.victims:
                if not self._guarantees.allow(victim, domain.taken):
                    continue
                self._guarantees.take(victim, domain.taken)
                domain.victims[name] = victim
                domain.cost += victim.cost
            back.append(hold)
        domain.room += self._room(offer.node, offer.model, back)

    def tried(self, sets: Iterable[tuple[Victim, ...]]) -> Iterator[Clearing]:
        """Those of the sets that do make room, pruned."""
        for number, chosen in enumerate(sets):
            if number == TRIED:
                return
            found = self._try((*self._first, *chosen))
            if found is not None:
                yield found

    def _try(self, victims: tuple[Victim, ...]) -> Clearing | None:
        after, placement = self._evict(victims)
        if not victims or placement is None or not self._enough(victims):
            return None
        needed = self._needed(victims, after)
        if len(needed) < len(victims):
            _, again = self._evict(needed)
            if again is not None:
                return Clearing(needed, again)
        return Clearing(victims, placement)

    def _evict(self, victims: Iterable[Victim]) -> tuple[Snapshot, Placement | None]:
        after = self._base.copy()
        statement = Statement(after)
        for victim in victims:
            statement.evict(victim.job)
        return after, statement.place(self._demand)

    def _needed(self, victims: Sequence[Victim], after: Snapshot) -> tuple[Victim, ...]:
        """Those whose GPUs are not simply left over, the dearest let go first."""
        left: dict[str, tuple[int, float, float]] = {}
        spared: set[str] = set()
        for victim in sorted(victims, key=lambda victim: (-victim.cost, victim.job.job_id)):
            rest = _without(victim, left, after)
            if rest is None:
                continue
            if self._first and not self._enough(_others(victims, {victim.job.job_id, *spared})):
                continue
            left.update(rest)
            spared.add(victim.job.job_id)
        return _others(victims, spared)


def _others(victims: Sequence[Victim], spared: set[str]) -> tuple[Victim, ...]:
    return tuple(victim for victim in victims if victim.job.job_id not in spared)


def _without(
    victim: Victim, left: dict[str, tuple[int, float, float]], after: Snapshot
) -> dict[str, tuple[int, float, float]] | None:
    """What is left on its nodes if this gang stays; None when there is no room for it."""
    rest: dict[str, tuple[int, float, float]] = {}
    need = victim.job.spec.resources
    for part in victim.job.gang.nodes if victim.job.gang is not None else ():
        node = after.free.get(part.node_id)
        if node is None:
            continue
        if not node.is_open_to(victim.job.team):
            return None
        hold = Hold.of(part.gpus, need, victim.job.team)
        gpus, cpus, memory_gb = left.get(part.node_id, (node.size, node.cpus, node.memory_gb))
        now = (
            gpus - len(hold.gpus),
            cpus - hold.cpus,
            memory_gb - hold.memory_gb,
        )
        if min(now) < 0:
            return None
        rest[part.node_id] = now
    return rest
