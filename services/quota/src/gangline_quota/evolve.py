"""The fold: quota's state after each event of its own log."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from gangline_quota.state import (
    ENDED_JOBS_KEPT,
    REQUESTS_KEPT,
    TEAMS_FILE_USER,
    ActiveJob,
    EndedJob,
    Meter,
    State,
    Team,
    digest_of,
)
from gangline_schemas.base import Event
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    GangMetered,
    JobAdmitted,
    JobClosed,
    JobRejected,
    PriorityAdmitted,
    RequestRefused,
    RestoreAdmitted,
    TeamConfigured,
    UsageCharged,
)


def apply(state: State, event: Event) -> State:
    """Change the state in place and return it. Raises TypeError for a foreign event."""
    _apply(event, state)
    return state


@singledispatch
def _apply(event: Event, state: State) -> None:  # noqa: ARG001 - the others' signature
    raise TypeError(f"{event.type} is no event of gangline.quota")


@_apply.register
def _(event: TeamConfigured, state: State) -> None:
    known = state.teams.get(event.config.team, Team(event.config))
    by_file = event.user == TEAMS_FILE_USER
    state.teams[event.config.team] = replace(
        known, config=event.config, from_file=event.config if by_file else known.from_file
    )
    _remember_request(state, event.request_id)


@_apply.register
def _(event: JobAdmitted, state: State) -> None:
    state.active[event.job_id] = ActiveJob(
        event.spec.team, digest_of(event.spec), event.spec.priority
    )


@_apply.register
def _(event: JobRejected, state: State) -> None:
    _remember_ended(state, event.job_id, EndedJob(event.team or "", event.digest, "rejected"))


@_apply.register
def _(event: JobClosed, state: State) -> None:
    job = state.active.pop(event.job_id, None)
    if job is not None:
        _remember_ended(state, event.job_id, EndedJob(job.team, job.digest, event.state.value))


@_apply.register
def _(event: CancelAdmitted, state: State) -> None:
    state.active[event.job_id] = replace(state.active[event.job_id], cancelled=True)
    _remember_request(state, event.request_id)


@_apply.register
def _(event: PriorityAdmitted, state: State) -> None:
    state.active[event.job_id] = replace(state.active[event.job_id], priority=event.priority)
    _remember_request(state, event.request_id)


@_apply.register(RestoreAdmitted)
@_apply.register(DrainAdmitted)
@_apply.register(RequestRefused)
def _(event: RestoreAdmitted | DrainAdmitted | RequestRefused, state: State) -> None:
    _remember_request(state, event.request_id)


@_apply.register
def _(event: GangMetered, state: State) -> None:
    state.meters[event.job_id, event.attempt] = Meter(event.team, event.gpus, event.allocated_at)
    job = state.active.get(event.job_id)
    if job is not None:
        state.active[event.job_id] = replace(job, metered=event.attempt)


@_apply.register
def _(event: UsageCharged, state: State) -> None:
    del state.meters[event.job_id, event.attempt]
    team = state.teams[event.team]
    state.teams[event.team] = replace(team, gpu_seconds=team.gpu_seconds + event.gpu_seconds)
    job = state.active.get(event.job_id)
    if job is not None:
        state.active[event.job_id] = replace(job, gpu_seconds=job.gpu_seconds + event.gpu_seconds)


def _remember_request(state: State, request_id: str) -> None:
    if request_id:
        state.requests[request_id] = None
        if len(state.requests) > REQUESTS_KEPT:
            del state.requests[next(iter(state.requests))]


def _remember_ended(state: State, job_id: str, job: EndedJob) -> None:
    state.ended[job_id] = job
    if len(state.ended) > ENDED_JOBS_KEPT:
        del state.ended[next(iter(state.ended))]
