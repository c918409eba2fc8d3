"""/v1/training-jobs: submit, list, show, explain, cancel and change jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Depends, Header, Query, Response
from starlette.concurrency import run_in_threadpool

from gangline_gateway import audit, job_list, present
from gangline_gateway.admission import quota_notes
from gangline_gateway.app_context import (
    App,
    AppContext,
    Caller,
    JobId,
    answers,
    job_to_change,
    may_change,
    router,
    visible_teams,
)
from gangline_gateway.followed import NoStateError
from gangline_gateway.gang_price import price_per_hour
from gangline_gateway.history import HistoryRun
from gangline_gateway.images import image_of_run
from gangline_gateway.job_list import JobFilter, OrderBy
from gangline_gateway.live_model import JobDetails
from gangline_gateway.problems import conflict, invalid, not_found, unavailable
from gangline_gateway.quota_state import state_of
from gangline_gateway.scheduler_questions import NoAnswerError
from gangline_gateway.submit import dry_run, full, submit
from gangline_schemas.api.checkpoints import Checkpoint, CheckpointList
from gangline_schemas.api.jobs import DryRun, Job, JobCounts, JobPage, KnownState, PriorityBody
from gangline_schemas.api.questions import Explanation, WhatIf
from gangline_schemas.checkpoint import job_prefix
from gangline_schemas.events.requests import JobCancelRequested, JobPriorityRequested
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from gangline_service.tokens import Principal

jobs = router("Jobs")

EXAMPLE = {
    "name": "llama-sft",
    "team": "nlp",
    "command": ["python", "-m", "gangline_worker.training", "--config", "train.yaml"],
    "resources": {"gpus": 4},
    "strategy": "fsdp",
    "hyperparameters": {"lr": 0.0003},
}
Spec = Annotated[JobSpec, Body(openapi_examples={"training": {"value": EXAMPLE}})]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Requests with the same key create one job.",
    ),
]


@jobs.post(
    "/v1/training-jobs",
    operation_id="submitJob",
    summary="Submit a job",
    status_code=201,
    response_model=Job | DryRun,
    responses={
        200: {"model": Job | DryRun, "description": "The job existed, or it is a dry run."},
        **answers(409),
    },
)
async def submit_job(
    spec: Spec,
    response: Response,
    app: App,
    caller: Caller,
    key: IdempotencyKey = None,
    dry: Annotated[bool, Query(alias="dry_run", description="Validate only.")] = False,  # noqa: FBT002
) -> Job | DryRun:
    """Queues the job once its team's quota admits it. 422 if it can never run."""
    if dry:
        audit.note().ignored = True
        response.status_code = 200
        return await run_in_threadpool(dry_run, app, caller, spec)
    done = await submit(app, caller, spec, key)
    response.headers["Location"] = f"/v1/training-jobs/{done.job_id}"
    if not done.created:
        response.status_code = 200
    return done.answer(app)


def _filter(
    state: Annotated[list[KnownState] | None, Query(max_length=10)] = None,
    team: Annotated[str | None, Query(max_length=63)] = None,
    project: Annotated[str | None, Query(max_length=256)] = None,
    user: Annotated[str | None, Query(max_length=256)] = None,
    name: Annotated[str | None, Query(max_length=63, description="Prefix of the name.")] = None,
    text: Annotated[
        str | None, Query(max_length=256, description="Part of name, id, user or command.")
    ] = None,
) -> JobFilter:
    return JobFilter(frozenset(state or ()), team, project, user, name, text)


Filter = Annotated[JobFilter, Depends(_filter)]


