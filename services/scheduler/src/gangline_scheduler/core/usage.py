"""The present and past use of teams, along the tree: part of the fold.

A gang counts for its team and for every team above it. Cost: the depth of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from math import log

from gangline_scheduler.core.model import Gang, Job
from gangline_scheduler.core.state import State
from gangline_scheduler.core.team_model import Team, Usage
from gangline_schemas.teams import upwards

HALF_LIFE_S = 7 * 24 * 3600.0


def take(state: State, job: Job, gang: Gang, at: datetime) -> None:
    """A gang of this job got its GPUs."""
    if job.cpu_only:
        _count_cpus(state, job, gang, 1)
    else:
        _change(state, job, gang, at, 1)


def give_back(state: State, job: Job, gang: Gang, at: datetime) -> None:
    """It gave them back. A team that had too many since its limit was lowered is excused less."""
    if job.cpu_only:
        _count_cpus(state, job, gang, -1)
        return
    _change(state, job, gang, at, -1)
    for name in line_of(state.teams, job.team):
        team = state.teams[name]
        if team.excused:
            used = state.used[name]
            still = used if used > team.config.ceiling else 0
            state.teams[name] = replace(team, excused=still)


def recount(state: State) -> None:
    """Count the use of each team again. O(jobs with a gang)."""
    state.used.clear()
    state.used_models.clear()
    state.used_cpus.clear()
    for job_id in state.live:
        job = state.jobs[job_id]
        if job.gang is not None:
            _count(state, job, job.gang, 1)
    for job_id in state.cpu_live:
        job = state.jobs[job_id]
        if job.gang is not None:
            _count_cpus(state, job, job.gang, 1)


def move(state: State, at: datetime) -> None:
    """The tree has changed: who stands above whom from now on; the past stays where it was."""
    recount(state)
    for name, known in state.usage.items():
        state.usage[name] = Usage(past=_decayed(known, at), at=at)
    for job_id in state.live:
        job = state.jobs[job_id]
        if job.gang is not None:
            _charge(state, job, job.gang, at, 1)


def average(usage: Usage, now: datetime) -> tuple[float, float, float]:
    """GPUs, CPUs and GB that were used on average, the past weighed by its half-life."""
    gpus, cpus, memory_gb = _decayed(usage, now)
    full = HALF_LIFE_S / log(2)
    return gpus / full, cpus / full, memory_gb / full


def line_of(teams: Mapping[str, Team], team: str) -> Iterable[str]:
    """The team and those above it; nothing for one that is not known."""
    return upwards(teams, team)


def _change(state: State, job: Job, gang: Gang, at: datetime, sign: int) -> None:
    _count(state, job, gang, sign)
    _charge(state, job, gang, at, sign)


def _charge(state: State, job: Job, gang: Gang, at: datetime, sign: int) -> None:
    """Its GPUs, CPUs and memory are used by the teams of its line, or no longer."""
    need = job.spec.resources
    gpus = sign * gang.world_size
    change = (float(gpus), gpus * need.cpus_per_gpu, gpus * need.memory_per_gpu_gb)
    for name in line_of(state.teams, job.team):
        before = state.usage.get(name, Usage())
        rate = tuple(old + new for old, new in zip(before.rate, change, strict=True))
        state.usage[name] = Usage(rate, _decayed(before, at), at)  # type: ignore[arg-type]


def _count(state: State, job: Job, gang: Gang, sign: int) -> None:
    for name in [*line_of(state.teams, job.team)] or [job.team]:
        state.used[name] = state.used.get(name, 0) + sign * gang.world_size
        for model, count in gang.models:
            key = (name, model)
            state.used_models[key] = state.used_models.get(key, 0) + sign * count


def _count_cpus(state: State, job: Job, gang: Gang, sign: int) -> None:
    """Of a gang without GPUs: it counts for no share of those with GPUs."""
    cpus = sign * job.spec.resources.cpu_thousandths(gang.world_size)
    for name in [*line_of(state.teams, job.team)] or [job.team]:
        state.used_cpus[name] = state.used_cpus.get(name, 0) + cpus


def _decayed(usage: Usage, now: datetime) -> tuple[float, float, float]:
    """The weighed past as of `now`: earlier use fades, use since then is added."""
    if usage.at is None:
        return usage.past
    left = 0.5 ** (max(0.0, (now - usage.at).total_seconds()) / HALF_LIFE_S)
    gained = HALF_LIFE_S / log(2) * (1.0 - left)
    first, second, third = (
        past * left + rate * gained for past, rate in zip(usage.past, usage.rate, strict=True)
    )
    return first, second, third
