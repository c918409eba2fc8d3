"""Elastic gangs: they grow into GPUs that no job waits for, and shrink before others must wait.

A job with `min_gpus` starts with what is there (policy/placement.py takes the most it can, within
what its team may have). Its gang changes its size by a checkpoint and a restart, and takes only
those of its `gpu_counts`, if it names such:

- **Grow**, when GPUs idle that no waiting job could use: the first in the order that has saved
  since it started. Worth it if the GPU-seconds that it gains until its expected end,
  `left_s * gained`, are more than the restart and the work since the checkpoint cost.
- **Shrink**, when a waiting job of a better rank fits once gangs give GPUs back down to their
  fewest: the worst rank gives first, no gang more than is needed, and none without need. No team
  outside the waiting job's line is taken below its guarantee, nor below its part of a surplus that
  is divided by weight. Worth it if the GPUs of the waiting job times the time by which it starts
  sooner are more than the cost.

Each gang is resized at most once in `resize_every`. One that would start from scratch
(`checkpoint.resume: never`) is left alone. Cost: O(live gangs), for growth O(groups of pending
jobs), and for a shrink two placements for each gang that is asked, `ASKED` at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gangline_scheduler.core.allocate import demand_from, next_demand
from gangline_scheduler.core.model import Demand, Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.eligible import eligible
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.policy.order import examples
from gangline_scheduler.core.policy.parts import others_keep, parts
from gangline_scheduler.core.policy.placement import Placement, models, room
from gangline_scheduler.core.policy.reservation import reserve
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.policy.victims import leaving
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_schemas.clocks import lasts
from gangline_schemas.job import JobState

ASKED = 32
"""So many gangs are asked for GPUs for one waiting job."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A gang that gets more GPUs, and where; GPU-seconds that this costs and gains."""

    job: Job
    placement: Placement
    cost_gpu_s: float
    value_gpu_s: float


@dataclass(frozen=True, slots=True)
class Shrinking:
    """Gangs that shrink, and where the waiting job then fits; costs in GPU-seconds."""

    sizes: tuple[tuple[Job, int], ...]
    placement: Placement
    cost_gpu_s: float
    value_gpu_s: float


def growth(snapshot: Snapshot, state: State, now: datetime, policy: Policy) -> Growth | None:
    """The gang that grows now. `snapshot`: GPUs that are free and not reserved."""
    if snapshot.free_gpus <= 0:
        return None
    small = [
        (policy.order.rank(job, state, now), job)
        for job in _live(state)
        if may_grow(job, now, policy)
    ]
    estimates = Estimates(state, now, policy.default_runtime.total_seconds())
    for _, job in sorted(small, key=lambda entry: entry[0]):
        found = _larger(job, snapshot, state)
        if found is None or _wanted(found, snapshot, state):
            continue
        cost_s = growth_cost_gpu_s(job, found.gpus, now, policy)
        value_s = (found.gpus - job.allocated_gpus) * estimates.left_s(job)
        if value_s > cost_s:
            return Growth(job, found, cost_s, value_s)
    return None


def shrinking(
    job: Job, demand: Demand, snapshot: Snapshot, state: State, now: datetime, policy: Policy
) -> Shrinking | None:
    """The gangs that shrink so that the waiting job's fewest GPUs fit; None: none can, or should.

    `snapshot` is what the job may use now, and is left as it was.
    """
    need = demand.least()
    giving = _giving(job, state, now, policy)
    missing = need.gpus - snapshot.free_gpus
    if _spare(giving) < missing:
        return None
    trial = _Trial(job, need, snapshot, state)
    found = _fewest_asked(trial, giving, missing)
    if found is None:
        return None
    sizes, placement = found
    cost_s = sum(size * _restart_s(policy) + _unsaved_gpu_s(other, now) for other, size in sizes)
    value_s = need.gpus * _sooner_s(job, need, snapshot, state, now, policy)
    return Shrinking(sizes, placement, cost_s, value_s) if value_s > cost_s else None


def may_grow(job: Job, now: datetime, policy: Policy) -> bool:
    """Whether its gang has fewer GPUs than it may have, and may be stopped for more."""
    return job.allocated_gpus < job.gpus and _saved(job) and _may_change(job, now, policy)


