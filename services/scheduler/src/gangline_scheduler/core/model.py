"""The values that the scheduler decides about: jobs, gangs, nodes. All frozen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any

from gangline_schemas.events.scheduling import CheckpointRef, NodeAssignment, StopReason, Verdict
from gangline_schemas.events.workers import NodeInfo, SampleRange
from gangline_schemas.gpus import covered_by, exact_name
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.resources import Resources

NODE = "node"
CLUSTER = "cluster"
"""The closest and the widest level; the ones between them are configured."""
IMAGES = ("gangline.dev/images", "yes")
"""A label of nodes whose agents run images."""


class Member(Enum):
    """One rank of the live attempt, as far as the scheduler knows."""

    UNSEEN = "unseen"
    STARTED = "started"
    FINISHED = "finished"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether its process is gone in an orderly way."""
        return self is Member.FINISHED or self is Member.STOPPED


@dataclass(frozen=True, slots=True)
class Stop:
    """A gang was asked to stop; its agents enforce it at the deadline.

    `verdict`: of one that failed, which is ended at once and waits for what it saved.
    """

    reason: StopReason
    deadline: datetime
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that lies whole on its gang's nodes, and since when."""

    step: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Gang:
    """The GPUs and ranks of a job's live attempt.

    `members` is by rank; `models`: how many GPUs of which model, as they were then. `saved`: its
    newest checkpoint that lies on its nodes, in the store or not. `port`: of its rendezvous.
    """

    attempt: int
    nodes: tuple[NodeAssignment, ...]
    allocated_at: datetime
    members: tuple[Member, ...]
    stop: Stop | None = None
    models: tuple[tuple[str, int], ...] = ()
    saved: Saved | None = None
    port: int = 0

    @property
    def world_size(self) -> int:
        """Ranks, which is GPUs; of a gang without GPUs nodes."""
        return len(self.members)

    @property
    def leaving(self) -> bool:
        """Whether it stops and gives its GPUs back; one that failed resumes on them."""
        return self.stop is not None and not self.waits_for_save

    @property
    def waits_for_save(self) -> bool:
        """Whether it has failed, and resumes when its checkpoint is stored (save_waits.py)."""
        return self.stop is not None and self.stop.verdict is not None

    @property
    def unseen(self) -> bool:
        """Whether no rank was ever seen."""
        return all(member is Member.UNSEEN for member in self.members)