@jobs.get(
    "/v1/training-jobs",
    operation_id="listJobs",
    summary="List jobs",
    response_model=JobPage,
    responses=answers(),
)
def list_jobs(
    app: App,
    caller: Caller,
    wanted: Filter,
    *,
    order_by: Annotated[
        OrderBy,
        Query(
            description="created: the newest first; started: the last started first; "
            "priority: the highest (0) first; gpus: the most first."
        ),
    ] = "created",
    reverse: Annotated[bool, Query(description="The other way round.")] = False,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> JobPage:
    """Active jobs and the last 10,000 ended ones; /v1/runs lists all."""
    view, now = app.tail.view(), app.clock()
    page, after = job_list.page(
        view, caller, wanted, order_by=order_by, reverse=reverse, limit=limit, cursor=cursor
    )
    found = [view.details(job.job_id) for job in page]
    return JobPage(
        jobs=[present.summary(item, now) for item in found if item is not None], cursor=after
    )


@jobs.get(
    "/v1/training-jobs/counts",
    operation_id="countJobs",
    summary="Count jobs by state",
    response_model=JobCounts,
    responses=answers(),
)
def count_jobs(app: App, caller: Caller, wanted: Filter) -> JobCounts:
    """Of the jobs that the list has with these filters; `state` does not matter."""
    found = job_list.counts(app.tail.view(), caller, wanted)
    return JobCounts(total=found.total(), states=dict(sorted(found.items())))


@jobs.get(
    "/v1/training-jobs/{job_id}",
    operation_id="getJob",
    summary="Show a job",
    response_model=Job,
    responses=answers(404),
)
def get_job(job_id: JobId, app: App, caller: Caller) -> Job:
    """The job's state, newest step, newest checkpoint and the reason why it waits."""
    found = app.details(job_id, caller)
    job = full(app, found) if found is not None else _history_job(app, caller, job_id)
    image = image_of_run(app, job.spec, job.team, job_id)
    return job if image is None else job.model_copy(update={"image": image})


@jobs.post(
    "/v1/training-jobs/{job_id}/cancel",
    operation_id="cancelJob",
    summary="Cancel a job",
    status_code=202,
    response_model=Job,
    responses=answers(404, 409),
)
async def cancel_job(job_id: JobId, app: App, caller: Caller) -> Job:
    """The gang saves a checkpoint and stops; then the job is cancelled. 409 if it has ended."""
    found = _active(app, caller, job_id)
    if not app.tail.view().cancelled(job_id):
        await app.request(job_id, JobCancelRequested(job_id=job_id, user=caller.name))
    return full(app, app.details(job_id, caller) or found)


@jobs.post(
    "/v1/training-jobs/{job_id}/priority",
    operation_id="setJobPriority",
    summary="Change a job's priority",
    status_code=202,
    response_model=Job,
    responses=answers(404, 409),
)
async def set_priority(job_id: JobId, body: PriorityBody, app: App, caller: Caller) -> Job:
    """Applies from the scheduler's next pass on. 409 if the job has ended."""
    found = _active(app, caller, job_id)
    if found.job.priority != body.priority:
        event = JobPriorityRequested(job_id=job_id, priority=body.priority, user=caller.name)
        await app.request(job_id, event)
        await app.tail.until(
            lambda live: True if live.jobs[job_id].priority == body.priority else None,
            app.answer_wait_s,
        )
    return full(app, app.details(job_id, caller) or found)


@jobs.get(
    "/v1/training-jobs/{job_id}/checkpoints",
    operation_id="listCheckpoints",
    summary="List a job's checkpoints",
    response_model=CheckpointList,
    responses=answers(404),
)
def list_checkpoints(
    job_id: JobId,
    app: App,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=40)] = None,
) -> CheckpointList:
    """Newest first, including deleted and corrupted ones.

    Also the advised checkpoint interval with its reason, once enough was measured.
    """
    after = _read_place(cursor)
    found = app.details(job_id, caller)
    if found is not None:
        rows, spec, team = present.checkpoints(found), found.job.spec, found.job.team
    else:
        past, rows = _history(app, caller, job_id)
        spec, team = present.history_spec(past), past.run.team
    rows = [row for row in rows if after is None or (row.step, row.attempt) < after]
    last = rows[limit - 1] if len(rows) > limit else None
    return CheckpointList(
        checkpoints=rows[:limit],
        prefix=None if spec is None else job_prefix(team, job_id, spec),
        cursor=f"{last.step}.{last.attempt}" if last is not None else None,
        interval_s=present.interval_s(found.job) if found is not None else None,
        advice=found.advice if found is not None else None,
    )


