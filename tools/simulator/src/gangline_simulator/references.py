"""The policies that can be named: whose decisions, at which pace, at what cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy, Preemption
from gangline_scheduler.core.policy.order import FIFO, SJF, Order
from gangline_scheduler.core.policy.short_first import ShortFirst
from gangline_scheduler.core.state import State
from gangline_simulator.cluster import Pool
from gangline_simulator.driver import Replay
from gangline_simulator.pace import Pace
from gangline_simulator.papers.muri import ITERATION_FACTOR, MuriScheduler, overhead_s
from gangline_simulator.papers.orders import ShortestRemaining, Tiresias, philly_restart_s
from gangline_simulator.papers.placement import EqualNodes
from gangline_simulator.papers.scheduler import PreemptiveScheduler, ReferenceScheduler
from gangline_simulator.running import Costs
from gangline_simulator.trace import TraceJob

TIRESIAS_EVERY_S = 60.0
LIVE_EVERY_S = 60.0
Prepare = Callable[[Pool, Sequence[TraceJob]], Replay[State]]


def _restart_s(job: TraceJob) -> float:
    return philly_restart_s(job.gpus)


PHILLY_COSTS = Costs(restart_s=_restart_s, end_lag_s=1.0)
"""40 s or 60 s for each preemption; an end is seen a second late."""
REAL_COSTS = Costs(
    checkpoint_s=lambda job: 30.0 if job.gpus <= 8 else 60.0,
    restart_s=_restart_s,
    save_every_s=600.0,
)
"""Saving keeps the GPUs for 30 s (60 s above 8 GPUs); starting again costs 40 s (60 s). Gangs save
every 10 minutes, as the platform's do."""
OWN = Policy(order=ShortFirst(), preemption=Preemption(preempt_below=101))
"""As docs/guides/tuning.md recommends: the job that needs least goes first, and any job may have a
much longer one stopped, where that is worth its cost."""


@dataclass(frozen=True, slots=True)
class Named:
    """A policy by its name; `prepare` makes one pool's replay."""

    name: str
    title: str
    prepare: Prepare = field(repr=False)


def _strict(name: str) -> Prepare:
    order = {"fifo": FIFO, "sjf": SJF}[name]

    def prepare(pool: Pool, jobs: Sequence[TraceJob]) -> Replay[State]:
        placer = EqualNodes(size=_largest(pool))
        policy = Policy(order=order, placer=placer, reservation="off")
        return Replay(pool, jobs, ReferenceScheduler(policy))

    return prepare


def _shortest(*, by_gpus: bool) -> Prepare:
    def prepare(pool: Pool, jobs: Sequence[TraceJob]) -> Replay[State]:
        order = ShortestRemaining(philly_restart_s, by_gpus=by_gpus)
        policy = _unbounded(order, pool)
        return Replay(pool, jobs, PreemptiveScheduler(policy), costs=PHILLY_COSTS)

    return prepare


def _unbounded(order: Order, pool: Pool) -> Policy:
    """Jobs are stopped whenever the order says so, as often as it says so."""
    return Policy(
        order=order,
        placer=EqualNodes(size=_largest(pool)),
        reservation="off",
        preemption=Preemption(min_runtime=timedelta(0), max_preemptions=10**9),
    )


def _tiresias(pool: Pool, jobs: Sequence[TraceJob]) -> Replay[State]:
    order = Tiresias()
    policy = _unbounded(order, pool)
    pace = Pace(TIRESIAS_EVERY_S, next_change=order.next_change)
    return Replay(
        pool,
        jobs,
        PreemptiveScheduler(policy),
        pace=pace,
        costs=PHILLY_COSTS,
        knows_durations=False,
    )


def live(policy: Policy, *, knows_durations: bool) -> Prepare:
    """A pool's replay by the live scheduler: a tick each minute, with real costs."""

    def prepare(pool: Pool, jobs: Sequence[TraceJob]) -> Replay[State]:
        return Replay(
            pool,
            jobs,
            Scheduler(policy=replace(policy, give_reasons=False)),
            pace=Pace(LIVE_EVERY_S, only_changes=False),
            costs=REAL_COSTS,
            knows_durations=knows_durations,
        )

    return prepare


def _muri(*, by_gpus: bool) -> Prepare:
    def prepare(pool: Pool, jobs: Sequence[TraceJob]) -> Replay[State]:
        scheduler = MuriScheduler(by_gpus=by_gpus)
        slower = [replace(job, duration_s=job.duration_s * ITERATION_FACTOR) for job in jobs]
        replay = Replay(pool, slower, scheduler, costs=Costs(each_moment_s=overhead_s))
        scheduler.ask(replay.remaining_s)
        return replay

    return prepare


NAMED: dict[str, Named] = {
    named.name: named
    for named in (
        Named("fifo", "first in, first out", _strict("fifo")),
        Named("sjf", "shortest job first, durations known", _strict("sjf")),
        Named("srtf", "shortest remaining time first, durations known", _shortest(by_gpus=False)),
        Named("srsf", "shortest remaining GPU time first", _shortest(by_gpus=True)),
        Named("tiresias", "2D-LAS, durations unknown", _tiresias),
        Named("gangline", "order short, durations known", live(OWN, knows_durations=True)),
        Named("gangline-blind", "the same, unknown", live(OWN, knows_durations=False)),
        Named("fair", "the default, durations known", live(Policy(), knows_durations=True)),
        Named("fair-blind", "the same, unknown", live(Policy(), knows_durations=False)),
        Named("muri-srtf", "SRTF as Muri's simulator has it", _muri(by_gpus=False)),
        Named("muri-srsf", "SRSF as Muri's simulator has it", _muri(by_gpus=True)),
    )
}


def _largest(pool: Pool) -> int:
    return max((len(node.gpus) for node in pool.nodes), default=1)
