"""The scheduler's state: the fold of gangline.scheduling and of nothing else.

`teams` to `policy` are the facts. The rest is derived from them while folding, so that a decision
costs what it is about and not what the cluster holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gangline_bus.overlay import Overlay
from gangline_scheduler.core.ended_runs import EndedRun
from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import LEVELS
from gangline_scheduler.core.model import Job, Node, Part, ReservedGpus, Wait
from gangline_scheduler.core.queue import PendingIndex, Slot, cpu_slot
from gangline_scheduler.core.searches import Searches
from gangline_scheduler.core.team_model import Runtime, Team, Usage
from gangline_schemas.events.policy import PolicyConfigured
from gangline_schemas.isolation import Isolation

LOST_NODES_KEPT = 10_000
LEFT_NODES_KEPT = 1000  # machines of a cloud may have new names each time


@dataclass(slots=True)
class State:
    """The scheduler's state. Values are frozen, so that `fork` is a copy of the dicts alone.

    `lost`: incarnations that failed before they joined here, by node. `left`: nodes that said they
    leave, the last to do so last; the newest are remembered. `reserved`: GPUs that are being freed
    for a job, by its id. `runtimes`: what each team's last jobs took, newest last. `over_budget`:
    the month whose budget a team has spent. `over_cpu_budget`: the same of jobs without GPUs.
    `usage`: what teams use and used, with a half-life.
    `moved`: when gangs were stopped to defragment, in the last hour before the newest of them.
    `parts`: processes by (service, instance); `features` that all know, and since when.
    `policy`: the settings that decisions follow, as the log says; None before it says any.
    `waits`: the estimated and actual waits of the last jobs that started; newest last.
    Derived: `pending` in the order in which jobs began to wait, by id, and `queue`: the same in
    the policy's order; `live` jobs with a gang; `free` of each schedulable node, `empty`: as if
    no gang ran there; `used` GPUs by team, with those of the teams below it, and `used_models`
    by team and model; `restarting`: pending jobs that failed; `failed` nodes and since
    when, oldest first; `unreservable`: gangs that would not fit if all that runs had ended.
    Jobs without GPUs have their own: `cpu_pending`, `cpu_queue`, `cpu_live`, and `used_cpus`
    (thousandths by team, with the teams below it); all others are of jobs and nodes with GPUs.
    `levels` and `mix_from` (free_node.empty_of) are those of `policy`, or of the configuration.
    """

    teams: dict[str, Team] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    ended: dict[str, EndedRun] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)
    reserved: dict[str, ReservedGpus] = field(default_factory=dict)
    over_budget: dict[str, str] = field(default_factory=dict)
    over_cpu_budget: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    runtimes: dict[str, tuple[Runtime, ...]] = field(default_factory=dict)
    moved: tuple[datetime, ...] = ()
    waits: tuple[Wait, ...] = ()
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    features: dict[str, datetime] = field(default_factory=dict)
    policy: PolicyConfigured | None = None
    pending: dict[str, None] = field(default_factory=dict)
    queue: PendingIndex = field(default_factory=lambda: PendingIndex(_by_wait))
    live: dict[str, None] = field(default_factory=dict)
    free: FreeIndex = field(default_factory=FreeIndex)
    empty: FreeIndex = field(default_factory=FreeIndex)
    cpu_pending: dict[str, None] = field(default_factory=dict)
    cpu_queue: PendingIndex = field(default_factory=lambda: PendingIndex(cpu_slot))
    cpu_live: dict[str, None] = field(default_factory=dict)
    used_cpus: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    used_models: dict[tuple[str, str], int] = field(default_factory=dict)
    restarting: dict[str, None] = field(default_factory=dict)
    failed: dict[str, datetime] = field(default_factory=dict)
    unreservable: Searches = field(default_factory=Searches)
    levels: tuple[str, ...] = LEVELS
    mix_from: Isolation | None = None

    def is_pending(self, job_id: str) -> bool:
        """Whether a job is pending, with GPUs or without."""
        return job_id in self.pending or job_id in self.cpu_pending

    @property
    def free_gpus(self) -> int:
        """Free GPUs of schedulable nodes."""
        return self.free.total()


def _by_wait(job: Job) -> Slot:
    return Slot(None, (job.waiting_since, job.submitted_at, job.job_id))


def fork(state: State) -> State:
    """A copy to try decisions on.

    Its memory of ended runs begins empty: that one is large, and not needed there.
    """
    return _copied(state, dict, FreeIndex.copy, Searches())


def branch(state: State) -> State:
    """As `fork`, to use for as long as the given state stays as it is. O(teams + groups)."""
    return _copied(state, Overlay, FreeIndex.branch, state.unreservable.split())


def _copied(
    state: State,
    copied: Callable[[Any], Any],
    index: Callable[[FreeIndex], FreeIndex],
    unreservable: Searches,
) -> State:
    """`copied` and `index` are for what grows with the cluster or the queue."""
    return State(
        teams=dict(state.teams),
        nodes=copied(state.nodes),
        jobs=copied(state.jobs),
        ended={},
        lost=copied(state.lost),
        left=copied(state.left),
        reserved=dict(state.reserved),
        over_budget=dict(state.over_budget),
        over_cpu_budget=dict(state.over_cpu_budget),
        usage=dict(state.usage),
        runtimes=dict(state.runtimes),
        moved=state.moved,
        waits=state.waits,
        parts=dict(state.parts),
        features=dict(state.features),
        policy=state.policy,
        pending=copied(state.pending),
        queue=state.queue.copy(),
        live=copied(state.live),
        free=index(state.free),
        empty=index(state.empty),
        cpu_pending=copied(state.cpu_pending),
        cpu_queue=state.cpu_queue.copy(),
        cpu_live=copied(state.cpu_live),
        used_cpus=dict(state.used_cpus),
        used=dict(state.used),
        used_models=dict(state.used_models),
        restarting=dict(state.restarting),
        failed=dict(state.failed),
        unreservable=unreservable,
        levels=state.levels,
        mix_from=state.mix_from,
    )
