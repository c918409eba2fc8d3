"""/training-runs and /v1/runs: submit, metrics, restore, history and comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

from fastapi import Header, Path, Query, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from gangline_bus.murmur import partition_of
from gangline_bus.ports import Record, TopicPartition
from gangline_gateway import sse
from gangline_gateway.app_context import (
    App,
    AppContext,
    Caller,
    RunId,
    answers,
    job_to_change,
    router,
    visible_teams,
)
from gangline_gateway.events import event_of
from gangline_gateway.history import RunFilter
from gangline_gateway.history_access import Queries
from gangline_gateway.large_answer import json_of
from gangline_gateway.problems import ProblemError, conflict, invalid, not_found
from gangline_gateway.routes.comparisons import (
    MetricNames,
    OrderBy,
    Points,
    Where,
    curves_of,
    team_of_run,
)
from gangline_gateway.routes.jobs import IdempotencyKey, Spec, saved_in_history, team_of_job
from gangline_gateway.routes.logs import STREAM, LastEventId
from gangline_gateway.routes.streams import live_part, resumed, start_of_history
from gangline_gateway.run_list import runs_page
from gangline_gateway.scheduling import starts_of_ended
from gangline_gateway.submit import submit
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.jobs import KnownState
from gangline_schemas.api.runs import (
    Curve,
    Curves,
    Restored,
    RunCreated,
    RunKind,
    RunPage,
    StepMetrics,
)
from gangline_schemas.catalog import Topic
from gangline_schemas.events.progress import RunProgress, progress_key
from gangline_schemas.events.requests import JobRestoreRequested
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.job import JobSpec
from gangline_service.tokens import Principal

runs = router("Runs")

HISTORY_POINTS = 1000


@runs.post(
    "/training-runs",
    operation_id="createRun",
    summary="Submit a job as a run",
    status_code=201,
    response_model=RunCreated,
    responses={
        200: {"model": RunCreated, "description": "The job existed."},
        **answers(409),
    },
)
async def create_run(
    spec: Spec, response: Response, app: App, caller: Caller, key: IdempotencyKey = None
) -> RunCreated:
    """The same body as POST /v1/training-jobs; the run's id is its job's id."""
    done = await submit(app, caller, spec, key)
    response.headers["Location"] = f"/v1/training-jobs/{done.job_id}"
    if not done.created:
        response.status_code = 200
    return RunCreated.model_validate({"run_id": done.job_id, "state": done.state})


@runs.get(
    "/training-runs/{run_id}/metrics",
    operation_id="getRunMetrics",
    summary="A run's metrics, live",
    response_model=Curves,
    responses={200: STREAM, **answers(404)},
)
async def get_metrics(
    run_id: RunId,
    app: App,
    caller: Caller,
    name: MetricNames = None,
    points: Points = HISTORY_POINTS,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
    last_event_id: LastEventId = None,
) -> Curves | StreamingResponse:
    """Server-sent events: `history` (curves so far), `step` for each new step, `end`.

    Also `progress`, at most once a second: the event `run.progress`, with the newest step.

    With `Accept: application/json`, only the curves. A step can come twice between history and
    live; the later one counts.
    """
    names = tuple(name or ())
    if "application/json" in (accept or "") and sse.MEDIA_TYPE not in (accept or ""):
        return await asyncio.to_thread(_curves_so_far, app, caller, run_id, names, points)
    team = await asyncio.to_thread(team_of_job, app, caller, run_id)
    parts = metric_stream(app, (run_id, team), names, points, last_event_id)
    return app.streams.response(parts, caller.name)


def _curves_so_far(
    app: AppContext, caller: Principal, run_id: str, names: tuple[str, ...], points: int
) -> Curves:
    runs = {run_id: team_of_run(app, caller, run_id)}
    found = app.history.query(lambda q: curves_of(q, runs, names, points))
    return Curves(curves=found)


def metric_stream(
    app: AppContext,
    run: tuple[str, str],
    names: tuple[str, ...],
    points: int,
    last_event_id: str | None,
) -> AsyncGenerator[str, None]:
    """Curves so far of a run and team, unless resumed, and new steps. Raises a 422 problem."""
    run_id, team = run
    steps = _place(app, Topic.STEPS, run_id)
    progress = _place(app, Topic.PROGRESS, progress_key(team, run_id))
    at = resumed(app, last_event_id, [steps, progress])
    if at is not None and not at[progress]:  # no event came yet: only new ones matter
        at |= app.tail.ends([progress])
    return _metric_parts(app, run, names, points, (steps, progress), at)


def _place(app: AppContext, topic: Topic, key: str) -> TopicPartition:
    places = app.tail.places(topic)
    return places[partition_of(key.encode(), len(places))]


async def _metric_parts(
    app: AppContext,
    run: tuple[str, str],
    names: tuple[str, ...],
    points: int,
    places: tuple[TopicPartition, TopicPartition],
    at: dict[TopicPartition, int] | None,
) -> AsyncGenerator[str, None]:
    run_id, team = run
    place, progress = places
    if at is None:
        known, curves = await asyncio.to_thread(_history, app, run, names, points, place)
        at = start_of_history(app, known, [place]) | app.tail.ends([progress])
        yield f"event: history\ndata: {curves}\n\n"

    def render(record: Record) -> Iterable[tuple[str, Any]]:
        event = event_of(record)
        if not isinstance(event, WorkerStep | RunProgress) or (event.run_id, event.team) != run:
            return
        if isinstance(event, RunProgress):
            yield "progress", event.data()
            return
        for index, step in enumerate(event.step):
            values = {
                key: column[index]
                for key, column in event.metrics.items()
                if column[index] is not None and (not names or key in names)
            }
            if values:
                found = StepMetrics(
                    step=step,
                    time_ms=event.time_ms[index],
                    metrics=values,
                    attempt=event.attempt,
                    rank=event.rank,
                )
                yield "step", found.model_dump(mode="json")

    keys = {place.topic: run_id.encode(), progress.topic: progress_key(team, run_id).encode()}
    async with aclosing(
        live_part(app, at, lambda record: record.key == keys[record.topic], render, run_id)
    ) as parts:
        async for part in parts:
            yield part


def _history(
    app: AppContext,
    run: tuple[str, str],
    names: tuple[str, ...],
    points: int,
    place: TopicPartition,
) -> tuple[dict[TopicPartition, int], str]:
    """The offsets behind the curves so far, and these as JSON; none while history is away."""

    def read(queries: Queries) -> tuple[dict[TopicPartition, int], list[Curve]]:
        known = queries.records.positions("steps", place.topic)
        return known, curves_of(queries, dict([run]), names, points)

    try:
        known, curves = app.history.query(read)
    except ProblemError:
        known, curves = {}, []
    return known, json_of(Curves(curves=curves))


@runs.post(
    "/training-runs/{run_id}/checkpoints/{epoch}/restore",
    operation_id="restoreRun",
    summary="Resume from a checkpoint",
    status_code=202,
    response_model=Restored,
    responses={
        201: {"model": Restored, "description": "The run had ended: a new run resumes."},
        **answers(404, 409),
    },
)
async def restore_run(
    run_id: RunId,
    epoch: Annotated[int, Path(ge=0, le=2**53, description="The step of a checkpoint.")],
    response: Response,
    app: App,
    caller: Caller,
    key: IdempotencyKey = None,
) -> Restored:
    """An active run stops and resumes from that step; for an ended run a new run resumes."""
    if app.details(run_id, caller) is None:  # it ended so long ago that only history has it
        spec, rows = await run_in_threadpool(saved_in_history, app, caller, run_id)
        _committed(rows, epoch)
        return await _continue_ended(app, caller, (run_id, spec), epoch, response, key)
    found = job_to_change(app, caller, run_id)
    _committed(found.checkpoints, epoch)
    if found.job.ended:
        ended = (run_id, found.job.spec)
        return await _continue_ended(app, caller, ended, epoch, response, key)
    if app.tail.view().cancelled(run_id):
        raise conflict("cancelling", "the run is being cancelled")
    event = JobRestoreRequested(job_id=run_id, step=epoch, user=caller.name)
    await app.request(run_id, event)
    now = app.details(run_id, caller) or found
    return _restored(run_id, epoch, run_id, now.job.state)


def _committed(rows: Iterable[Checkpoint], step: int) -> None:
    """Raises a 404 problem if there is no committed checkpoint of this step."""
    if not any((row.step, row.status) == (step, "committed") for row in rows):
        raise not_found("committed checkpoint of this run")


async def _continue_ended(
    app: AppContext,
    caller: Principal,
    ended: tuple[str, JobSpec | None],
    step: int,
    response: Response,
    key: str | None,
) -> Restored:
    old, spec = ended
    if spec is None:
        raise conflict("no-spec", "the run's spec could not be read; submit a new job")
    starts = await run_in_threadpool(starts_of_ended, app.tail.view().scheduling, old)
    if starts and step not in starts:
        raise conflict(
            "refused",
            f"a new run of an ended one starts from its newest {len(starts)} checkpoints (step "
            f"{', '.join(map(str, starts))}), and step {step} is older: export it, or start from "
            "one of these",
        )
    policy = spec.checkpoint.model_copy(update={"resume": str(step)})
    again = spec.without_trial().model_copy(update={"resume_from": old, "checkpoint": policy})
    done = await submit(app, caller, again, key)
    response.status_code = 201
    response.headers["Location"] = f"/v1/training-jobs/{done.job_id}"
    return _restored(done.job_id, step, old, done.state)


def _restored(run_id: str, step: int, from_run: str, state: str) -> Restored:
    return Restored.model_validate(
        {"run_id": run_id, "step": step, "from_run": from_run, "state": state}
    )


@runs.get(
    "/v1/runs",
    operation_id="listRuns",
    summary="List all runs",
    response_model=RunPage,
    responses=answers(),
)
def list_runs(
    app: App,
    caller: Caller,
    *,
    state: Annotated[list[KnownState] | None, Query(max_length=10)] = None,
    team: Annotated[list[str] | None, Query(max_length=50)] = None,
    user: Annotated[list[str] | None, Query(max_length=50)] = None,
    project: Annotated[list[str] | None, Query(max_length=50)] = None,
    name: Annotated[str, Query(max_length=63, description="Part of the name.")] = "",
    submitted_from: Annotated[datetime | None, Query()] = None,
    submitted_before: Annotated[datetime | None, Query()] = None,
    where: Where = "",
    order_by: OrderBy = None,
    kind: Annotated[
        RunKind | None,
        Query(description="`all`: also runs of MLflow clients, the default with a filter."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=8000)] = None,
    metrics: Annotated[
        bool, Query(description="Whether the page has the runs' final metrics, too.")
    ] = False,
) -> RunPage:
    """All runs ever, newest first unless `order_by` says otherwise."""
    teams = visible_teams(caller)
    if team:
        teams = frozenset(team) if teams is None else teams & frozenset(team)
    wanted = RunFilter(
        teams=teams,
        states=tuple(state or ()),
        users=tuple(user or ()),
        projects=tuple(project or ()),
        name_contains=name,
        submitted_from=moment("submitted_from", submitted_from),
        submitted_before=moment("submitted_before", submitted_before),
        where=where,
        order_by=tuple(order_by or ()),
    )
    page = runs_page(app, wanted, kind, limit=limit, cursor=cursor)
    if metrics and page.runs:
        owners = {run.run_id: run.team for run in page.runs}
        finals = app.history.query(lambda q: q.curves.latest(owners))
        page = page.model_copy(update={"metrics": finals})
    return page


def moment(field: str, value: datetime | None) -> datetime | None:
    """A time of a query. Raises a 422 problem when it has no zone or is out of range."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise invalid(field, "must have a zone, such as 2026-11-21T08:00:00Z")
    if not 1970 <= value.year < 2200:
        raise invalid(field, "must lie between 1970 and 2200")
    return value
