"""Requests of users: pipelines are configured, paused and removed; runs begin, end and continue.

Each request is answered once, by an event that names it: what was asked, or why it was refused.
"""

from __future__ import annotations

from gangline_pipelines.core.checks import problems
from gangline_pipelines.core.model import Pipeline, Run, RunState
from gangline_pipelines.core.naming import pipeline_key, run_id
from gangline_pipelines.core.state import PipelinePlan, spec_key
from gangline_pipelines.core.stepping import advance, stop
from gangline_pipelines.core.triggers import enqueue, no_room, skip_queued, start
from gangline_schemas.envelope import Envelope, request_key
from gangline_schemas.events.pipeline_requests import (
    PipelineConfigureRequested,
    PipelinePauseRequested,
    PipelineRemoveRequested,
    RunCancelRequested,
    RunRequested,
    RunRetryRequested,
)
from gangline_schemas.events.pipelines import (
    PipelineConfigured,
    PipelinePaused,
    PipelineRemoved,
    PipelineRequestRefused,
    PipelineUnpaused,
    RunCause,
    RunRetried,
)
from gangline_schemas.pipeline_file import PipelineSpec

PIPELINES_OF_TEAM = 1000
TRIGGERS_OF_TEAM = 2000
MOST_BYTES, BYTES_OF_TEAM = 2 << 20, 16 << 20
"""Of a pipeline's file as JSON, with all defaults, and of the files that a team's pipelines and
live runs have."""
MANUAL = "manual"

PipelineRequest = (
    PipelineConfigureRequested
    | PipelineRemoveRequested
    | PipelinePauseRequested
    | RunRequested
    | RunCancelRequested
    | RunRetryRequested
)


def take(plan: PipelinePlan, envelope: Envelope) -> None:
    """Answer a request; one that was answered leads to nothing."""
    event = envelope.data
    if request_key(envelope.source, envelope.id) in plan.state.requests:
        return
    ref = {"request_id": envelope.id, "request_source": envelope.source}
    match event:
        case PipelineConfigureRequested():
            reason = _configure(plan, event, ref)
        case RunRequested():
            reason = _run(plan, event, ref)
        case RunCancelRequested() | RunRetryRequested():
            reason = _of_run(plan, event, ref)
        case PipelineRemoveRequested() | PipelinePauseRequested():
            reason = _of_pipeline(plan, event, ref)
        case _:
            return
    if reason is not None:
        refused = PipelineRequestRefused(reason=reason, user=event.user, **ref)
        plan.add("pipelines", refused)


def _configure(
    plan: PipelinePlan, event: PipelineConfigureRequested, ref: dict[str, str]
) -> str | None:
    spec = event.spec
    found = problems(spec)
    if found:
        return "; ".join(f"{one.field}: {one.message}" for one in found[:5])
    held = plan.state.pipelines.get(pipeline_key(spec.team, spec.name))
    encoded = spec.encode()  # 1, 1.0 and true are equal, and are different files
    size = len(encoded)
    if held is not None and _spec_of(plan, held).encode() == encoded:
        revision = held.revision
    else:
        too_much = _too_much(plan, spec, size)
        if too_much is not None:
            return too_much
        used = [
            run.revision
            for run in plan.state.runs.values()
            if (run.team, run.pipeline) == (spec.team, spec.name)
        ]
        revision = max([0, *used, held.revision if held is not None else 0]) + 1
    active = _still_runs(plan, spec) if held is None else None
    configured = PipelineConfigured(
        revision=revision, spec=spec, size_bytes=size, user=event.user, active=active, **ref
    )
    plan.add(spec.name, configured)
    return None


def _still_runs(plan: PipelinePlan, spec: PipelineSpec) -> str | None:
    """The run of a pipeline that was removed; `overlap` is about it too. None: it has ended."""
    live = (plan.state.runs[run_id] for run_id in plan.state.live)
    own = [run.run_id for run in live if (run.team, run.pipeline) == (spec.team, spec.name)]
    return own[-1] if own else None


def _spec_of(plan: PipelinePlan, held: Pipeline) -> PipelineSpec:
    return plan.state.specs[spec_key(held.team, held.name, held.revision)]