@dataclass(frozen=True, slots=True)
class Avoid:
    """A node that the next attempt should avoid (`required`: must avoid).

    `admission` is the node's count at that time: one that was admitted again since is only avoided
    if possible.
    """

    node_id: str
    admission: int
    required: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The last reason that was given for a pending job, and when."""

    code: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The first start that was estimated for a job that waits, and when it was said."""

    start: datetime
    at: datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a job was to wait from its first estimate on, and how long it did."""

    estimated_s: float
    actual_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted job that has not ended.

    `checkpoints` are its committed ones that can be resumed from, oldest first; `base` is the
    other run's checkpoint that it began with. Checkpoints of attempts before `commits_from` do
    not count: a user restored an older one. `ran_s` is the time for which ended attempts had GPUs.
    `restarting`: its last attempt gave its GPUs back to start again, so it is first in the queue.
    `saved_at`: when its newest checkpoint was noted; `preemptions`: how often it was stopped for
    others. `resized_at`: when it was last stopped for another size; `resize_to`: GPUs that its next
    attempt takes at most, while it makes room for another. `checkpoint_interval_s`: as was
    advised, where its spec lets that change it. `left_out`: samples that its next attempts go
    without.
    """

    job_id: str
    spec: JobSpec
    user: str
    submitted_at: datetime
    priority: int
    state: JobState
    waiting_since: datetime
    attempt: int = 0
    gang: Gang | None = None
    checkpoints: tuple[CheckpointRef, ...] = ()
    base: CheckpointRef | None = None
    restored: bool = False
    commits_from: int = 1
    avoid: tuple[Avoid, ...] = ()
    waiting: Waiting | None = None
    ran_s: float = 0.0
    restarting: bool = False
    saved_at: datetime | None = None
    start_estimate: StartEstimate | None = None
    preemptions: int = 0
    resized_at: datetime | None = None
    resize_to: int | None = None
    checkpoint_interval_s: float | None = None
    left_out: tuple[SampleRange, ...] = ()

    @property
    def team(self) -> str:
        """The team that pays."""
        return self.spec.team

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.spec.resources.gpus

    @property
    def cpu_only(self) -> bool:
        """Whether it has no GPUs: cpu_jobs.py places it, and no search for GPUs looks at it."""
        return self.spec.resources.gpus == 0

    @property
    def fewest(self) -> int:
        """GPUs that are enough for it: all of them, unless it is elastic."""
        return self.spec.resources.min_gpus or self.gpus

    @property
    def allocated_gpus(self) -> int:
        """GPUs of the live gang; 0 without one. An elastic gang may have fewer than `gpus`."""
        return self.gang.world_size if self.gang is not None and not self.cpu_only else 0

    def ran_by(self, now: datetime) -> float:
        """Seconds for which its attempts have had GPUs, the live one included."""
        live_s = (now - self.gang.allocated_at).total_seconds() if self.gang is not None else 0.0
        return self.ran_s + max(0.0, live_s)

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint of this job that can be resumed from, else its base."""
        return self.checkpoints[-1] if self.checkpoints else self.base

    @property
    def resume(self) -> CheckpointRef | None:
        """Where the next attempt starts; None: from the beginning."""
        if self.spec.checkpoint.resume == "never" and not self.restored:
            return self.base
        return self.newest


@dataclass(frozen=True, slots=True)
class ReservedGpus:
    """GPUs by node that are being freed for a waiting job, and until when they are kept for it.

    `reason` and `victims` are those of its `gpus.reserved`.
    """

    nodes: tuple[tuple[str, int], ...]
    until: datetime
    reason: str
    victims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one gang. Equal demands fit or fail together.

    `fewest` GPUs are enough for an elastic gang, which may have one of `counts`, or any number
    from its fewest up if that is empty; `widest` is the level that it must not pass. `team`: whose
    it is, where some nodes do not mix teams; else equal gangs of two teams are equal demands.
    `gpus_per_worker`: so many of them lie together on one node; all numbers are multiples of it.
    """

    gpus: int
    gpu_types: tuple[str, ...] = ()
    cpus_per_gpu: float = 0.0
    memory_per_gpu_gb: float = 0.0
    widest: str = CLUSTER
    avoid: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    fewest: int | None = None
    counts: tuple[int, ...] = ()
    team: str = ""
    gpus_per_worker: int = 1

    def at_most(self, gpus: int) -> Demand:
        """The same for so many GPUs at most, of what it may have; never below its fewest."""
        if gpus >= self.gpus or self.fewest is None:
            return self
        most = max(self.whole(gpus), self.fewest)
        if self.counts:
            most = self.counts[bisect_right(self.counts, most) - 1]
        return replace(self, gpus=most)

    def least(self) -> Demand:
        """The same for its fewest GPUs and no more."""
        if self.fewest is None:
            return self
        return replace(self, gpus=self.fewest, fewest=None, counts=())

    def smaller(self) -> Sequence[int]:
        """Smaller sizes than `gpus` that it may have, rising; none for one that is not elastic."""
        if self.fewest is None:
            return ()
        if self.counts:
            return self.counts[: bisect_right(self.counts, self.gpus - 1)]
        return range(self.fewest, self.gpus, self.gpus_per_worker)

    def kind(self) -> tuple[Any, ...]:
        """All of it but its sizes: of two demands of one kind, the larger fits no better."""
        found: tuple[Any, ...] = _KIND(self)
        return found

    def whole(self, gpus: int) -> int:
        """So many GPUs of one node, or fewer: whole workers of them."""
        return gpus - gpus % self.gpus_per_worker