def growth_cost_gpu_s(job: Job, gpus: int, now: datetime, policy: Policy) -> float:
    """The cost of stopping its gang and resuming it with so many GPUs."""
    return gpus * _restart_s(policy) + _unsaved_gpu_s(job, now)


def _restart_s(policy: Policy) -> float:
    """Seconds that a gang does nothing for: it saves, stops and starts."""
    costs = policy.preemption
    return (costs.checkpoint + costs.restart).total_seconds()


def _live(state: State) -> Iterable[Job]:
    return (state.jobs[job_id] for job_id in state.live)


def _may_change(job: Job, now: datetime, policy: Policy) -> bool:
    """Whether its gang may be stopped for another size."""
    if job.gang is None or job.gang.stop is not None or job.spec.resources.min_gpus is None:
        return False
    if job.spec.checkpoint.resume == "never" and not job.restored:
        return False
    if not (job.state is JobState.RUNNING or job.gang.unseen):
        return False
    return job.resized_at is None or not lasts(job.resized_at, now, policy.resize_every)


def _saved(job: Job) -> bool:
    """Whether the live attempt has committed a checkpoint."""
    gang, at = job.gang, job.saved_at
    return gang is not None and at is not None and at > gang.allocated_at


def _unsaved_gpu_s(job: Job, now: datetime) -> float:
    """GPU-seconds since the live attempt's last checkpoint, or its start."""
    gang, at = job.gang, job.saved_at
    if gang is None or gang.unseen:
        return 0.0
    since = max(gang.allocated_at, at) if at is not None else gang.allocated_at
    return gang.world_size * max(0.0, (now - since).total_seconds())


def _larger(job: Job, snapshot: Snapshot, state: State) -> Placement | None:
    """Where the gang would go with the most GPUs; None when it has as many."""
    trial = _TeamUse(state)
    trial.change(job, job.gang.models if job.gang is not None else (), -1)
    demand = Ceilings(state).within(trial.state, job, next_demand(job, state))
    if demand is None:
        return None
    statement = Statement(snapshot)
    statement.evict(job)
    found = statement.place(demand)
    statement.discard()
    return found if found is not None and found.gpus > job.allocated_gpus else None


def _wanted(found: Placement, snapshot: Snapshot, state: State) -> bool:
    """Whether an eligible job waits that could use GPUs that are free on those nodes."""
    nodes = [node for part in found.parts if (node := snapshot.free.get(part.node_id)) is not None]
    ceilings = Ceilings(state)
    for job in examples(state):
        demand = next_demand(job, state)
        if not any(room(demand, node, model) for node in nodes for model in models(demand)):
            continue
        if eligible(state, ceilings, job):
            return True
    return False


def may_give(job: Job, now: datetime, policy: Policy) -> bool:
    """Whether its gang may be asked for GPUs."""
    return job.allocated_gpus > job.fewest and _may_change(job, now, policy)


def _giving(job: Job, state: State, now: datetime, policy: Policy) -> list[Job]:
    """The gangs that may give GPUs to the job, worst rank first."""
    own = policy.order.rank(job, state, now)
    ranked = [
        (place, other)
        for other in _live(state)
        if may_give(other, now, policy) and (place := policy.order.rank(other, state, now)) > own
    ]
    ranked.sort(key=lambda entry: entry[0], reverse=True)
    return [other for _, other in ranked[:ASKED]]


Found = tuple[tuple[tuple[Job, int], ...], Placement]


def _spare(gangs: Iterable[Job]) -> int:
    """GPUs that they could give."""
    return sum(job.allocated_gpus - job.fewest for job in gangs)


def _fewest_asked(trial: _Trial, giving: Sequence[Job], missing: int) -> Found | None:
    """Ask one more gang until the job fits; then leave out gangs that are not needed."""
    asked: list[Job] = []
    found: Found | None = None
    for other in giving:
        asked.append(other)
        if _spare(asked) < missing:
            continue
        found = trial.fit(asked)
        if found is not None:
            break
    if found is None:
        return None
    for other in asked[:-1]:
        rest = [one for one in asked if one is not other]
        better = trial.fit(rest) if _spare(rest) >= missing else None
        if better is not None:
            asked, found = rest, better
    return found


