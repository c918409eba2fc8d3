"""REST answers from the values of the live model and of history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import cast

from pydantic import ValidationError

from gangline_gateway.gang_heartbeats import GangHeartbeats, heartbeat
from gangline_gateway.history import HistoryRun
from gangline_gateway.live_model import JobDetails, LiveJob, LiveNode
from gangline_gateway.live_view import LiveView
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.cluster import Node, NodeGpu
from gangline_schemas.api.jobs import Job, JobSummary, Placed, State
from gangline_schemas.api.questions import (
    AheadJob,
    Explanation,
    JobExplained,
    PriceRange,
    WhatIf,
    WhatIfAnswer,
)
from gangline_schemas.api.runs import Final, Run
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.events.heartbeats import GpuStatus
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import INT53_MAX
from gangline_schemas.retention import reasons
from gangline_schemas.team_limits import TeamConfig


def summary(found: JobDetails, now: datetime) -> JobSummary:
    """A job as lists show it."""
    return JobSummary.model_validate(_summary(found, now))


def job(found: JobDetails, now: datetime, beats: GangHeartbeats) -> Job:
    """A job with all its fields."""
    one, progress = found.job, found.progress
    nodes = found.gang.nodes if found.gang is not None else ()
    return Job.model_validate(
        _summary(found, now)
        | {
            "metrics": finite(dict(progress.metrics)) if progress else {},
            "gpu_utilization": beats.gpu_utilization,
            "ranks": beats.ranks,
            "running_gpu_seconds": _running_gpu_seconds(found, now),
            "nodes": [Placed.model_validate(part, from_attributes=True) for part in nodes],
            "stopping": found.stopping,
            "errors": one.errors,
            "review": found.flags,
            "spec": one.spec,
        }
    )


def _running_gpu_seconds(found: JobDetails, now: datetime) -> float:
    if found.scheduled is None or found.gang is None:
        return 0.0
    held_s = (now - found.gang.allocated_at).total_seconds()
    return found.scheduled.allocated_gpus * max(0.0, held_s)


def finite(values: dict[str, float]) -> dict[str, float]:
    """JSON has no NaN and no infinity; such metrics are left out."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _summary(found: JobDetails, now: datetime) -> dict[str, object]:
    one, progress = found.job, found.progress
    total = total_steps(found)
    step = progress.step if progress else None
    values = finite(dict(progress.metrics)) if progress else {}
    remaining = None
    if one.state == "running" and progress and progress.step_s and total is not None:
        remaining = max(0.0, (total - progress.step) * progress.step_s)
    # A stall is the silence of a running attempt: other jobs have no steps to report.
    runs = one.state == "running" and progress is not None and progress.attempt == one.attempt
    elapsed = None
    if one.started_at is not None:
        elapsed = max(0.0, ((one.ended_at or now) - one.started_at).total_seconds())
    healthy = [item for item in found.checkpoints if item.status == "committed"]
    newest = max(healthy, key=lambda item: item.committed_at, default=None)
    return _same(one) | {
        "job_id": one.job_id,
        "project": one.spec.project if one.spec else None,
        "waiting": found.waiting,
        "gpus_allocated": found.scheduled.allocated_gpus if found.scheduled else 0,
        "cpus": gang_cpus(one.spec),
        "elapsed_s": elapsed,
        "estimated_remaining_s": remaining,
        "step": step,
        "total_steps": total,
        "loss": values.get("loss"),
        "lr": values.get("lr"),
        "mfu": values.get("mfu"),
        "tokens_per_s": progress.tokens_per_s if progress else None,
        "data_wait_share": progress.data_wait_share if progress else None,
        "progress_at": progress.at if progress else None,
        "stalled_since": progress.stalled_since if progress and runs else None,
        "last_checkpoint": newest,
        "failure": found.failure,
    }


def gang_cpus(spec: JobSpec | None) -> float | None:
    """The CPUs of a whole gang without GPUs; None of one with GPUs."""
    if spec is None or spec.resources.gpus:
        return None
    return spec.resources.cpu_thousandths(spec.resources.ranks) / 1000


def _same(one: LiveJob | Run) -> dict[str, object]:
    """The fields that the live model and history share."""
    return {
        name: getattr(one, name)
        for name in (
            "name", "team", "user", "state", "reason", "priority", "gpus", "attempt", "restarts",
            "submitted_at", "started_at", "ended_at", "gpu_seconds",
        )
    }  # fmt: skip


