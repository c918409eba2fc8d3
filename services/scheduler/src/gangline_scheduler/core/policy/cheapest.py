"""The cheapest gangs to stop so that one that waits fits into a domain: a node, a rack, a cluster.

The cost of a set: the sum of its gangs' costs, and the waiting gang's GPUs times the longest of
their delays, as it starts when the last one has left. The search is exact while it is small:
- Branch and bound over the domain's gangs, those that cost least for what they give first. The
  bound: the cost of the rest of a demand if gangs could be stopped in part, and each completed the
  worker that the free GPUs of its nodes are too few for (`Area.spare`).
- With more than `EXACT` gangs in the domain, or when the `Budget` of the level is spent, the
  result is the better one of two bounded ones. Node by node: whole nodes, the cheapest for each GPU
  first, taken if it costs at most `GAP` times the bound. Gang by gang: in order of the cost of a
  GPU, and each gang that completes the set is tried and left out (Csirik et al., "Heuristics for
  the 0-1 min-knapsack problem", 1991). It costs at most twice the cheapest where only GPUs are
  missing, a worker has one, and no guarantee forbids a gang. So the stated gap is `GAP`, 2.

Ties go to the gangs of the worst rank, then to those that started last, then by where they lie;
costs that differ by less than `TIE` GPU-seconds are equal. Nothing depends on the names of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from gangline_scheduler.core.free_node import FreeNode
from gangline_scheduler.core.model import Demand, Job, NodeAllocation
from gangline_scheduler.core.policy.placement import ranks_in
from gangline_scheduler.core.policy.victims import Guarantees, Victim

EXACT = 48
STEPS = 3000
GAP = 2.0
TIE = 0.001
_EPSILON = 1e-6

Accept = Callable[[Sequence[Victim]], bool]
"""Whether stopping these will do, for reasons other than room."""


@dataclass(slots=True)
class Budget:
    """Steps that the searches of one level may still take."""

    steps: int = STEPS


@dataclass(frozen=True, slots=True)
class Wanted:
    """The needs of a set: room for a job's demand, and `short` GPUs of the team `above`.

    `enough`: whether the team may have the GPUs then; asked only if it is short. `improves`: if it
    holds for a set, it holds without some of its gangs, but maybe not with a smaller shrink.
    """

    job: Job
    demand: Demand
    guarantees: Guarantees
    short: int = 0
    above: str = ""
    enough: Accept = lambda _: True
    improves: Accept = lambda _: True


@dataclass(frozen=True, slots=True)
class Piece:
    """The GPUs that a stop of a gang gives in one domain: by its nodes, and in all at the most."""

    victim: Victim
    price: float
    parts: tuple[tuple[int, NodeAllocation], ...]
    amounts: tuple[float, float, float, int]

    @property
    def kind(self) -> tuple[object, ...]:
        """Pieces of one kind give the same, so the first of them is the best choice.

        An elastic gang may have other steps, so its pieces are a kind of their own.
        """
        allocations = tuple(
            (at, len(allocation.gpus), allocation.cpus, allocation.memory_gb)
            for at, allocation in self.parts
        )
        victim = self.victim
        alone = victim.job.job_id if victim.job.spec.resources.min_gpus else ""
        return (
            allocations,
            victim.job.team,
            round(victim.cost, 3),
            victim.delay_s,
            victim.gpus,
            alone,
        )


class Area:
    """The nodes of a domain, and the ranks of a gang that they hold as gangs are taken off."""

    def __init__(self, demand: Demand, model: str, nodes: Sequence[FreeNode]) -> None:
        self._demand, self.nodes = demand, nodes
        self._gpus = [len(node.indexes(model)) for node in nodes]
        self._labelled = [set(demand.labels) <= set(node.labels) for node in nodes]
        self._back: list[list[NodeAllocation]] = [[] for _ in nodes]
        self._rooms = [self._count(at) for at in range(len(nodes))]
        self.room = sum(self._rooms)

    def spare(self, at: int) -> int:
        """Free GPUs of a node that are too few for one more worker; they count on one node alone.

        Of several nodes they are of use only where a gang is stopped, so its piece counts them.
        """
        return self._gpus[at] % self._demand.gpus_per_worker if len(self.nodes) > 1 else 0

    @property
    def amounts(self) -> tuple[float, float, float]:
        """Free GPUs but the `spare` ones, CPUs and GB in all."""
        return (
            float(sum(gpus - self.spare(at) for at, gpus in enumerate(self._gpus))),
            sum(max(0.0, node.cpus) for node in self.nodes),
            sum(max(0.0, node.memory_gb) for node in self.nodes),
        )

    def give(self, piece: Piece) -> None:
        """Its gang gives back its GPUs."""
        for at, allocation in piece.parts:
            self._back[at].append(allocation)
            self._recount(at)

    def take(self, piece: Piece) -> None:
        """Undo that."""
        for at, allocation in piece.parts:
            self._back[at].remove(allocation)
            self._recount(at)

    def with_all(self, at: int, allocations: Sequence[NodeAllocation]) -> int:
        """Ranks that one node would hold without these."""
        before, self._back[at] = self._back[at], list(allocations)
        count = self._count(at)
        self._back[at] = before
        return count

    def _recount(self, at: int) -> None:
        count = self._count(at)
        self.room += count - self._rooms[at]
        self._rooms[at] = count

    def _count(self, at: int) -> int:
        node, back = self.nodes[at], self._back[at]
        if not self._labelled[at] or (node.alone and not node.is_open_to(self._demand.team, back)):
            return 0
        gpus, cpus, memory_gb = self._gpus[at], node.cpus, node.memory_gb
        for allocation in back:
            gpus += len(allocation.gpus)
            cpus += allocation.cpus
            memory_gb += allocation.memory_gb
        return ranks_in(self._demand, gpus, cpus, memory_gb)


class Search:
    """One domain. `pieces`: the gangs of it, and those of the team that has too many GPUs."""

    def __init__(self, wanted: Wanted, area: Area, pieces: Sequence[Piece], budget: Budget) -> None:
        self._wanted, self._area, self._budget = wanted, area, budget
        self._needs = self._missing()
        self._pieces = sorted(pieces, key=self._rate)
        self._orders = [
            sorted(
                (at for at, piece in enumerate(self._pieces) if piece.amounts[number]),
                key=lambda at, number=number: (
                    self._pieces[at].price / self._pieces[at].amounts[number]
                ),  # type: ignore[misc]
            )
            for number, _ in self._needs
        ]
        self._chosen: dict[str, Piece] = {}
        self._taken: dict[str, int] = {}
        self._price, self._own = 0.0, 0
        self._found: tuple[Victim, ...] | None = None
        self._best = inf

    def run(self) -> tuple[float, tuple[Victim, ...]] | None:
        """The price of the cheapest set that was found, and the set; None: there is none."""
        few = len(self._pieces) <= EXACT
        lowest = self._rest(0)
        if lowest == inf:
            return None
        if len(self._area.nodes) > 1:
            self._node_by_node()
        if few or self._best > GAP * lowest:
            self._gang_by_gang()
        if few:
            self._explore(0, self._next_kinds())
        return None if self._found is None else (self._best, self._found)

    def _missing(self) -> list[tuple[int, float]]:
        """The amounts that are missing at the least, as (which of a piece's amounts, how much)."""
        demand = self._wanted.demand
        each = (1.0, demand.cpus_per_gpu, demand.memory_per_gpu_gb)
        free = (*self._area.amounts, 0.0)
        wanted = (*(demand.gpus * one for one in each), float(self._wanted.short))
        if not self._area.nodes:
            wanted = (0.0, 0.0, 0.0, wanted[3])
        missing = (need - there for need, there in zip(wanted, free, strict=True))
        return [(number, much) for number, much in enumerate(missing) if much > _EPSILON]

    def _rate(self, piece: Piece) -> tuple[float, float]:
        """Its cost for the part of the demand that it gives."""
        part = max(
            (min(1.0, piece.amounts[number] / much) for number, much in self._needs), default=0.0
        )
        return (piece.price / part if part else inf), piece.price

    def _rest(self, at: int) -> float:
        """The least cost of the rest from the pieces from here on."""
        worst = 0.0
        for (number, much), order in zip(self._needs, self._orders, strict=True):
            left = much - sum(piece.amounts[number] for piece in self._chosen.values()) - _EPSILON
            price = 0.0
            counted = set(self._chosen)
            for index in order if left > 0 else ():
                piece = self._pieces[index]
                if index < at or piece.victim.job.job_id in counted:
                    continue
                counted.add(piece.victim.job.job_id)
                amount = piece.amounts[number]
                price += piece.price * min(1.0, left / amount)
                left -= amount
                if left <= 0:
                    break
            if left > 0:
                return inf
            worst = max(worst, price)
        return worst

    def _total(self) -> float:
        delay_s = max((piece.victim.delay_s for piece in self._chosen.values()), default=0.0)
        return self._price + self._wanted.demand.gpus * delay_s

    def _push(self, piece: Piece) -> bool:
        """Take this step into the set, if its gang takes none yet and guarantees allow it."""
        guarantees = self._wanted.guarantees
        if piece.victim.job.job_id in self._chosen:
            return False
        if not guarantees.allow(piece.victim, self._taken):
            return False
        guarantees.take(piece.victim.job, piece.victim.gpus, self._taken)
        self._area.give(piece)
        self._chosen[piece.victim.job.job_id] = piece
        self._price += piece.price
        self._own += piece.amounts[3]
        return True

    def _pop(self, piece: Piece) -> None:
        victim = piece.victim
        self._wanted.guarantees.take(victim.job, -victim.gpus, self._taken)
        self._area.take(piece)
        del self._chosen[piece.victim.job.job_id]
        self._price -= piece.price
        self._own -= piece.amounts[3]

    def _fits(self) -> bool:
        wanted = self._wanted
        return self._own >= wanted.short and (
            not self._area.nodes or self._area.room >= wanted.demand.gpus
        )

    def _enough(self) -> bool:
        wanted = self._wanted
        return not wanted.short or wanted.enough([piece.victim for piece in self._chosen.values()])

    def _note(self) -> bool:
        """Keep the set as the best one, if it will do."""
        victims = tuple(piece.victim for piece in self._chosen.values())
        if not victims or not self._enough() or not self._wanted.improves(victims):
            return False
        self._best, self._found = self._total(), victims
        return True

    def _node_by_node(self) -> None:
        """Whole nodes, those first of which one GPU costs least."""
        there: dict[int, list[tuple[Piece, NodeAllocation]]] = {}
        for piece in self._pieces:
            for at, allocation in piece.parts:
                there.setdefault(at, []).append((piece, allocation))
        for at in sorted(range(len(self._area.nodes)), key=lambda at: self._node_rate(at, there)):
            for piece, _ in there.get(at, ()):
                if self._fits():
                    break
                self._push(piece)
        for piece in self._pieces if self._own < self._wanted.short else ():
            if piece.amounts[3]:
                self._push(piece)
        if self._fits():
            self._prune_and_note()
        self._clear()

    def _node_rate(
        self, at: int, there: Mapping[int, Sequence[tuple[Piece, NodeAllocation]]]
    ) -> tuple[float, int, int]:
        gains: dict[str, tuple[Piece, NodeAllocation]] = {}
        for piece, allocation in there.get(at, ()):
            gains.setdefault(piece.victim.job.job_id, (piece, allocation))
        room = self._area.with_all(at, [allocation for _, allocation in gains.values()])
        spent = sum(
            piece.price * len(allocation.gpus) / piece.victim.gpus
            for piece, allocation in gains.values()
        )
        return spent / min(room, self._wanted.demand.gpus) if room else inf, -room, at

    def _gang_by_gang(self) -> None:
        tried: set[str] = set()
        for piece in self._pieces:
            if self._price >= self._best:
                break
            if piece.victim.job.job_id in tried or not self._push(piece):
                continue
            tried.add(piece.victim.job.job_id)
            if self._fits():
                if self._total() < self._best:
                    kept = list(self._chosen.values())
                    self._prune_and_note()
                    self._restore(kept)
                self._pop(piece)
        self._clear()

    def _prune_and_note(self) -> None:
        """Leave out those that are not needed, the dearest first."""
        for piece in sorted(self._chosen.values(), key=lambda piece: -piece.price):
            self._pop(piece)
            if not (self._fits() and self._enough()):
                self._push(piece)
        if self._total() < self._best:
            self._note()

    def _restore(self, kept: Sequence[Piece]) -> None:
        for piece in kept:
            self._push(piece)

    def _clear(self) -> None:
        for piece in list(self._chosen.values()):
            self._pop(piece)

    def _next_kinds(self) -> list[int]:
        """For each piece the next one of another kind: who leaves out one, leaves out its likes."""
        kinds = [piece.kind for piece in self._pieces]
        found = [len(kinds)] * len(kinds)
        for at in reversed(range(len(kinds) - 1)):
            found[at] = found[at + 1] if kinds[at + 1] == kinds[at] else at + 1
        return found

    def _explore(self, at: int, next_kinds: Sequence[int]) -> None:
        if self._budget.steps <= 0 or self._total() >= self._best:
            return
        self._budget.steps -= 1
        if self._fits() and self._note():
            return
        if at == len(self._pieces) or self._total() + self._rest(at) >= self._best:
            return
        if self._push(self._pieces[at]):
            self._explore(at + 1, next_kinds)
            self._pop(self._pieces[at])
        self._explore(next_kinds[at], next_kinds)
