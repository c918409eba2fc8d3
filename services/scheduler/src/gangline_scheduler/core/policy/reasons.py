"""Why a pending job does not start: one dominant reason, its evidence, and the next step.

In this order: the team's ceiling (quota); no admitted nodes could ever hold it (gpu_type,
topology, shape); GPUs are reserved for a job that waited too long (reservation); not enough of
the right GPUs are free, or not close enough together (capacity, topology). Messages hold no
number that changes with time alone, so that a reason is written again only after an event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Literal

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.free_node import FreeNode
from gangline_scheduler.core.model import CLUSTER, IMAGES, NODE, Demand, Job, ReservedGpus
from gangline_scheduler.core.policy.placement import models, place, room
from gangline_scheduler.core.policy.reservation import Reservation
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.victims import leaving, owed, promised
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_schemas.gpus import in_short

Code = Literal["capacity", "quota", "order", "shape", "topology", "gpu_type", "reservation"]
LATER = "other jobs come first in the fair-share order; `gangline queue` shows it"
_EVIDENCE = 3


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason in `job.waiting`. `promised`: with GPUs reserved, the job starts by a time."""

    code: Code
    message: str
    promised: bool = False


def later() -> Reason:
    """The reason of a job that is far from the head of the queue."""
    return Reason("order", LATER)