def total_steps(found: JobDetails) -> int | None:
    """The metric total_steps, else the hyperparameter steps; None if neither is known."""
    reported = found.progress.metrics.get("total_steps") if found.progress else None
    return _total_steps(reported, found.job.spec)


def _total_steps(reported: float | None, spec: JobSpec | None) -> int | None:
    value: object = reported
    if value is None and spec is not None:
        value = spec.hyperparameters.get("steps")
    if not isinstance(value, int | float) or not 1 <= value <= INT53_MAX:  # not NaN, not 10**400
        return None
    return int(value)


def checkpoints(found: JobDetails) -> list[Checkpoint]:
    """A job's checkpoints, newest first, with the reasons why committed ones are retained."""
    rows = sorted(found.checkpoints, key=lambda row: row.place)
    healthy = [row for row in rows if row.status == "committed"]
    keep = found.job.spec.checkpoint.keep if found.job.spec is not None else Retention()
    why = reasons(healthy, keep)
    needed = {(row.attempt, step) for row in healthy for step in row.refers}
    answers = []
    for row in sorted(rows, key=lambda row: (row.step, row.attempt), reverse=True):
        kept: Sequence[str] = ()
        if row.status == "committed":  # without a rule: a later checkpoint or a job needs it
            kept = why.get(row.place, ("needed",) if row.place in needed else ("in use",))
        answers.append(replace(row, retained=tuple(kept)) if kept else row)
    return answers


def interval_s(job: LiveJob) -> float | None:
    """How often the job saves: the advised interval if the job uses it, else its spec's."""
    if job.checkpoint_interval_s is not None or job.spec is None:
        return job.checkpoint_interval_s
    return job.spec.checkpoint.interval_minutes * 60


def history_spec(past: HistoryRun) -> JobSpec | None:
    """The spec of a job that only history knows; None if this version cannot read it."""
    try:
        return JobSpec.decode(past.spec)
    except ValidationError:
        return None


def history_job(
    past: HistoryRun,
    rows: Sequence[Checkpoint] = (),
    last: Mapping[str, Final] = MappingProxyType({}),
) -> Job:
    """A job that only history knows; `last` are its metrics at their last steps."""
    run, spec = past.run, history_spec(past)
    values = finite({name: final.value for name, final in last.items()})
    healthy = [row for row in rows if row.status == "committed"]
    ran = (
        (run.ended_at - run.started_at).total_seconds() if run.started_at and run.ended_at else None
    )
    return Job.model_validate(
        _same(run)
        | {
            **dict.fromkeys((
                "waiting", "estimated_remaining_s", "failure", "gpu_utilization", "ranks",
                "stopping",
            )),
            **{name: values.get(name) for name in ("loss", "lr", "mfu")},
            "step": max((final.step for final in last.values()), default=None),
            "total_steps": _total_steps(values.get("total_steps"), spec),
            "last_checkpoint": max(healthy, key=lambda row: row.committed_at, default=None),
            "job_id": run.run_id,
            "project": run.project or None,
            "elapsed_s": ran,
            "gpus_allocated": 0,
            "cpus": gang_cpus(spec),
            "metrics": values,
            "nodes": [],
            "errors": [],
            "spec": spec,
        }
    )  # fmt: skip


def node(live: LiveView, one: LiveNode, visible: frozenset[str] | None) -> Node:
    """A node, with the ids of jobs of the visible teams (None: all)."""
    beat = heartbeat(one)
    states = {gpu.index: gpu for gpu in beat.gpus} if beat else {}
    parts = one.scheduled.allocations if one.scheduled is not None else ()
    others = one.scheduled.cpu_allocations if one.scheduled is not None else ()
    every = (*parts, *others)
    info = one.info
    return Node(
        node_id=info.node_id,
        status=one.status,
        why=one.reasons,
        straggler=straggler(live, one),
        incarnation=info.incarnation,
        hostname=info.hostname,
        rack=info.rack,
        block=info.block,
        isolation=info.isolation,
        runs_images=info.runs_images,
        cpus=info.cpus,
        memory_gb=info.memory_gb,
        gpus=[
            _gpu(gpu.index, gpu.model, gpu.memory_gb, states.get(gpu.index)) for gpu in info.gpus
        ],
        gpus_used=sum(len(part.gpus) for _, part in parts),
        cpus_used=round(sum(part.cpus for _, part in every), 3),
        memory_allocated_gb=round(sum(part.memory_gb for _, part in every), 3),
        jobs=sorted(job_id for job_id, part in every if visible is None or part.team in visible),
        last_heartbeat=one.heard_at,
        cpu_percent=beat.cpu_percent if beat else None,
        memory_used_gb=beat.memory_used_gb if beat else None,
    )


