"""The invariants of the architecture that the scheduler keeps, as functions over its state.

Their numbers are the architecture's. `violations` is called after each cycle in production and in
every test, `takes_no_reserved_gpus` and `whole_workers` for each gang that gets its GPUs.
Cost: O(jobs with a gang + nodes + teams), besides `consistent`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise

from gangline_scheduler.core.free_node import empty_of, left_on
from gangline_scheduler.core.policy.cpu_capacity import CpuCapacity, taken, unused
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.gpus import covered_by
from gangline_schemas.job import JobState

_WITH_GANG = frozenset(
    {JobState.SCHEDULED, JobState.INITIALIZING, JobState.RUNNING, JobState.CHECKPOINTING}
)


def violations(state: State) -> list[str]:
    """Every invariant that does not hold; [] when all is well."""
    return [
        *one_gang_per_gpu(state),
        *whole_gangs(state),
        *live_attempts(state),
        *ceilings(state),
        *states_agree(state),
        *reserved_gpus_are_coming(state),
        *cpus_are_not_shared(state),
    ]


def one_gang_per_gpu(state: State) -> list[str]:
    """1. A GPU belongs to at most one live gang, and free means free."""
    found: list[str] = []
    taken: dict[str, Collection[int]] = {}
    for job_id in state.live:
        gang = state.jobs[job_id].gang
        for part in gang.nodes if gang is not None else ():
            there = taken.get(part.node_id)
            if there is None:
                taken[part.node_id] = part.gpus
                continue
            found += [
                f"GPU {index} of {part.node_id} belongs to {job_id} and to another job"
                for index in part.gpus
                if index in there
            ]
            taken[part.node_id] = {*there, *part.gpus}
    for node_id, there in taken.items():
        node = state.free.get(node_id)
        found += [
            f"GPU {index} of {node_id} counts as free and belongs to a gang"
            for index in (node.indexes("") if node is not None else ())
            if index in there
        ]
    return found


def whole_gangs(state: State) -> list[str]:
    """2. A gang has all its GPUs or none, and its ranks are 0 .. world size - 1.

    An elastic gang has a number of GPUs that it may have. Without GPUs each node has one rank.
    """
    found: list[str] = []
    for job_id in (*state.live, *state.cpu_live):
        job = state.jobs[job_id]
        if job.gang is None:
            found.append(f"{job_id} counts as live and has no gang")
            continue
        next_rank = 0
        for part in job.gang.nodes:
            if part.first_rank != next_rank:
                found.append(f"{job_id}: rank {next_rank} is nowhere")
            next_rank = part.ranks.stop
        if job.cpu_only and len({part.node_id for part in job.gang.nodes}) < next_rank:
            found.append(f"{job_id} has several ranks on a node")
        if next_rank != job.gang.world_size or next_rank not in job.spec.sizes:
            of = "nodes" if job.cpu_only else "GPUs"
            found.append(f"{job_id} has {next_rank} of its {job.spec.resources.ranks} {of}")
    return found


def live_attempts(state: State) -> list[str]:
    """3. The live attempt is the job's newest.

    That it only grows is checked by the fold.
    """
    return [
        f"{job_id}: attempt {job.gang.attempt} is live and {job.attempt} is the newest"
        for job_id in (*state.live, *state.cpu_live)
        if (job := state.jobs[job_id]).gang is not None and job.gang.attempt != job.attempt
    ]


def ceilings(state: State) -> list[str]:
    """6. GPUs of a team and those below it never pass its limit plus what it may borrow.

    GPUs that it had when its limit was lowered are excused until those gangs end.
    """
    own: dict[str, int] = {}
    for job_id in state.live:
        job = state.jobs[job_id]
        own[job.team] = own.get(job.team, 0) + job.allocated_gpus
    allocated: dict[str, int] = {}
    for team, gpus in own.items():
        for name in [*line_of(state.teams, team)] or [team]:
            allocated[name] = allocated.get(name, 0) + gpus
    found = []
    for team in sorted(allocated.keys() | state.used.keys()):
        used, counted = allocated.get(team, 0), state.used.get(team, 0)
        if used != counted:
            found.append(f"team {team} has {used} GPUs and {counted} are counted")
        known = state.teams.get(team)
        allowed = max(known.config.ceiling, known.excused) if known is not None else 0
        if used > allowed:
            found.append(f"team {team} has {used} GPUs of at most {allowed}")
    return found


def states_agree(state: State) -> list[str]:
    """5, in part: a job with a gang is in a state with one; one that waits has none."""
    jobs, waits = state.jobs, JobState.PENDING
    found = [
        f"{job_id} is {jobs[job_id].state} and has GPUs or CPUs"
        for job_id in (*state.live, *state.cpu_live)
        if jobs[job_id].state not in _WITH_GANG
    ]
    found += [
        f"{job_id} waits and is {job.state}"
        for job_id in (*state.pending, *state.cpu_pending)
        if (job := jobs[job_id]).state is not waits or job.gang is not None
    ]
    wait = len(state.pending) + len(state.cpu_pending)
    run = len(state.live) + len(state.cpu_live)
    if wait + run != len(state.jobs):
        found.append(f"{len(state.jobs)} jobs, but {wait} wait and {run} run")
    return found


def cpus_are_not_shared(state: State) -> list[str]:
    """16. Gangs never have more CPUs or memory of a node than it has: of nodes with CPU jobs."""
    names = {
        part.node_id
        for job_id in state.cpu_live
        if (gang := state.jobs[job_id].gang) is not None
        for part in gang.nodes
    }
    found = []
    for name in sorted(names):
        node = state.nodes[name]
        left = unused(node).less(taken(node))
        if not left.holds(CpuCapacity()) and node.schedulable:
            found.append(
                f"{name} has {-min(0, left.cpus) / 1000:g} CPUs and "
                f"{-min(0, left.memory) / 1000:g} GB less than its gangs use"
            )
    return found


def reserved_gpus_are_coming(state: State) -> list[str]:
    """7. GPUs that are reserved on a node are free, or are those of gangs that stop."""
    reserved: dict[str, int] = {}
    for item in state.reserved.values():
        for node_id, gpus in item.nodes:
            reserved[node_id] = reserved.get(node_id, 0) + gpus
    found = []
    for node_id, gpus in reserved.items():
        if node_id not in state.free:
            continue
        free, coming = free_and_coming(state, node_id)
        if free + coming < gpus:
            found.append(
                f"{gpus} GPUs of {node_id} are reserved for gangs that wait; {free} are free "
                f"and {coming} become so"
            )
    return found


def free_and_coming(state: State, node_id: str) -> tuple[int, int]:
    """GPUs of a node that are free, and of gangs there that stop; (0, 0): it takes no gangs."""
    node = state.free.get(node_id)
    if node is None:
        return 0, 0
    coming = sum(
        len(allocation.gpus)
        for job_id, allocation in state.nodes[node_id].allocations
        if _stops(state, job_id)
    )
    return node.size, coming


def _stops(state: State, job_id: str) -> bool:
    gang = state.jobs[job_id].gang
    return gang is not None and gang.leaving


def takes_no_reserved_gpus(before: State, allocated: GangAllocated) -> list[str]:
    """7. GPUs freed for a waiting gang go to that gang: of one allocation, as it is decided.

    A gang without GPUs takes none, also where more are reserved than are free yet.
    Cost: O(its nodes + gangs that GPUs are reserved for); nothing while none are reserved.
    """
    if not before.reserved or allocated.job_id in before.reserved:
        return []
    taken = {part.node_id: part.gpus for part in allocated.nodes if part.gpus}
    free = _free_unreserved(before, taken)
    found = []
    for node_id, gpus in taken.items():
        models = dict(before.nodes[node_id].gpu_models)
        by_model = Counter(models[index] for index in gpus)
        by_model[""] = len(gpus)
        if any(count > free[node_id, model] for model, count in by_model.items()):
            found.append(f"{allocated.job_id} took GPUs of {node_id} that are reserved")
    return found


def whole_workers(allocated: GangAllocated) -> list[str]:
    """2. A worker never crosses a node: of one allocation, as it is decided.

    Ranks follow each other from node to node, so it is enough that each node has whole workers.
    """
    each = allocated.spec.gpus_per_worker
    return [
        f"{allocated.job_id}: {len(part.gpus)} GPUs of {part.node_id} are not whole workers of "
        f"{each}"
        for part in allocated.nodes
        if len(part.gpus) % each
    ]


def _free_unreserved(state: State, nodes: Collection[str]) -> Counter[tuple[str, str]]:
    """Free GPUs by node and model ("": all), less those that are reserved for gangs of this model.

    A gang that moves needs no free GPUs for those that it will have where it stands.
    """
    free: Counter[tuple[str, str]] = Counter()
    for node_id in nodes:
        node = state.free.get(node_id)
        if node is not None:
            free[node_id, ""] = node.size
            free.update({(node_id, model): len(indexes) for model, indexes in node.gpus})
    for job_id, reserved in state.reserved.items():
        job = state.jobs.get(job_id)
        gang = job.gang if job is not None else None
        has = {part.node_id: len(part.gpus) for part in gang.nodes} if gang is not None else {}
        accepted = covered_by(job.spec.resources.gpu_type) if job is not None else ()
        for node_id, gpus in reserved.nodes:
            there = [model for model in accepted if (node_id, model) in free]
            of_models = ("", *(there if len(there) == 1 else ()))
            for model in of_models if node_id in nodes else ():
                free[node_id, model] -= max(0, gpus - has.get(node_id, 0))
    return free


def consistent(state: State) -> list[str]:
    """Derived values agree with the facts. For tests: O(everything)."""
    found: list[str] = []
    levels, mix_from = state.levels, state.mix_from
    empty = {
        node_id: empty_of(node, levels=levels, mix_from=mix_from)
        for node_id, node in state.nodes.items()
        if node.schedulable and node.info.gpus
    }
    free = {node_id: left_on(whole, state.nodes[node_id]) for node_id, whole in empty.items()}
    if free != {node.node_id: node for node in state.free.nodes()}:
        found.append("the free GPUs differ from what nodes and gangs say")
    if state.free_gpus != sum(node.size for node in free.values()):
        found.append("the number of free GPUs is wrong")
    if empty != {node.node_id: node for node in state.empty.nodes()}:
        found.append("the empty nodes differ from what nodes say")
    if sorted(state.cpu_queue.ids()) != sorted(state.cpu_pending):
        found.append("the queue differs from the jobs without GPUs that wait")
    if sorted(state.queue.ids()) != sorted(state.pending):
        found.append("the queue differs from the jobs that wait")
    live = {job_id for job_id, job in state.jobs.items() if job.gang is not None}
    if live != {*state.live, *state.cpu_live}:
        found.append("the live jobs differ from those with a gang")
    allocations = {
        (node_id, job_id) for node_id, node in state.nodes.items() for job_id in node.jobs
    }
    gangs = {
        (part.node_id, job_id)
        for job_id, job in state.jobs.items()
        if job.gang is not None
        for part in job.gang.nodes
    }
    if allocations != gangs:
        found.append("the allocations of nodes differ from the gangs")
    found += [
        f"{job_id}: its checkpoints do not stand in the order of their steps"
        for job_id, job in state.jobs.items()
        if any(after.step <= point.step for point, after in pairwise(job.checkpoints))
    ]
    return found
