"""The fold: quota's state after each event of its own log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from gangline_bus.decision import Fold
from gangline_quota.core import taken
from gangline_quota.core.state import (
    EARLIER,
    MONTHS_KEPT,
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
    TeamCpuBudgetChanged,
    UsageCharged,
)
from gangline_schemas.memory import IDS_REMEMBERED, forget_old, keep_newest

KeyT = TypeVar("KeyT")

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


@fold.on(TeamCpuBudgetChanged)
def _(state: State, event: TeamCpuBudgetChanged, _at: datetime) -> None:
    spent = event.spent_cpu_hours
    state.cpu_budgets[event.team] = Budget(event.month, event.exhausted, spent)


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
        taken.note(state.taken, event.job_id)


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
    cpus = _thousandths(event.cpus)
    meter = Meter(event.team, event.gpus, event.allocated_at, cpus)
    state.meters[event.job_id, event.attempt] = meter
    _take(state.allocated, event.team, event.gpus)
    _take(state.cpus, event.team, cpus)
    job = state.active.get(event.job_id)
    if job is not None:
        state.active[event.job_id] = replace(job, metered=event.attempt)


@fold.on(UsageCharged)
def _(state: State, event: UsageCharged, _at: datetime) -> None:
    meter = state.meters.pop((event.job_id, event.attempt))
    _take(state.allocated, meter.team, -meter.gpus)
    _take(state.cpus, meter.team, -meter.cpus)
    held = event.allocated_at, event.released_at
    gpu_us, cpu_us = gpu_time.gpu_us(event.gpus, *held), gpu_time.gpu_us(meter.cpus, *held)
    _add_total(state, "charged", gpu_us)
    _spend(state.spent_us, event.team, gpu_time.by_month(event.gpus, *held))
    if meter.cpus:
        _add_total(state, "cpu_charged", cpu_us)
        _spend(state.spent_cpu_us, event.team, gpu_time.by_month(meter.cpus, *held))
    active, ended = state.active.get(event.job_id), state.ended.get(event.job_id)
    if active is not None:
        more = replace(active, gpu_us=active.gpu_us + gpu_us, cpu_us=active.cpu_us + cpu_us)
        state.active[event.job_id] = more
    elif ended is not None:
        last = replace(ended, gpu_us=ended.gpu_us + gpu_us, cpu_us=ended.cpu_us + cpu_us)
        state.ended[event.job_id] = last
    else:
        _add_total(state, "forgotten", gpu_us)
        if cpu_us:
            _add_total(state, "cpu_forgotten", cpu_us)


def _spend(spent: dict[tuple[str, str], int], team: str, parts: Iterable[tuple[str, int]]) -> None:
    """Add a team's use by month. With its first use in a month, old months become one sum.

    The newest months with use are kept, however far apart they are. A clock that is ahead names a
    month that has not come; the present one must be known when it is right again.
    """
    for month, part in parts:
        first = (team, month) not in spent
        spent[team, month] = spent.get((team, month), 0) + part
        if first:
            months = sorted(key for key in spent if key[0] == team and key[1] != EARLIER)
            old = months[:-MONTHS_KEPT]
            if old:
                earlier = sum(spent.pop(key) for key in old)
                spent[team, EARLIER] = spent.get((team, EARLIER), 0) + earlier


def _thousandths(cpus: float | None) -> int:
    return round((cpus or 0.0) * 1000)


def _take(held: dict[KeyT, int], key: KeyT, change: int) -> None:
    """Add to a sum, and drop one that is 0."""
    held[key] = held.get(key, 0) + change
    if not held[key]:
        del held[key]


def _add_total(state: State, kind: Total, amount: int) -> None:
    state.totals_us[kind] = state.totals_us.get(kind, 0) + amount


def _remember_request(state: State, ref: RequestRef) -> None:
    if ref.request_id:
        state.requests[ref.key] = None
        keep_newest(state.requests, REQUESTS_KEPT)


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
        job.team, job.digest, job.request, event.state.value, at, job.gpu_us, job.saved, job.cpu_us
    )
    for job_id, old in forget_old(state.ended, lambda ended: ended.ended_at, at, IDS_REMEMBERED):
        _add_total(state, "forgotten", old.gpu_us)
        if old.cpu_us:
            _add_total(state, "cpu_forgotten", old.cpu_us)
        if old.saved:
            taken.note(state.taken, job_id)


@fold.on(JobRejected)
def _(state: State, event: JobRejected, at: datetime) -> None:
    state.rejected[event.job_id] = EndedJob(
        event.team or "", event.digest, _key(event), "rejected", at
    )
    keep_newest(state.rejected, REJECTED_KEPT)