class Explainer:
    """Explains the jobs that wait in one state; `reserved` is what is reserved for whom.

    Cost: O(nodes) for each kind of job; jobs of one team with equal demands share it.
    """

    def __init__(self, state: State, ceilings: Ceilings, reserved: list[Reservation]) -> None:
        self._state = state
        self._ceilings = ceilings
        self._reserved = reserved
        self._total = state.empty.total()
        self._largest_text: str | None = None
        self._known: dict[tuple[str, Demand, str], Reason] = {}

    def kind(self, job: Job) -> tuple[str, Demand, str]:
        """The same for jobs that wait for the same reason."""
        own = any(reservation.job_id == job.job_id for reservation in self._reserved)
        return job.team, next_demand(job, self._state), job.job_id if own else ""

    def explain(self, job: Job) -> Reason:
        """Why this job waits."""
        reserved = self._state.reserved.get(job.job_id)
        if reserved is not None:
            return _making_room(reserved)
        kind = self.kind(job)
        demand = kind[1]
        if kind not in self._known:
            self._known[kind] = (
                self._quota(job)
                or self._never_fits(demand)
                or self._kept_for_another(job, demand)
                or self._reserved_for_another(demand)
                or self._with_debts(job, self._not_free(demand))
            )
        return self._known[kind]

    def _quota(self, job: Job) -> Reason | None:
        state, ceilings = self._state, self._ceilings
        demand = next_demand(job, state)
        if ceilings.within(state, job, demand) is not None:
            return None
        if job.team not in state.teams:
            return Reason("quota", f"team {job.team} is not configured; ask for a quota")
        spent = ceilings.over_budget(state, job.team)
        if spent is not None:
            return Reason(
                "quota",
                f"team {spent} has spent its GPU-hours of {state.over_budget[spent]}; it starts "
                "in the next month, or when the budget is raised",
            )
        if ceilings.allows(state, job):
            return self._models(job, demand)
        return self._limit(job)

    def _models(self, job: Job, demand: Demand) -> Reason:
        """The team may have more GPUs, but none of the models that it could use."""
        wanted = in_short(demand.gpu_types) or "any model"
        allocated = ", ".join(
            f"{count} {model}"
            for (team, model), count in sorted(self._state.used_models.items())
            if team == job.team and count
        )
        return Reason(
            "quota",
            f"needs {_gpus(job.gpus)} of {wanted}; team {job.team} has {allocated or 'none'}, and "
            "may not use so many more of one; it starts when its jobs on them end",
        )

    def _limit(self, job: Job) -> Reason:
        state, ceilings = self._state, self._ceilings
        name = ceilings.tightest(state, job.team)
        config = state.teams[name].config
        used, ceiling = state.used.get(name, 0), ceilings.ceiling(state, name)
        creditor = ceilings.creditor(state, name)
        if config.borrow_limit and creditor is not None:
            way_out = (
                f"it may borrow {config.borrow_limit} more once team {creditor} has its guarantee"
            )
        elif job.gpus > ceiling:
            way_out = "it starts only if the team's limit is raised"
        else:
            way_out = "it starts when jobs of the team end"
        return Reason(
            "quota",
            f"needs {_gpus(job.gpus)}; team {name} has {used} of the {ceiling} "
            f"that it may use now; {way_out}",
        )

    def _never_fits(self, demand: Demand) -> Reason | None:
        """Checked against the nodes as if all of them were empty."""
        levels, empty = self._state.levels, self._state.empty
        if demand.widest not in {NODE, *levels, CLUSTER}:
            known = ", ".join((NODE, *levels))
            message = f"topology level {demand.widest} is not known here; there are {known}"
            return Reason("topology", message)
        if place(demand, empty, levels) is not None:
            return None
        alone = self._alone(demand, [*empty.nodes()])
        return self._no_images(demand) or alone or self._too_large(demand)

    def _alone(self, demand: Demand, nodes: list[FreeNode]) -> Reason | None:
        """These hold it, but a loopback address keeps some to their machine."""
        if demand.widest != CLUSTER or len({node.path[-1] for node in nodes}) == 1:
            return None
        if _room(demand, nodes) < demand.gpus or self._largest(demand, nodes) >= demand.gpus:
            return None
        return Reason(
            "topology",
            f"{_need(demand)}; nodes with a loopback address reach no other machine: set "
            "GANGLINE_ADDRESS of their agents to an address that the others reach",
        )

    def _no_images(self, demand: Demand) -> Reason | None:
        """It would fit if more nodes ran images."""
        others = tuple(label for label in demand.labels if label != IMAGES)
        empty = self._state.empty
        anywhere = replace(demand, labels=others)
        if others == demand.labels or place(anywhere, empty, self._state.levels) is None:
            return None
        able = [IMAGES in node.labels for node in empty.nodes()]
        detail = run_images(sum(able), len(able))
        return Reason("shape", f"{_need(demand)} on nodes that run images; {detail}")

    def _too_large(self, demand: Demand) -> Reason:
        """Why not even the empty nodes hold it."""
        empty = self._state.empty
        need, there = _need(demand), empty.models()
        if demand.gpu_types and there and not {*demand.gpu_types} & {*there}:
            wanted = in_short(demand.gpu_types)
            return Reason(
                "gpu_type",
                f"no node has GPUs of type {wanted}; there are {', '.join(there)}; "
                "it starts when such a node joins",
            )
        usable = [node for node in empty.nodes() if node.node_id not in demand.never]
        most = _room(demand, usable)
        if most >= demand.gpus:
            largest = self._largest(demand, usable)
            return Reason(
                "topology",
                f"{need} in one {demand.widest}; the largest has {largest}; "
                "ask for fewer, or for topology mode preferred",
            )
        detail = _no_whole_workers(demand, usable) or self._too_few(demand, usable)
        return Reason("shape", f"{need}{detail}")

    def _too_few(self, demand: Demand, usable: list[FreeNode]) -> str:
        """All these nodes hold fewer ranks, wherever they lie."""
        most = _room(_apart(demand), usable)
        if demand.never:
            names = _names(sorted(demand.never))
            return (
                f"; without {names}, where it failed, there are {most}; it waits for nodes to join"
            )
        if self._total >= demand.gpus:
            return (
                f" with {demand.cpus_per_gpu:g} CPUs and {demand.memory_per_gpu_gb:g} GB "
                f"each; all nodes together have room for {most} such; "
                "ask for less, or it waits for nodes to join"
            )
        return f"; all nodes together have {self._total}; it waits for nodes to join"

    def _kept_for_another(self, job: Job, demand: Demand) -> Reason | None:
        others = [*takewhile(lambda item: item.job_id != job.job_id, self._reserved)]
        if not others or place(demand, self._state.free, self._state.levels) is None:
            return None
        head = self._state.jobs[others[0].job_id]
        why = (
            "whose team is guaranteed them:" if others[0].claim else "which has waited longest for"
        )
        return Reason(
            "reservation",
            f"GPUs are free but reserved for {head.team}/{head.job_id}, {why} "
            f"its {head.gpus} on {_names(sorted(others[0].nodes))}; "
            "a job that is expected to end before that one starts may run",
        )

    def _reserved_for_another(self, demand: Demand) -> Reason | None:
        state = self._state
        if not state.reserved or place(demand, state.free, state.levels) is None:
            return None
        first = min(state.reserved, key=lambda job_id: (state.reserved[job_id].until, job_id))
        return Reason(
            "reservation",
            f"GPUs are free but reserved for {state.jobs[first].team}/{first}, which starts when "
            "all of its GPUs are there",
        )

    def _not_free(self, demand: Demand) -> Reason:
        free = [node for node in self._state.free.some("") if node.node_id not in demand.never]
        most, need = _room(demand, free), _need(demand)
        if most >= demand.gpus and demand.widest != CLUSTER:
            largest = self._largest(demand, free)
            return Reason(
                "topology",
                f"{need} in one {demand.widest}; {most} are free, at most "
                f"{largest} of them in one {demand.widest}{self._largest_users()}",
            )
        alone = self._alone(demand, free)
        if alone is not None:
            return alone
        loose = _room(_apart(demand), free)
        if most < demand.gpus <= loose:
            return Reason(
                "topology",
                f"{need}; {_gpus(loose)} are free, with room for {_such(most, demand)}"
                f"{self._largest_users()}",
            )
        together = " together" if demand.gpus > 1 == demand.gpus_per_worker else ""
        closed = sum(node.size for node in free if not node.is_open_to(demand.team))
        apart = f"; {closed} more are free beside other teams, on nodes that do not mix them"
        return Reason(
            "capacity",
            f"{need}{together}; {loose} of {self._total} are free{self._largest_users()}"
            f"{apart if closed else ''}",
        )

    @cached_property
    def _promised(self) -> dict[str, int]:
        return promised(self._state)

    @cached_property
    def _debts(self) -> list[tuple[int, str, int, int]]:
        """Teams above their guarantees, most first: (-above, team, GPUs allocated, guaranteed)."""
        state, gone = self._state, leaving(self._state)
        return sorted(
            (guarantee - allocated, name, allocated, guarantee)
            for name in {state.jobs[job_id].team for job_id in state.live}
            if (allocated := state.used.get(name, 0) - gone.get(name, 0))
            > (guarantee := state.teams[name].config.gpu_guarantee)
        )

    def _with_debts(self, job: Job, reason: Reason) -> Reason:
        """Add who owes what to whom, if the job is within what its team is guaranteed."""
        state = self._state
        claims = owed(state, self._promised, job)
        line = {*line_of(state.teams, job.team)}
        debts = [debt for debt in self._debts if debt[1] not in line]
        if claims is None or not debts:
            return reason
        of = state.teams[claims].config.gpu_guarantee
        lacks = of - state.used.get(claims, 0)
        owing = ", ".join(
            f"team {name} has {allocated} and is guaranteed {guarantee}"
            for _, name, allocated, guarantee in debts[:_EVIDENCE]
        )
        return Reason(
            reason.code,
            f"{reason.message}; team {claims} is owed {lacks} of its guaranteed {of}: {owing}",
        )

    def _largest(self, demand: Demand, nodes: list[FreeNode]) -> int:
        """The most ranks that one domain of the required level holds."""
        number = (NODE, *self._state.levels, CLUSTER).index(demand.widest)
        best = 0
        for model in models(demand):
            sizes: dict[str, int] = {}
            for node in nodes:
                name = node.path[number]
                sizes[name] = sizes.get(name, 0) + room(demand, node, model)
            best = max(best, *sizes.values(), 0)
        return best

    def _largest_users(self) -> str:
        """The team or job with most GPUs, since when; "" for none. The same for all that wait."""
        if self._largest_text is None:
            self._largest_text = self._name_largest()
        return self._largest_text

    def _name_largest(self) -> str:
        jobs = [self._state.jobs[job_id] for job_id in self._state.live]
        largest = sorted(jobs, key=lambda job: (-job.gpus, job.job_id))[:_EVIDENCE]
        parts = [
            f"{job.team}/{job.job_id} has {job.gang.world_size} since "
            f"{job.gang.allocated_at:%H:%M} UTC"
            for job in largest
            if job.gang is not None
        ]
        more = len(jobs) - len(parts)
        if not parts:
            return ""
        return f" ({', '.join(parts)}{f', and {more} more jobs' if more > 0 else ''})"


