"""Quota's state: the fold of gangline.quota and of nothing else.

Everything here is a dict of frozen values. A job that ended leaves its id, digest and GPU time
behind for `IDS_REMEMBERED`; of rejected jobs the newest `REJECTED_KEPT` are remembered. If a job
saved a checkpoint, objects lie under its id, so this id stays taken for ever. GPU time is in whole
GPU-microseconds (`_us`), so that sums over jobs, over teams and over months are equal
(gangline_schemas.gpu_time).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from gangline_quota.core import taken
from gangline_quota.core.taken import Taken
from gangline_schemas.data_use import DataUse
from gangline_schemas.team_limits import TeamConfig

REJECTED_KEPT = 10_000
REQUESTS_KEPT = 10_000
MONTHS_KEPT = 24
"""The newest in which a team used something; before them all months are one sum, `EARLIER`.

A gang that runs while the clock is ahead is charged for all months up to then.
"""
EARLIER = ""
TEAMS_FILE_USER = "teams-file"
"""The user of requests that come from the file of teams read at the start."""
Total = Literal["charged", "forgotten", "cpu_charged", "cpu_forgotten"]


class RequestRef(NamedTuple):
    """Which request an event answers: CloudEvents' ids are unique within their source alone."""

    request_id: str
    request_source: str

    @property
    def key(self) -> str:
        """Equal for the same request, and for no other."""
        if not self.request_source:
            return self.request_id  # an answer of a release that did not name the source
        return f"{len(self.request_source)} {self.request_source} {self.request_id}"


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """An admitted job that has not ended.

    `request` is the key of its submission, `metered` its newest attempt with a meter. `saved`: a
    checkpoint of it is committed.
    """

    team: str
    digest: str
    request: str
    priority: int
    cancelled: bool = False
    metered: int = 0
    gpu_us: int = 0
    saved: bool = False
    cpu_us: int = 0


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job id that is taken since `ended_at`. `outcome` is its last state, or "rejected"."""

    team: str
    digest: str
    request: str
    outcome: str
    ended_at: datetime
    gpu_us: int = 0
    saved: bool = False
    cpu_us: int = 0


@dataclass(frozen=True, slots=True)
class Meter:
    """GPUs that one attempt holds since `allocated_at`; `cpus`: thousandths, without GPUs."""

    team: str
    gpus: int
    allocated_at: datetime
    cpus: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """The last `team.budget.changed` of a team; of `team.cpu_budget.changed`, in CPU-hours."""

    month: str
    exhausted: bool
    spent_hours: float


@dataclass(slots=True)
class State:
    """Quota's state. `ended`, `rejected` and `requests` are memories in order of insertion.

    - `from_file`: each team's last entry in the file of teams. If a restart reads the same file
      again, a later change by request stays.
    - `allocated`: GPUs under meters by team. `spent_us`: charged GPU time by team and UTC
      month (`MONTHS_KEPT`). Both leave out the teams below.
    - `cpus` and `spent_cpu_us`: the same of jobs without GPUs, in thousandths of a CPU.
    - `totals_us`: all GPU time "charged", and the part of it whose jobs are "forgotten" since;
      "cpu_charged" and "cpu_forgotten" are those of jobs without GPUs.
    - `approvals`: the valid uses of data, each with the name of its approver.
    - `unfinished`: the number of `active` jobs by team.
    - `taken`: ids of forgotten jobs that have checkpoints (taken.py).
    """

    teams: dict[str, TeamConfig] = field(default_factory=dict)
    from_file: dict[str, TeamConfig] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)
    spent_us: dict[tuple[str, str], int] = field(default_factory=dict)
    cpu_budgets: dict[str, Budget] = field(default_factory=dict)
    cpus: dict[str, int] = field(default_factory=dict)
    spent_cpu_us: dict[tuple[str, str], int] = field(default_factory=dict)
    totals_us: dict[Total, int] = field(default_factory=dict)
    active: dict[str, ActiveJob] = field(default_factory=dict)
    ended: dict[str, EndedJob] = field(default_factory=dict)
    rejected: dict[str, EndedJob] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)
    meters: dict[tuple[str, int], Meter] = field(default_factory=dict)
    requests: dict[str, None] = field(default_factory=dict)
    approvals: dict[DataUse, str] = field(default_factory=dict)
    taken: Taken = field(default_factory=dict)

    def known(self, job_id: str) -> ActiveJob | EndedJob | None:
        """The job that has this id; None: the id is free."""
        return self.active.get(job_id) or self.over(job_id)

    def over(self, job_id: str) -> EndedJob | None:
        """The ended or rejected job that has this id."""
        return self.ended.get(job_id) or self.rejected.get(job_id)

    def kept_under(self, job_id: str) -> bool:
        """Whether the job of this id is forgotten, and checkpoints of it are kept."""
        return taken.is_noted(self.taken, job_id)