@jobs.get(
    "/v1/training-jobs/{job_id}/explain",
    operation_id="explainJob",
    summary="Explain a job's state",
    response_model=Explanation,
    responses=answers(404),
)
def explain_job(job_id: JobId, app: App, caller: Caller) -> Explanation:
    """The main reason with its evidence; for a job that waits, also the estimated start.

    Without an estimate, `eta_note` says why, and the rest is the scheduler's last reason.
    """
    now = app.clock()
    found = app.details(job_id, caller)
    if found is not None:
        team = _limits(app, found.job.team)
        explanation = present.explain(app.tail.view(), found, team, now)
        waits = found.scheduled is not None and found.gang is None
        return _with_estimate(app, caller, explanation) if waits else explanation
    row = history_run(app, caller, job_id).run
    return Explanation.model_validate(
        {
            "job_id": job_id,
            "state": row.state,
            "code": row.state,
            "message": present.state_message(row.state, row.reason),
            "since": row.ended_at,
            "evidence": {"attempt": row.attempt, "restarts": row.restarts},
        }
    )


@jobs.post(
    "/v1/what-if",
    operation_id="whatIf",
    summary="Predict a job's start",
    response_model=WhatIf,
    responses=answers(),
)
def what_if(spec: Spec, app: App, caller: Caller) -> WhatIf:
    """When and where this job would start, which jobs it would preempt and at what cost.

    Nothing is submitted. 503 if no answer is possible now, or if too many questions run.
    """
    may_change(caller, spec.team)
    notes, rejected = quota_notes(app, spec)
    if rejected:
        gpus = spec.resources.gpus
        return WhatIf(starts="never", gpus=gpus, message=notes[0], notes=tuple(notes))
    try:
        answer = app.scheduler.what_if(spec, app.clock())
    except NoAnswerError as error:
        raise unavailable("no-answer", str(error)) from None
    price = price_per_hour(answer, spec, app.tail.view(), app.prices)
    return present.what_if(answer, notes, visible_teams(caller), price)


def _limits(app: AppContext, team: str) -> TeamConfig | None:
    """The team's limits, or None if they are unknown; explain works without them."""
    try:
        return state_of(app.tail.view().quota).teams.get(team)
    except NoStateError:
        return None


def _with_estimate(app: AppContext, caller: Principal, explanation: Explanation) -> Explanation:
    try:
        answer = app.scheduler.explain(explanation.job_id, app.clock())
    except NoAnswerError as error:
        return explanation.model_copy(update={"eta_note": f"no estimate: {error}"})
    return (
        explanation
        if answer is None
        else present.with_answer(explanation, answer, visible_teams(caller))
    )


def team_of_job(app: AppContext, caller: Principal, job_id: str) -> str:
    """The team of a job that the caller may see. Raises a 404 or 503 problem."""
    found = app.details(job_id, caller)
    return history_run(app, caller, job_id).run.team if found is None else found.job.team


def history_run(app: AppContext, caller: Principal, job_id: str) -> HistoryRun:
    """A run that only history has. Raises a 404 or 503 problem."""
    row = app.history.query(lambda queries: queries.history.run(job_id, visible_teams(caller)))
    if row is None:
        raise not_found()
    return row


def _history_job(app: AppContext, caller: Principal, job_id: str) -> Job:
    """A job that only history has, with its last metrics and its checkpoints."""
    past = history_run(app, caller, job_id)
    runs = {job_id: past.run.team}
    rows, finals = app.history.query(
        lambda queries: (queries.history.checkpoints(job_id), queries.curves.latest(runs))
    )
    last = {name: of_runs[job_id] for name, of_runs in finals.items() if job_id in of_runs}
    return present.history_job(past, rows, last)


def saved_in_history(
    app: AppContext, caller: Principal, job_id: str
) -> tuple[JobSpec | None, list[Checkpoint]]:
    """The spec and checkpoints of a job that only history has, and that the caller may change.

    None: this version cannot read the spec. Raises a 403, 404 or 503 problem.
    """
    past, rows = _history(app, caller, job_id)
    may_change(caller, past.run.team)
    return present.history_spec(past), rows


def _history(
    app: AppContext, caller: Principal, job_id: str
) -> tuple[HistoryRun, list[Checkpoint]]:
    past = history_run(app, caller, job_id)
    return past, app.history.query(lambda queries: queries.history.checkpoints(job_id))


def _active(app: AppContext, caller: Principal, job_id: str) -> JobDetails:
    found = job_to_change(app, caller, job_id)
    if found.job.ended:
        raise conflict("ended", f"the job has already ended: {found.job.state}")
    return found


def _read_place(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    step, _, attempt = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() for part in (step, attempt)):
        raise invalid("cursor", "must be the cursor of an earlier page")
    return int(step), int(attempt)