def _sooner_s(
    job: Job, need: Demand, snapshot: Snapshot, state: State, now: datetime, policy: Policy
) -> float:
    """By how much the job starts sooner than if it waits for the end of others."""
    estimates = Estimates(state, now, policy.default_runtime.total_seconds())
    ends = sorted((estimates.end(other), other.job_id, other) for other in _live(state))
    if Ceilings(state).within(state, job, need) is None:
        line = {*line_of(state.teams, job.team)}
        ends = [end for end in ends if line & {*line_of(state.teams, end[2].team)}]
        return (ends[0][0] - now).total_seconds() if ends else 0.0
    reserved = reserve(job.job_id, need, snapshot, ends, now)
    if reserved is None:
        return estimates.runtime_s(job)
    return (reserved.start - now).total_seconds()


class _Trial:
    """Tries whether a job fits when some gangs shrink."""

    def __init__(self, job: Job, need: Demand, snapshot: Snapshot, state: State) -> None:
        self._job, self._need = job, need
        self._snapshot, self._state = snapshot, state
        self._ceilings = Ceilings(state)
        line = line_of(state.teams, job.team)
        self._guarantees = others_keep(state, leaving(state), line, parts(state))

    def fit(self, asked: Sequence[Job]) -> Found | None:
        """The sizes of the gangs, as large as may be, else their fewest."""
        return self._fit(asked, fewest=False) or self._fit(asked, fewest=True)

    def _fit(self, asked: Sequence[Job], *, fewest: bool) -> Found | None:
        statement, trial = Statement(self._snapshot), _TeamUse(self._state)
        for other in asked:
            statement.evict(other)
            trial.change(other, other.gang.models if other.gang is not None else (), -1)
        try:
            return self._place(statement, trial, asked, fewest=fewest)
        finally:
            statement.discard()

    def _place(
        self, statement: Statement, trial: _TeamUse, asked: Sequence[Job], *, fewest: bool
    ) -> Found | None:
        placement = self._one(statement, trial, self._job, self._need)
        if placement is None:
            return None
        sizes: list[tuple[Job, int]] = []
        taken: dict[str, int] = {}
        for other in reversed(asked):
            least = self._least(other, taken)
            if least is None:
                return None
            demand = demand_from(other.spec, trial.state)
            counts = tuple(count for count in demand.counts if count >= least)
            demand = replace(demand, fewest=least, counts=counts)
            demand = demand.at_most(least if fewest else other.allocated_gpus - 1)
            smaller = self._one(statement, trial, other, demand)
            if smaller is None:
                return None
            sizes.append((other, smaller.gpus))
            self._guarantees.take(other, other.allocated_gpus - smaller.gpus, taken)
        return tuple(sizes), placement

    def _least(self, other: Job, taken: Mapping[str, int]) -> int | None:
        """The fewest GPUs that its gang may shrink to; None: it gives none."""
        least = other.allocated_gpus - self._guarantees.most(other, taken)
        sizes = (size for size in other.spec.sizes if least <= size < other.allocated_gpus)
        return next(iter(sizes), None)

    def _one(
        self, statement: Statement, trial: _TeamUse, job: Job, wanted: Demand
    ) -> Placement | None:
        demand = self._ceilings.within(trial.state, job, wanted)
        found = statement.place(demand) if demand is not None else None
        if found is not None:
            trial.change(job, self._models(found), 1)
        return found

    def _models(self, found: Placement) -> tuple[tuple[str, int], ...]:
        counts: dict[str, int] = {}
        for part in found.parts:
            known = dict(self._snapshot.nodes[part.node_id].gpu_models)
            for index in part.gpus:
                counts[known[index]] = counts.get(known[index], 0) + 1
        return tuple(counts.items())


class _TeamUse:
    """Trial numbers of teams' GPUs. `state` is the cluster's except for these."""

    def __init__(self, state: State) -> None:
        self.state = replace(state, used=dict(state.used), used_models=dict(state.used_models))

    def change(self, job: Job, gpus: Iterable[tuple[str, int]], sign: int) -> None:
        """A gang of this job takes so many GPUs of each model (`sign` 1) or gives them back."""
        state, counts = self.state, tuple(gpus)
        total = sum(count for _, count in counts)
        for name in line_of(state.teams, job.team):
            state.used[name] = state.used.get(name, 0) + sign * total
            for model, count in counts:
                key = (name, model)
                state.used_models[key] = state.used_models.get(key, 0) + sign * count
