"""Teams, nodes, the queue, the caller and the version."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from gangline_schemas.api.base import OPEN_WORD, Answer, Body
from gangline_schemas.api.jobs import Waiting
from gangline_schemas.api.questions import OrderParts
from gangline_schemas.isolation import Isolation
from gangline_schemas.limits import ShortText
from gangline_schemas.team_limits import GpuTypeLimit, Surplus, TeamConfig, TeamLimits


class Team(Answer):
    """A team's limits, and its use together with that of all teams below it."""

    team: str
    parent: str | None
    depth: int = Field(description="0 at a root of the tree.")
    gpu_limit: int
    gpu_guarantee: int
    borrow_limit: int
    weight: float
    surplus: Annotated[Surplus, OPEN_WORD] | None = Field(description="None: as its parent's.")
    gpu_types: list[GpuTypeLimit] = Field(description="Empty: the same as its parent.")
    gpu_hours_per_month: float | None
    cpu_limit: float | None = Field(
        default=None, description="CPUs of its jobs without GPUs at once; null: all."
    )
    cpu_hours_per_month: float | None = Field(
        default=None, description="Budget of jobs without GPUs; null: no budget."
    )
    job_limit: int = Field(description="Jobs that have not ended, at once.")
    gpus_used: int
    gpus_borrowed: int = Field(description="Above its limit.")
    jobs_running: int
    jobs_pending: int
    gpu_seconds: float = Field(description="Of all gangs that gave their GPUs back.")
    month: str = Field(description="The UTC month, like 2026-11.")
    gpu_hours_this_month: float = Field(description="Live gangs count up to now.")
    out_of_budget: bool = Field(description="No new gang starts before the next month.")
    cpus_used: float = Field(default=0.0, description="By its jobs without GPUs.")
    cpu_hours_this_month: float = Field(
        default=0.0, description="Of jobs without GPUs; live ones count up to now."
    )
    out_of_cpu_budget: bool = Field(
        default=False, description="No new job without GPUs starts before the next month."
    )


class TeamList(Answer):
    """Teams that the caller sees."""

    teams: list[Team]


class TeamBody(TeamLimits):
    """All limits of a team: a limit that is left out has its default."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"gpu_limit": 64, "gpu_guarantee": 32, "borrow_limit": 16}]
        },
    )

    def config(self, team: str) -> TeamConfig:
        """As the bus has it. Raises ValidationError if `team` is not an identifier."""
        return TeamConfig(team=team, **self.model_dump())


class NodeGpu(Answer):
    """One GPU; what it does as of the last heartbeat."""

    index: int
    model: str
    memory_gb: float
    utilization: float | None
    memory_used_gb: float | None
    temperature_c: float | None


class Node(Answer):
    """One node."""

    node_id: str
    status: str = Field(
        description="ready, suspected, failed, draining, cordoned, outdated, leaving, superseded "
        "or unfit"
    )
    why: str = Field(default="", description="Why it takes no gangs, where more is known.")
    straggler: str = Field(
        default="", description="The notice of a slow rank there, while its gang runs."
    )
    incarnation: str
    hostname: str
    rack: str
    block: str
    isolation: Annotated[Isolation, OPEN_WORD] = Field(
        default=Isolation.NONE, description="How well its agent keeps teams apart."
    )
    runs_images: bool = Field(
        default=False, description="Its agent runs gangs in container images."
    )
    cpus: float
    memory_gb: float
    gpus: list[NodeGpu]
    gpus_used: int
    cpus_used: float = Field(default=0.0, description="That its jobs asked for.")
    memory_allocated_gb: float = Field(default=0.0, description="That its jobs asked for.")
    jobs: list[str] = Field(description="Jobs of the caller's teams that run there.")
    last_heartbeat: datetime | None
    cpu_percent: float | None
    memory_used_gb: float | None


class NodeList(Answer):
    """Nodes, by id."""

    nodes: list[Node]
    cursor: str | None = Field(default=None, description="Continues after the last one.")


class GangOnNode(Answer):
    """The GPUs of one gang on a node."""

    job_id: str | None = Field(description="null: a job of a team that the caller does not see.")
    team: str | None
    gpus: list[int] = Field(description="Indexes of GPUs: the node's ranks, in order.")
    first_rank: int | None = Field(description="The rank on the first of these GPUs.")


class MapNode(Answer):
    """The GPUs of one node, as a map shows them."""

    node_id: str
    status: str = Field(description="As of GET /v1/nodes.")
    why: str = Field(default="", description="Why it takes no gangs, where more is known.")
    straggler: str = Field(default="", description="The notice of a slow rank there.")
    block: str
    rack: str
    model: str = Field(description="Of its GPUs; of several models, the first one's.")
    gpus: list[int] = Field(description="The indexes of its GPUs.")
    gangs: list[GangOnNode]
    utilization: list[int | None] | None = Field(
        default=None, description="Percent of each GPU, by the last heartbeat; null: not known."
    )


class LargestGang(Answer):
    """The most GPUs of one model that a gang could have now without a preemption."""

    model: str
    gpus: int
    in_one_rack: int
    on_one_node: int


class GpuMap(Answer):
    """All GPUs of the cluster, by block, rack and node."""

    at: datetime
    gpus: int
    nodes_all: int = Field(description="Nodes, also where they are not listed.")
    gpus_ready: int = Field(description="On nodes that take gangs.")
    gpus_used: int = Field(description="Allocated to gangs, on any node.")
    largest_gangs: list[LargestGang] = Field(
        description="By model. GPUs that are reserved for a waiting gang count as taken; quotas of "
        "teams are not considered."
    )
    nodes: list[MapNode]


class DrainBody(Body):
    """Whether the node takes no new gangs, and whether its gangs must move away."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"drain": True}]})
    drain: bool
    move_jobs: bool = Field(
        default=True,
        description="Gangs there move to other nodes; else they stay (a cordon).",
    )
    reason: ShortText = Field(default="", description="Why, for the audit trail.")


class Drained(Answer):
    """The node's status after the request."""

    node_id: str
    status: str


class QueueEntry(Answer):
    """One pending job. `score` is the fair-share formula's, lowest first."""

    position: int
    job_id: str
    name: str
    team: str
    user: str
    priority: int
    gpus: int
    cpus: float | None = Field(default=None, description="Of a job without GPUs: of all its nodes.")
    score: float
    waiting_since: datetime | None
    waited_s: float
    waiting: Waiting | None
    shard: int = Field(default=0, description="The scheduler's shard in whose queue it is.")
    order: OrderParts | None = Field(
        default=None, description="The terms of its score, with the order `fair` alone."
    )
    comes_first: str = Field(
        default="",
        description="restart: it restarts after a failure; guarantee: its team is owed the GPUs. "
        "Such jobs come before all others.",
    )
    first_eta: datetime | None = Field(
        default=None,
        description="The first estimate of its start in this wait; /v1/queue/outlook has new ones.",
    )


class Queue(Answer):
    """Pending jobs in the scheduler's order; positions count other teams' jobs too."""

    queue: list[QueueEntry]
    cursor: int | None = Field(default=None, description="Continues after the last one.")
    pending_jobs: int
    pending_gpus: int


class Whoami(Answer):
    """Whose token it is."""

    name: str
    role: str
    teams: list[str]
    scope: str = Field(default="admin", description="read, submit or admin.")
    via: str = Field(default="token", description="token, access-token, sign-in or job.")


class Version(Answer):
    """The version of the server and of its API."""

    version: str
    api: str