def run_images(able: int, nodes: int) -> str:
    """How many nodes run images, and what the others need."""
    return (
        f"{able} of {nodes} nodes do so. An agent that does is root and isolates by namespaces, or "
        "has podman or apptainer for it (GANGLINE_IMAGE_RUNTIME). Start such agents, or leave "
        "image out"
    )


def _making_room(reserved: ReservedGpus) -> Reason:
    """GPUs are reserved for it already."""
    count = len(reserved.victims)
    if not count:
        message = "GPUs are reserved for it; it starts when all of them are there"
        return Reason("reservation", message, promised=True)
    gangs = "1 gang saves and makes" if count == 1 else f"{count} gangs save and make"
    message = f"{gangs} room for it; it starts by {reserved.until:%H:%M} UTC"
    return Reason("reservation", message, promised=True)


def _room(demand: Demand, nodes: list[FreeNode]) -> int:
    """How many of the gang's ranks the nodes hold, with the best of the accepted models."""
    return max(sum(room(demand, node, model) for node in nodes) for model in models(demand))


def _no_whole_workers(demand: Demand, nodes: list[FreeNode]) -> str | None:
    """Why these nodes do not hold whole workers; None: they hold too few ranks of any kind."""
    apart, each = _apart(demand), demand.gpus_per_worker
    largest = max((_room(apart, [node]) for node in nodes), default=0)
    without = f"without {_names(sorted(demand.never))}, where it failed, " if demand.never else ""
    if largest < each > 1:
        return (
            f"; {without}the largest node has room for {_gpus(largest)}; ask for smaller workers "
            "(gpus_per_worker or parallel.tensor), or it waits for nodes to join"
        )
    if each == 1 or _room(apart, nodes) < demand.gpus:
        return None
    return (
        f"; {without}all nodes together have room for {_such(_room(demand, nodes), demand)}; "
        "ask for fewer or smaller ones, or it waits for nodes to join"
    )


def _apart(demand: Demand) -> Demand:
    """The same GPUs, with no need to lie together on nodes."""
    return replace(demand, gpus_per_worker=1)


def _need(demand: Demand) -> str:
    each = demand.gpus_per_worker
    workers = demand.gpus // each
    if each == 1:
        return f"needs {_gpus(demand.gpus)}"
    if workers == 1:
        return f"needs 1 worker of {_gpus(each)} on one node"
    return f"needs {workers} workers of {_gpus(each)}, each on one node"


def _such(gpus: int, demand: Demand) -> str:
    """So many GPUs as workers of the gang."""
    workers = gpus // demand.gpus_per_worker
    return f"{workers or 'no'} such worker{'s' if workers > 1 else ''}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_EVIDENCE])
    more = len(names) - _EVIDENCE
    return f"{shown} and {more} more" if more > 0 else shown