def straggler(live: LiveView, one: LiveNode) -> str:
    """The notice of a slow rank there; empty when its gang does not run any more."""
    if one.notes.straggler is None:
        return ""
    job_id, attempt, text = one.notes.straggler
    job = live.scheduled(job_id)
    runs = job is not None and job.gang is not None and job.gang.attempt == attempt
    return text if runs else ""


def _gpu(index: int, model: str, memory_gb: float, state: GpuStatus | None) -> NodeGpu:
    return NodeGpu(
        index=index,
        model=model,
        memory_gb=memory_gb,
        utilization=state.utilization if state else None,
        memory_used_gb=state.memory_used_gb if state else None,
        temperature_c=state.temperature_c if state else None,
    )


def state_message(state: str, reason: str) -> str:
    """The message of a job that does not wait; a job that succeeded has no reason."""
    if state == "succeeded":
        return reason or "every rank ended with exit code 0"
    return reason or f"the job is {state}"


def explain(
    live: LiveView, found: JobDetails, team: TeamConfig | None, now: datetime
) -> Explanation:
    """The main reason with its evidence. `team`: the limits of the job's team, if known."""
    one = found.job
    evidence: dict[str, object] = {"attempt": one.attempt, "restarts": one.restarts}
    if not one.ended and found.gang is None and team is not None:
        waits_since = found.scheduled.waiting_since if found.scheduled else one.submitted_at
        waited_s = round(max(0.0, (now - waits_since).total_seconds()), 1)
        cpus = gang_cpus(one.spec)
        evidence |= (
            {"cpus_wanted": cpus, "waited_s": waited_s}
            if cpus is not None
            else {
                "gpus_wanted": one.gpus,
                "team_gpus_used": live.used_gpus[one.team],
                "team_gpu_limit": team.gpu_limit,
                "team_borrow_limit": team.borrow_limit,
                "cluster_gpus_ready": live.gpus_ready,
                "cluster_gpus_free": max(0, live.gpus_ready - live.used_gpus.total()),
                "waited_s": waited_s,
            }
        )
    if found.failure is not None:
        evidence["last_failure"] = found.failure.message
        evidence["first_failed_rank"] = found.failure.first_rank
        evidence["restarts_max"] = found.failure.restarts_max
    code, message, since = one.state, state_message(one.state, one.reason), one.started_at
    if found.waiting is not None:
        code, message, since = found.waiting.code, found.waiting.message, found.waiting.since
    elif not one.admitted and not one.ended:
        code, message, since = "admission", "waits for quota to admit it", one.submitted_at
    elif one.ended:
        since = one.ended_at
        if one.state == "failed" and found.failure is not None:
            message = found.failure.message
    return Explanation.model_validate(
        {
            "job_id": one.job_id,
            "state": cast("State", one.state),
            "code": code,
            "message": message,
            "since": since,
            "evidence": evidence,
        }
    )


def with_answer(
    found: Explanation, answer: JobExplained, visible: frozenset[str] | None
) -> Explanation:
    """Adds the scheduler's answer for a pending job, without ids of other teams' jobs."""
    outlook = answer.outlook
    note = outlook.eta_reason
    if outlook.eta is not None and outlook.eta_is == "at_least":
        note = f"at the earliest: {note}"
    return found.model_copy(
        update={
            "code": answer.code,
            "message": answer.message,
            "since": answer.since,
            "eta": outlook.eta,
            "eta_note": note,
            "waits_for": _seen(answer, visible),
        }
    )


def what_if(
    answer: WhatIfAnswer,
    notes: Sequence[str],
    visible: frozenset[str] | None,
    price: PriceRange | None,
) -> WhatIf:
    """The what-if answer, without ids of other teams' jobs."""
    waiting = answer.waiting
    victims = tuple(
        item if visible is None or item.team in visible
        else item.model_copy(update={"job_id": None, "team": None})
        for item in answer.preempts
    )  # fmt: skip
    return WhatIf(
        **dict(answer)
        | {
            "notes": tuple(notes),
            "price_per_hour": price,
            "preempts": victims,
            "waiting": None if waiting is None else _seen(waiting, visible),
        }
    )


def _seen(answer: JobExplained, visible: frozenset[str] | None) -> JobExplained:
    if visible is None:
        return answer
    ahead = tuple(
        item if item.team in visible else AheadJob(gpus=item.gpus) for item in answer.ahead
    )
    return answer.model_copy(update={"ahead": ahead})