_KIND = attrgetter(
    *(field.name for field in fields(Demand) if field.name not in {"gpus", "fewest", "counts"})
)


def wanted_labels(spec: JobSpec) -> tuple[tuple[str, str], ...]:
    """The labels that its nodes must have, by name; IMAGES is one for a job in an image."""
    own = (IMAGES,) if spec.image is not None else ()
    return tuple(sorted((*spec.node_labels.items(), *own)))


def demand_of(spec: JobSpec) -> Demand:
    """The demand of a spec, wherever the job has been."""
    need, topology = spec.resources, spec.topology
    return Demand(
        gpus=need.gpus,
        gpu_types=covered_by(need.gpu_type),
        cpus_per_gpu=need.cpus_per_gpu,
        memory_per_gpu_gb=need.memory_per_gpu_gb,
        widest=topology.level if topology.mode == "required" else CLUSTER,
        labels=wanted_labels(spec),
        fewest=need.min_gpus,
        counts=need.gpu_counts or (),
        gpus_per_worker=spec.gpus_per_worker,
    )


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """The resources of one gang on a node."""

    gpus: tuple[int, ...]
    cpus: float
    memory_gb: float
    team: str = ""

    @classmethod
    def of(cls, gpus: tuple[int, ...], need: Demand | Resources, team: str) -> NodeAllocation:
        """The resources of a gang with this demand on these GPUs."""
        if isinstance(need, Resources) and need.gpus == 0:
            return cls((), need.cpus or 0.0, need.memory_gb or 0.0, team)
        count = len(gpus)
        return cls(gpus, count * need.cpus_per_gpu, count * need.memory_per_gpu_gb, team)


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a service, gateway or tracker: its release, and when that was noted last."""

    release: str
    noted_at: datetime


@dataclass(frozen=True, slots=True)
class Node:
    """A node that joined. `down` says why it takes no gangs, `down_at` since when.

    `admission` counts how often it was admitted, `led` the rendezvous that it was given.
    `drained` ones take no gangs; `moving_since`: since when gangs there move to others.
    `outdated`: the oldest accepted release, of a node whose agent is older: it takes no gangs.
    `allocations` is by job, over all incarnations: GPUs are busy until their gang is released.
    `cpu_allocations` are those of jobs without GPUs, of which no search for GPUs knows.
    """

    info: NodeInfo
    admission: int = 1
    down: str | None = None
    drained: bool = False
    moving_since: datetime | None = None
    led: int = 0
    past: tuple[str, ...] = ()
    allocations: tuple[tuple[str, NodeAllocation], ...] = ()
    down_at: datetime | None = None
    outdated: str | None = None
    cpu_allocations: tuple[tuple[str, NodeAllocation], ...] = ()

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs whose gangs have a part of it, those with GPUs first."""
        return tuple(job_id for job_id, _ in (*self.allocations, *self.cpu_allocations))

    @property
    def kept_off(self) -> bool:
        """Whether gangs are kept off it for as long as it is up."""
        return self.drained or self.outdated is not None

    @property
    def schedulable(self) -> bool:
        """Whether gangs may be placed here."""
        return self.down is None and not self.kept_off

    @property
    def standing(self) -> tuple[str, int, str | None, datetime | None, bool]:
        """Facts that change when it joins, fails, returns or is cordoned, never with its gangs."""
        return self.info.incarnation, self.admission, self.down, self.down_at, self.kept_off

    @property
    def gpu_models(self) -> tuple[tuple[int, str], ...]:
        """Its GPUs as (index, exact model), by index."""
        return tuple(sorted((gpu.index, exact_name(gpu.model)) for gpu in self.info.gpus))

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Its owner's labels by name, and IMAGES if its agent runs images."""
        own = (IMAGES,) if self.info.runs_images else ()
        return tuple(sorted((*self.info.labels.items(), *own)))