def _too_much(plan: PipelinePlan, spec: PipelineSpec, size: int) -> str | None:
    """Why a file is more than its team may have; None if it is not."""
    state = plan.state
    others = [
        spec_key(one.team, one.name, one.revision)
        for one in state.pipelines.values()
        if one.team == spec.team and one.name != spec.name
    ]
    if len(others) >= PIPELINES_OF_TEAM:
        return f"team {spec.team} has {len(others)} other pipelines; remove some first"
    triggers = sum(len(state.specs[key].triggers) for key in others)
    if triggers + len(spec.triggers) > TRIGGERS_OF_TEAM:
        return (
            f"triggers: the other pipelines of team {spec.team} have {triggers:,}; "
            f"at most {TRIGGERS_OF_TEAM:,} together"
        )
    if size > MOST_BYTES:
        return f"the file has {size:,} bytes with all defaults; at most {MOST_BYTES:,}"
    live = (state.runs[run_id] for run_id in state.live)
    used = {spec_key(run.team, run.pipeline, run.revision) for run in live if run.team == spec.team}
    total = size + sum(state.sizes[key] for key in used.union(others))
    if total > BYTES_OF_TEAM:
        return (
            f"the files of team {spec.team} would have {total:,} bytes, with those of runs that "
            f"have not ended; at most {BYTES_OF_TEAM:,}"
        )
    return None


def _of_pipeline(
    plan: PipelinePlan,
    event: PipelineRemoveRequested | PipelinePauseRequested,
    ref: dict[str, str],
) -> str | None:
    held = plan.state.pipelines.get(pipeline_key(event.team, event.pipeline))
    if held is None:
        return _unknown(event.team, event.pipeline)
    given = {"team": event.team, "pipeline": event.pipeline, "user": event.user, **ref}
    if isinstance(event, PipelineRemoveRequested):
        plan.add(event.pipeline, PipelineRemoved(**given))
    elif event.paused:
        plan.add(event.pipeline, PipelinePaused(reason=f"by {event.user}", **given))
    else:
        plan.add(event.pipeline, PipelineUnpaused(**given))
    return None


def _run(plan: PipelinePlan, event: RunRequested, ref: dict[str, str]) -> str | None:
    held = plan.state.pipelines.get(pipeline_key(event.team, event.pipeline))
    if held is None:
        return _unknown(event.team, event.pipeline)
    spec = _spec_of(plan, held)
    for name in event.params:
        if name not in spec.params:
            known = ", ".join(spec.params) or "none"
            return f"params.{name}: there is no such parameter; there are: {known}"
    subject = request_key(ref["request_source"], ref["request_id"])
    shown = "".join(char if char.isprintable() else "?" for char in subject[-256:])
    cause = RunCause(kind="manual", trigger=MANUAL, subject=shown, params=event.params)
    name = run_id(held.team, held.name, MANUAL, subject)
    if name in plan.state.runs or name in plan.state.queued:
        return None  # repeated by its sender's key, after its answer was forgotten
    reason = _no_place(plan, held, spec)
    if reason is None:
        begin = enqueue if held.active else start
        begin(plan, held, name, cause, event.user, ref)
    return reason


def _no_place(plan: PipelinePlan, held: Pipeline, spec: PipelineSpec) -> str | None:
    """Why a run can neither begin nor wait now; None if it can."""
    if not held.active:
        return no_room(plan, held)
    if spec.overlap == "skip":
        return f"{held.active} runs, and overlap is skip; cancel it first"
    if spec.overlap == "queue" and len(held.queued) >= spec.limits.queued:
        return f"{held.active} runs, and {len(held.queued)} runs wait already (limits.queued)"
    return None


def _of_run(
    plan: PipelinePlan, event: RunCancelRequested | RunRetryRequested, ref: dict[str, str]
) -> str | None:
    queued = plan.state.queued.get(event.run_id)
    if queued is not None and queued.team == event.team:
        if isinstance(event, RunRetryRequested):
            return f"run {event.run_id} is queued; it begins when the run before it has ended"
        skip_queued(plan, event.run_id, f"cancelled by {event.user}", event.user, ref)
        return None
    run = plan.state.runs.get(event.run_id)
    if run is None or run.team != event.team:
        return f"there is no run {event.run_id}"
    if isinstance(event, RunCancelRequested):
        if run.state.ended:
            return f"run {event.run_id} has ended: {run.state}"
        stop(plan, event.run_id, "cancelled", f"cancelled by {event.user}", event.user, ref)
        return None
    return _retry(plan, event, run, ref)


def _retry(
    plan: PipelinePlan, event: RunRetryRequested, run: Run, ref: dict[str, str]
) -> str | None:
    if run.state not in {RunState.FAILED, RunState.CANCELLED}:
        return f"run {event.run_id} is {run.state}; only one that failed or was cancelled continues"
    if run.swept:
        return f"the outputs of run {event.run_id} were deleted (retention); start a new run"
    held = plan.state.pipelines.get(pipeline_key(run.team, run.pipeline))
    if held is None:
        return f"pipeline {run.pipeline} was removed; apply its file again first"
    if held.active:
        return f"{held.active} runs; wait for its end, or cancel it"
    if (full := no_room(plan, held)) is not None:
        return full
    plan.add(event.run_id, RunRetried(run_id=event.run_id, user=event.user, **ref))
    advance(plan, event.run_id)
    return None


def _unknown(team: str, pipeline: str) -> str:
    return f"team {team} has no pipeline {pipeline}"
