"""Steps that free GPUs for a waiting gang: stop running gangs, or let elastic ones shrink.

Each smaller size that an elastic gang may have is a step of its own, and so is stopping it; of one
gang a set takes one step. A shrink needs no `preemptible`, as `min_gpus` is the consent, and may
come once in `resize_every` (elastic.py). It costs what a stop costs, since all of the gang saves
and starts again. A gang of more than `SIZES` sizes offers those that give 1, 2, 4, ... of them.

In a domain a gang that shrinks keeps the GPUs that lie elsewhere, and gives its last ranks' first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from gangline_scheduler.core.model import Job, NodeAllocation
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.elastic import may_give
from gangline_scheduler.core.policy.victims import Victim, in_turn, victim_of
from gangline_scheduler.core.state import State
from gangline_scheduler.core.values import replace

SIZES = 8


def with_shrinks(
    state: State, later: State, now: datetime, policy: Policy, stops: Sequence[Victim]
) -> tuple[Victim, ...]:
    """These stops, and the shrinks of gangs that may give GPUs; the cheapest for each GPU first."""
    live = (state.jobs[job_id] for job_id in state.live)
    elastic = [job for job in live if may_give(job, now, policy)]
    if not elastic:
        return tuple(stops)
    jobs = {job.job_id: job for job in [*elastic, *(stop.job for stop in stops)]}
    ranked = in_turn(jobs.values(), later, now, policy)
    turns = {job.job_id: turn for turn, job in enumerate(ranked)}
    found = [*stops]
    for job in elastic:
        whole = victim_of(job, state, later, now, policy)
        found += (
            replace(whole, gpus=job.allocated_gpus - size, left=size) for size in _offered(job)
        )
    found.sort(key=lambda step: (turns[step.job.job_id], step.gpus))
    steps = (replace(step, turn=turn) for turn, step in enumerate(found))
    return tuple(sorted(steps, key=lambda step: step.cheapness))


def sizes_below(job: Job) -> list[int]:
    """The sizes that its gang may shrink to, the largest first."""
    return sorted((size for size in job.spec.sizes if size < job.allocated_gpus), reverse=True)


def given(
    step: Victim, there: Sequence[tuple[int, NodeAllocation]]
) -> list[tuple[int, NodeAllocation]]:
    """The GPUs `there` that the step gives of its gang: (node's number, GPUs) by rank."""
    if not step.left:
        return [*there]
    found: list[tuple[int, NodeAllocation]] = []
    missing = step.gpus
    for at, allocation in reversed(there):
        count = min(missing, len(allocation.gpus))
        if not count:
            continue
        part = count / len(allocation.gpus)
        team = allocation.team if count == len(allocation.gpus) else ""
        gpus = allocation.gpus[-count:]
        found.append(
            (at, NodeAllocation(gpus, part * allocation.cpus, part * allocation.memory_gb, team))
        )
        missing -= count
    return found


def smaller(step: Victim, size: int) -> Victim:
    """The shrink that leaves the gang so many GPUs, which are more than this one leaves it."""
    gives = step.job.allocated_gpus - size
    parts = given(
        replace(step, gpus=gives),
        list(enumerate(allocation for _, allocation in reversed(step.given))),
    )
    names = [node_id for node_id, _ in reversed(step.given)]
    return replace(
        step,
        gpus=gives,
        left=size,
        given=tuple((names[at], allocation) for at, allocation in parts),
    )


def _offered(job: Job) -> Iterator[int]:
    sizes = sizes_below(job)
    yield from sizes if len(sizes) <= SIZES else _doubling(sizes, job.allocated_gpus)


def _doubling(sizes: Iterable[int], allocated: int) -> Iterator[int]:
    """Those that give at least twice as much as the one before, and the fewest."""
    least, last = 1, 0
    for size in sizes:
        last = size
        if allocated - size >= least:
            yield size
            least, last = 2 * (allocated - size), 0
    if last:
        yield last
