"""Muri's replay: at each arrival and end the cluster is emptied and filled again in order.

Moving a gang costs nothing by itself. But each such moment costs each running job a start (by
model and GPUs, `OVERHEAD_S`, as its authors measured them), so progress is known to the replay
alone: the order asks it. A gang whose place changes is stopped and started there in one moment.

Figures and semantics: the artifact of "Multi-Resource Interleaving for Deep Learning Training"
(SIGCOMM 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from gangline_scheduler.core.allocate import allocate
from gangline_scheduler.core.model import Job, demand_of
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import Listed
from gangline_scheduler.core.state import State
from gangline_simulator.papers.placement import (
    EqualNodes,
    Share,
    first_fit,
    in_workers,
    placement_of,
)
from gangline_simulator.papers.rebalance import stop_all, stopping
from gangline_simulator.papers.scheduler import ReferenceScheduler
from gangline_simulator.trace import TraceJob

ITERATION_FACTOR = 1.015
"""How much slower an iteration is with their system, which their simulator counts for all."""
_OTHER_S = 10.0
_SIZES = (1, 2, 4, 8, 16, 32)
OVERHEAD_S: dict[str, tuple[float, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Seconds to start a job, for 1, 2, 4, 8, 16 and 32 GPUs."""


def overhead_s(job: TraceJob) -> float:
    """The cost of a start for the job, in seconds."""
    known = OVERHEAD_S.get(job.model)
    return known[_SIZES.index(job.gpus)] if known and job.gpus in _SIZES else _OTHER_S


class ByLeft(Listed):
    """By what a job has left as `left_s` tells by its id, x GPUs when `by_gpus`."""

    def __init__(self, *, by_gpus: bool = False) -> None:
        super().__init__("muri", lambda job: (job.submitted_at,), strict=False)
        self.left_s: Callable[[str], float] = lambda job_id: 0.0  # noqa: ARG005
        self._by_gpus = by_gpus

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:  # noqa: ARG002
        """Shortest first, then by submission."""
        left = self.left_s(job.job_id) * (job.gpus if self._by_gpus else 1)
        return left, job.submitted_at, job.job_id


class MuriScheduler(ReferenceScheduler):
    """See the module."""

    def __init__(self, *, by_gpus: bool = False) -> None:
        self._by_left = ByLeft(by_gpus=by_gpus)
        placer = EqualNodes(first_fit)
        super().__init__(Policy(order=self._by_left, placer=placer, reservation="off"))

    def ask(self, left_s: Callable[[str], float]) -> None:
        """Set the function that gives a job's time left to run, in seconds."""
        self._by_left.left_s = left_s

    def run_pass(self, plan: Plan) -> None:
        """Fill the cluster as if it were empty; stop what has no place or another, then start."""
        state, order = plan.state, self.policy.order
        if stopping(state):
            return
        in_turn = sorted(
            (state.jobs[job_id] for job_id in (*state.pending, *state.live)),
            key=lambda job: order.rank(job, state, plan.now),
        )
        places = _fill(in_turn, state)
        moved = [job for job in in_turn if job.gang and _place_of(job) != places.get(job.job_id)]
        stop_all(plan, moved)
        if moved:
            return
        for job in in_turn:
            shares = places.get(job.job_id)
            found = placement_of(shares, plan.state.free) if shares and not job.gang else None
            if found is not None:
                allocate(plan, job, found)


def _fill(in_turn: Sequence[Job], state: State) -> dict[str, tuple[Share, ...]]:
    gpus_of = {
        node.node_id: len(state.nodes[node.node_id].info.gpus) for node in state.free.nodes()
    }
    size, left = max(gpus_of.values(), default=1), sum(gpus_of.values())
    places: dict[str, tuple[Share, ...]] = {}
    for job in in_turn:
        if left <= 0:
            break
        shares = None
        if job.gpus <= left:
            shares = in_workers(first_fit, demand_of(job.spec), sorted(gpus_of.items()), size)
        if shares is not None:
            places[job.job_id] = tuple(sorted(shares))
            left -= job.gpus
            for name, count in shares:
                gpus_of[name] -= count
    return places


def _place_of(job: Job) -> tuple[Share, ...] | None:
    if job.gang is None:
        return None
    return tuple(sorted((part.node_id, len(part.gpus)) for part in job.gang.nodes))
