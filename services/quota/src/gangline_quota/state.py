"""What quota knows: the fold of gangline.quota and of nothing else.

Everything here is a frozen value or a dict of frozen values. Jobs that ended leave only their id
and digest behind, for the last `ENDED_JOBS_KEPT` of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gangline_schemas.job import JobSpec, TeamConfig

ENDED_JOBS_KEPT = 100_000
REQUESTS_KEPT = 10_000
TEAMS_FILE_USER = "teams-file"
"""The user of requests that come from the file of teams read at the start."""


@dataclass(frozen=True, slots=True)
class Team:
    """A team's limits, and the GPU time of all its released gangs in seconds.

    `from_file` is what the file of teams said last: the same file read again after a restart
    changes nothing, so a later change by request stays.
    """

    config: TeamConfig
    gpu_seconds: float = 0.0
    from_file: TeamConfig | None = None


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """An admitted job that has not ended. `metered` is its newest attempt with a meter."""

    team: str
    digest: str
    priority: int
    cancelled: bool = False
    metered: int = 0
    gpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job id that is taken. `outcome` is its last state, or "rejected"."""

    team: str
    digest: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Meter:
    """GPUs that one attempt holds since `allocated_at`."""

    team: str
    gpus: int
    allocated_at: datetime


@dataclass(slots=True)
class State:
    """Quota's state. `ended` and `requests` are bounded memories in order of insertion."""

    teams: dict[str, Team] = field(default_factory=dict)
    active: dict[str, ActiveJob] = field(default_factory=dict)
    ended: dict[str, EndedJob] = field(default_factory=dict)
    meters: dict[tuple[str, int], Meter] = field(default_factory=dict)
    requests: dict[str, None] = field(default_factory=dict)


def digest_of(spec: JobSpec) -> str:
    """Equal for equal specs: the sha256 of the canonical JSON, in hex.

    Fields at their default are left out, so that a later version with more fields agrees.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def fingerprint(state: State) -> str:
    """The same for equal states, whatever the order in which dicts were filled; sha256 in hex."""
    lines: list[str] = []
    lines += _lines("team", ((name, repr(team)) for name, team in state.teams.items()))
    lines += _lines("active", ((job_id, repr(job)) for job_id, job in state.active.items()))
    lines += _lines("ended", ((job_id, repr(job)) for job_id, job in state.ended.items()))
    lines += _lines("meter", ((repr(key), repr(meter)) for key, meter in state.meters.items()))
    lines += _lines("request", ((request_id, "") for request_id in state.requests))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _lines(kind: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{kind} {name} {value}" for name, value in sorted(entries)]
