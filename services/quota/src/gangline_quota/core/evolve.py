"""The fold: quota's state after each event of its own log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gangline_bus.decision import Fold
from gangline_quota.core.state import (
    REJECTED_KEPT,
    REQUESTS_KEPT,
    TEAMS_FILE_USER,
    ActiveJob,
    Budget,
    EndedJob,
    Meter,
    RequestRef,
    State,
    Total,
)
from gangline_schemas import gpu_time
from gangline_schemas.catalog import Topic
from gangline_schemas.data_use import DataUse
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    GangMetered,
    JobAdmitted,
    JobClosed,
    JobIdTaken,
    JobRejected,
    PinAdmitted,
    PriorityAdmitted,
    RequestRefused,
    RestoreAdmitted,
    SnapshotApproved,
    SnapshotWithdrawn,
    TeamBudgetChanged,
    TeamConfigured,
    UsageCharged,
)
from gangline_schemas.memory import IDS_REMEMBERED, forget_old

fold: Fold[State] = Fold(Topic.QUOTA)
"""How the events of gangline.quota change the state, in place."""


@fold.on(TeamConfigured)
def _(state: State, event: TeamConfigured, _at: datetime) -> None:
    state.teams[event.config.team] = event.config
    if event.user == TEAMS_FILE_USER:
        state.from_file[event.config.team] = event.config
    _remember_request(state, RequestRef(event.request_id, event.request_source))


@fold.on(TeamBudgetChanged)
def _(state: State, event: TeamBudgetChanged, _at: datetime) -> None:
    state.budgets[event.team] = Budget(event.month, event.exhausted, event.spent_gpu_hours)


@fold.on(SnapshotApproved)
def _(state: State, event: SnapshotApproved, _at: datetime) -> None:
    state.approvals[DataUse(event.snapshot, event.project, event.purpose)] = event.user
    _remember_request(state, RequestRef(event.request_id, event.request_source))


@fold.on(SnapshotWithdrawn)
def _(state: State, event: SnapshotWithdrawn, _at: datetime) -> None:
    state.approvals.pop(DataUse(event.snapshot, event.project, event.purpose), None)
    _remember_request(state, RequestRef(event.request_id, event.request_source))


@fold.on(JobAdmitted)
def _(state: State, event: JobAdmitted, _at: datetime) -> None:
    team = event.spec.team
    state.active[event.job_id] = ActiveJob(
        team, event.spec.digest(), _key(event), event.spec.priority
    )
    state.unfinished[team] = state.unfinished.get(team, 0) + 1


@fold.on(JobIdTaken)
def _(state: State, event: JobIdTaken, _at: datetime) -> None:
    active, ended = state.active.get(event.job_id), state.ended.get(event.job_id)
    if active is not None:
        state.active[event.job_id] = replace(active, saved=True)
    elif ended is not None:
        state.ended[event.job_id] = replace(ended, saved=True)
    else:
        state.taken[event.job_id] = None


@fold.on(CancelAdmitted)
def _(state: State, event: CancelAdmitted, _at: datetime) -> None:
    state.active[event.job_id] = replace(state.active[event.job_id], cancelled=True)
    _remember_request(state, RequestRef(event.request_id, event.request_source))


@fold.on(PriorityAdmitted)
def _(state: State, event: PriorityAdmitted, _at: datetime) -> None:
    state.active[event.job_id] = replace(state.active[event.job_id], priority=event.priority)
    _remember_request(state, RequestRef(event.request_id, event.request_source))


def _answered(
    state: State,
    event: RestoreAdmitted | PinAdmitted | DrainAdmitted | RequestRefused,
    _at: datetime,
) -> None:
    _remember_request(state, RequestRef(event.request_id, event.request_source))


fold.on(RestoreAdmitted)(_answered)
fold.on(PinAdmitted)(_answered)
fold.on(DrainAdmitted)(_answered)
fold.on(RequestRefused)(_answered)


@fold.on(GangMetered)
def _(state: State, event: GangMetered, _at: datetime) -> None:
    state.meters[event.job_id, event.attempt] = Meter(event.team, event.gpus, event.allocated_at)
    state.allocated[event.team] = state.allocated.get(event.team, 0) + event.gpus
    job = state.active.get(event.job_id)
    if job is not None:
        state.active[event.job_id] = replace(job, metered=event.attempt)


@fold.on(UsageCharged)
def _(state: State, event: UsageCharged, _at: datetime) -> None:
    meter = state.meters.pop((event.job_id, event.attempt))
    state.allocated[meter.team] -= meter.gpus
    if not state.allocated[meter.team]:
        del state.allocated[meter.team]
    amount = gpu_time.gpu_us(event.gpus, event.allocated_at, event.released_at)
    _add_total(state, "charged", amount)
    for month, part in gpu_time.by_month(event.gpus, event.allocated_at, event.released_at):
        key = (event.team, month)
        state.spent_us[key] = state.spent_us.get(key, 0) + part
    active, ended = state.active.get(event.job_id), state.ended.get(event.job_id)
    if active is not None:
        state.active[event.job_id] = replace(active, gpu_us=active.gpu_us + amount)
    elif ended is not None:
        state.ended[event.job_id] = replace(ended, gpu_us=ended.gpu_us + amount)
    else:
        _add_total(state, "forgotten", amount)


def _add_total(state: State, kind: Total, amount: int) -> None:
    state.totals_us[kind] = state.totals_us.get(kind, 0) + amount


def _remember_request(state: State, ref: RequestRef) -> None:
    if ref.request_id:
        state.requests[ref.key] = None
        if len(state.requests) > REQUESTS_KEPT:
            del state.requests[next(iter(state.requests))]


def _key(event: JobAdmitted | JobRejected) -> str:
    return RequestRef(event.request_id, event.request_source).key


@fold.on(JobClosed)
def _(state: State, event: JobClosed, at: datetime) -> None:
    job = state.active.pop(event.job_id, None)
    if job is None:
        return
    state.unfinished[job.team] -= 1
    if not state.unfinished[job.team]:
        del state.unfinished[job.team]
    state.ended[event.job_id] = EndedJob(
        job.team, job.digest, job.request, event.state.value, at, job.gpu_us, job.saved
    )
    for job_id, old in forget_old(state.ended, lambda ended: ended.ended_at, at, IDS_REMEMBERED):
        _add_total(state, "forgotten", old.gpu_us)
        if old.saved:
            state.taken[job_id] = None


@fold.on(JobRejected)
def _(state: State, event: JobRejected, at: datetime) -> None:
    state.rejected[event.job_id] = EndedJob(
        event.team or "", event.digest, _key(event), "rejected", at
    )
    if len(state.rejected) > REJECTED_KEPT:
        del state.rejected[next(iter(state.rejected))]
