"""The values that the fault manager thinks in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from gangline_bus.ports import TopicPartition
from gangline_faults.core.policy.trends import HealthReadings
from gangline_schemas.events.faults import FailureCause, FailureClass, GangFailed
from gangline_schemas.events.heartbeats import RankStatus
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.failure_policy import RestartPolicy


class Health(StrEnum):
    """The condition of one incarnation of a node."""

    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    FAILED = "failed"
    LEFT = "left"  # it said goodbye: final for this incarnation

    @property
    def live(self) -> bool:
        """Whether heartbeats are expected and ranks may run there."""
        return self in {Health.HEALTHY, Health.SUSPECTED}


@dataclass(frozen=True, slots=True)
class Node:
    """A node by its newest known incarnation; `past` are those that it superseded."""

    incarnation: str
    health: Health = Health.HEALTHY
    past: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotedExit:
    """An exit whose cause is not clear yet, and when it was noted."""

    exited: WorkerExited
    noted_at: datetime


@dataclass(frozen=True, slots=True)
class Gang:
    """The live attempt of a job. `nodes` and `incarnations` are in the same order.

    It makes progress from `since` on: its allocation, or its recovery after a failure. `troubles`
    and `straggling` are what was said of it already: of its training, and of these ranks. `drained`
    is when it was last asked to save since a node of it is drained.
    """

    attempt: int
    nodes: tuple[str, ...]
    incarnations: tuple[str, ...]
    restart: RestartPolicy
    team: str = ""
    world_size: int = 0
    resume_step: int | None = None
    since: datetime | None = None
    noted: NotedExit | None = None
    failed: bool = False
    troubles: tuple[str, ...] = ()
    straggling: tuple[int, ...] = ()
    drained: datetime | None = None

    @property
    def places(self) -> set[tuple[str, str]]:
        """The nodes and incarnations that its ranks live in."""
        return set(zip(self.nodes, self.incarnations, strict=True))

    def runs_on(self, node_id: str, incarnation: str) -> bool:
        """Whether ranks of this gang live in that incarnation of the node."""
        return (node_id, incarnation) in zip(self.nodes, self.incarnations, strict=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of an attempt, before the restart budget is applied."""

    cause: FailureCause
    failure_class: FailureClass
    message: str
    node_id: str | None = None
    exited: WorkerExited | None = None
    avoid_nodes: tuple[str, ...] = ()
    blamed_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blame:
    """A failure that a node is to blame for."""

    job_id: str
    failure_class: FailureClass
    at: datetime


@dataclass(frozen=True, slots=True)
class JobHistory:
    """How often a job failed and how far it got: what its next restart is judged by.

    `furthest_step` is of attempts that failed; `advanced`: since the last of them a checkpoint was
    committed beyond the one before. `commits` count towards the next restart that comes back.
    `nan_rollbacks` restarts after a loss that was not finite were from the checkpoint of
    `nan_step`; None: from the beginning.
    """

    failures: int = 0
    restarts_used: int = 0
    restarts_idle: int = 0
    data_failures: int = 0
    furthest_step: int | None = None
    advanced: bool = False
    commits: int = 0
    committed_attempt: int = 0
    committed_step: int | None = None
    committed_at: datetime | None = None
    nan_step: int | None = None
    nan_rollbacks: int = 0


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """A failure whose job has not recovered yet, and how far its next attempt is."""

    failed: GangFailed
    next_attempt: int | None = None
    allocated_at: datetime | None = None
    resume_step: int | None = None
    running_at: datetime | None = None


TINY_S = 1e-6
"""Work below a microsecond is no measurement."""
MOST_SCORE = 1e6
Against = Literal["gang", "itself"]


def relative(usual_s: float, own_s: float) -> float:
    """How quick work is against the usual; 0.5: it takes twice as long."""
    return min(usual_s / own_s, MOST_SCORE)


@dataclass(frozen=True, slots=True)
class Score:
    """One rank, whose work is at least `TINY_S`. 1 is as usual; at 0.5 it takes twice as long."""

    rank: int
    node_id: str
    busy_s: float
    gang_s: float
    best_s: float

    @property
    def relative(self) -> float:
        """Against its gang."""
        return relative(self.gang_s, self.busy_s)

    @property
    def individual(self) -> float:
        """Against itself."""
        return relative(self.best_s, self.busy_s)


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is slow since then, by which score, and the score of its host."""

    score: Score
    against: Against
    host: float
    since: datetime

    @property
    def usual_s(self) -> float:
        """The work that it is compared to."""
        return self.score.gang_s if self.against == "gang" else self.score.best_s


@dataclass(slots=True)
class GangReports:
    """The latest heartbeats of an attempt's nodes about its ranks, and their times.

    `troubled` are the nodes whose latest heartbeat has a trouble of a rank. `best_s` is the least
    work of each rank in a step, `slow` are the ranks that are slow now.
    """

    attempt: int
    ranks: dict[str, tuple[datetime, tuple[RankStatus, ...]]] = field(default_factory=dict)
    troubled: dict[str, None] = field(default_factory=dict)
    best_s: dict[int, float] = field(default_factory=dict)
    slow: dict[int, Straggler] = field(default_factory=dict)


@dataclass(slots=True)
class Liveness:
    """The soft state: the heartbeats since this process took over. Lost with it.

    `since` is when the present stretch of uninterrupted heartbeats began; None before the first
    Tick after a takeover. `gaps` are the latest times in it without any heartbeat: their ends, and
    for how many seconds the clocks stood still (policy/silence.py). `strangers`: unknown nodes with
    heartbeats, each with its incarnation and since when. `read_until`: until when each partition
    of heartbeats was read, and `places`: the one in which a node's latest heartbeat was.
    """

    since: datetime | None = None
    last_tick: datetime | None = None
    last_signal: datetime | None = None
    read_until: Mapping[TopicPartition, datetime] = field(default_factory=dict)
    places: dict[str, TopicPartition] = field(default_factory=dict)
    seen: dict[str, datetime] = field(default_factory=dict)
    strangers: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    watched: dict[str, datetime] = field(default_factory=dict)
    gaps: tuple[tuple[datetime, float], ...] = ()
    gangs: dict[str, GangReports] = field(default_factory=dict)
    health: dict[str, HealthReadings] = field(default_factory=dict)

    @property
    def of_nodes(self) -> tuple[dict[str, Any], ...]:
        """Everything that is known by node, except strangers."""
        return self.seen, self.watched, self.places, self.health
