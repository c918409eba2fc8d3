"""/v1/runs/compare, curves and tags: runs alone and side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Query

from gangline_gateway.app_context import (
    App,
    AppContext,
    Caller,
    RunId,
    answers,
    may_change,
    router,
    visible_teams,
)
from gangline_gateway.comparison import compare, overlay
from gangline_gateway.curves import ALL_POINTS, MAX_POINTS, CurveQuery
from gangline_gateway.filter_words import MAX_CHARS, MAX_ORDER
from gangline_gateway.history import HistoryRun, RunFilter
from gangline_gateway.history_access import Queries
from gangline_gateway.parallel import parallel
from gangline_gateway.problems import ProblemError, invalid, not_found
from gangline_gateway.routes.jobs import team_of_job
from gangline_gateway.run_list import runs_page
from gangline_gateway.sql_parts import MLFLOW_RUN
from gangline_schemas.api.runs import (
    MAX_COMPARED,
    Axis,
    Comparison,
    Curve,
    Curves,
    Overlay,
    Parallel,
    ResourceCurves,
    Sampling,
    Tagged,
    TagsBody,
)
from gangline_schemas.events.requests import RunTagged
from gangline_schemas.system_metrics import is_of_one_gpu
from gangline_service.tokens import Principal

comparisons = router("Runs")

MAX_CURVES = 50
MAX_NAMES = 1000
"""Metrics of an answer for which no names were given. Above `MAX_CURVES` each has fewer points."""
MAX_PARALLEL = 100
Where = Annotated[
    str,
    Query(
        max_length=MAX_CHARS,
        description="MLflow's filter language: `params.lr = '0.1' and metrics.loss < 2 and "
        "gpu_hours > 10`.",
    ),
]
OrderBy = Annotated[
    list[str] | None,
    Query(max_length=MAX_ORDER, description="`metrics.loss`, `gpu_hours DESC` and so on."),
]
MetricNames = Annotated[
    list[str] | None,
    Query(alias="name", max_length=MAX_CURVES, description="Metrics; default: all."),
]
Points = Annotated[
    int,
    Query(
        ge=2,
        le=MAX_POINTS,
        description=f"Approximate maximum per curve; of all curves {ALL_POINTS:,}.",
    ),
]


def _shape(
    axis: Annotated[
        Axis, Query(description="Seconds (`time`) count from the run's start.")
    ] = "step",
    first: Annotated[float | None, Query(ge=0, le=2**53, description="Of the axis.")] = None,
    last: Annotated[float | None, Query(ge=0, le=2**53, description="Of the axis.")] = None,
    smoothing: Annotated[
        float, Query(ge=0, le=0.999, description="Weight of the past in a moving average.")
    ] = 0.0,
    sampling: Annotated[
        Sampling, Query(description="Buckets, or Largest Triangle Three Buckets.")
    ] = "bucket",
) -> CurveQuery:
    """How curves are thinned, placed on an axis, cut out and smoothed."""
    if first is not None and last is not None and first > last:
        raise invalid("first", "must not be greater than last")
    return CurveQuery(axis=axis, first=first, last=last, smoothing=smoothing, sampling=sampling)


Shape = Annotated[CurveQuery, Depends(_shape)]


def curves_of(
    queries: Queries,
    runs: Mapping[str, str],
    names: Sequence[str],
    points: int,
    shape: CurveQuery | None = None,
    *,
    system: bool = False,
) -> list[Curve]:
    """Curves of these metrics, or of all that the runs have; `system`: of the system's.

    Of too many metrics, losses and means over GPUs are there. Raises CurveError.
    """
    wanted = list(names) or queries.curves.names(runs, system=system)
    wanted = sorted(wanted, key=_rank)[: MAX_CURVES if names else MAX_NAMES]
    if len(wanted) > MAX_CURVES:
        points = max(2, points * MAX_CURVES // len(wanted))
    asked = replace(shape or CurveQuery(), runs=runs, names=wanted, points=points)
    return queries.curves.curves(asked) if wanted else []


def _rank(name: str) -> tuple[bool, bool, str]:
    return is_of_one_gpu(name), "loss" not in name.lower(), name


@comparisons.get(
    "/v1/runs/compare",
    operation_id="compareRuns",
    summary="Runs side by side",
    response_model=Comparison,
    responses=answers(404),
)
def compare_runs(
    app: App,
    caller: Caller,
    run: Annotated[list[str], Query(min_length=1, max_length=MAX_COMPARED)],
    shape: Shape,
    *,
    name: MetricNames = None,
    points: Points = 200,
    curves: Annotated[bool, Query(description="Whether curves are read, too.")] = True,
) -> Comparison:
    """Differences of configuration, curves, final and best metrics, GPU-seconds, restarts."""
    rows = _rows(app, caller, list(dict.fromkeys(run)))
    owners = {row.run.run_id: row.run.team for row in rows}
    finals = app.history.query(lambda q: q.curves.latest(owners))
    names = name or [*finals]
    found = (
        app.history.query(lambda q: curves_of(q, owners, names, points, shape)) if curves else []
    )
    used = app.history.query(lambda q: q.resources.used(owners))
    return compare(rows, finals, found, used)


@comparisons.get(
    "/v1/runs/overlay",
    operation_id="getOverlay",
    summary="Curves of several runs as columns",
    response_model=Overlay,
    responses=answers(404),
)
def get_overlay(
    app: App,
    caller: Caller,
    *,
    run: Annotated[list[str], Query(min_length=1, max_length=MAX_COMPARED)],
    name: Annotated[list[str], Query(min_length=1, max_length=MAX_CURVES)],
    shape: Shape,
    points: Points = 300,
) -> Overlay:
    """The curves of a comparison alone, in a form that is quick to read and to draw."""
    owners = {row.run.run_id: row.run.team for row in _rows(app, caller, list(dict.fromkeys(run)))}
    found = app.history.query(lambda q: curves_of(q, owners, name, points, shape))
    return overlay(found)


@comparisons.get(
    "/v1/runs/resources",
    operation_id="getResources",
    summary="Resources that runs used",
    response_model=ResourceCurves,
    responses=answers(404),
)
def get_resources(
    app: App,
    caller: Caller,
    run: Annotated[list[str], Query(min_length=1, max_length=MAX_COMPARED)],
    points: Points = 200,
) -> ResourceCurves:
    """GPU utilization, memory, power and CPU as means over a run's nodes; GPU-hours and cost."""
    found = [row.run for row in _rows(app, caller, list(dict.fromkeys(run)))]
    curves = app.history.query(lambda q: q.resources.over_time(found, points))
    return ResourceCurves(curves=curves)


@comparisons.get(
    "/v1/runs/parallel",
    operation_id="getParallel",
    summary="Runs on parallel axes",
    response_model=Parallel,
    responses=answers(404),
)
def get_parallel(
    app: App,
    caller: Caller,
    *,
    run: Annotated[list[str] | None, Query(max_length=MAX_PARALLEL)] = None,
    where: Where = "",
    order_by: OrderBy = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PARALLEL)] = MAX_PARALLEL,
    name: MetricNames = None,
) -> Parallel:
    """These runs, or those of a filter: parameters that differ, and metrics at their last steps."""
    if run:
        rows = [row.run for row in _rows(app, caller, list(dict.fromkeys(run)))]
    else:
        wanted = RunFilter(visible_teams(caller), where=where, order_by=tuple(order_by or ()))
        rows = runs_page(app, wanted, limit=limit).runs
    owners = {row.run_id: row.team for row in rows}
    finals = app.history.query(lambda q: q.curves.latest(owners)) if rows else {}
    chosen = {key: found for key, found in finals.items() if not name or key in name}
    return parallel(rows, chosen)


@comparisons.get(
    "/v1/runs/{run_id}/curves",
    operation_id="getCurves",
    summary="A run's curves",
    response_model=Curves,
    responses=answers(404),
)
def get_curves(
    run_id: RunId,
    app: App,
    caller: Caller,
    shape: Shape,
    *,
    name: MetricNames = None,
    points: Points = 500,
    system: Annotated[
        bool, Query(description="By default the system's metrics, not all others.")
    ] = False,
) -> Curves:
    """Last, lowest and highest value per point; each point covers equally many steps."""
    runs = {run_id: team_of_run(app, caller, run_id)}
    found = app.history.query(
        lambda q: curves_of(q, runs, name or (), points, shape, system=system)
    )
    return Curves(curves=found)


def team_of_run(app: AppContext, caller: Principal, run_id: str) -> str:
    """The team of a job, or of a run with metrics that an MLflow client made.

    Raises a 404 or 503 problem.
    """
    if MLFLOW_RUN.fullmatch(run_id) and app.details(run_id, caller) is None:
        found = app.history.query(lambda q: q.curves.team_of(run_id, visible_teams(caller)))
        if found is not None:
            return found
    try:
        return team_of_job(app, caller, run_id)
    except ProblemError as error:
        raise (not_found("run") if error.status == 404 else error) from None


def _rows(app: AppContext, caller: Principal, run_ids: list[str]) -> list[HistoryRun]:
    """The runs in this order, also those of MLflow. Raises a 404 or 503 problem."""
    teams = visible_teams(caller)
    rows = app.history.query(lambda q: q.history.some_runs(run_ids, teams))
    found = {row.run.run_id: row for row in rows}
    left = [each for each in run_ids if each not in found and MLFLOW_RUN.fullmatch(each)]
    if left and app.mlflow is not None:
        found |= {row.run.run_id: row for row in app.mlflow.some_runs(left, teams)}
    if len(found) < len(run_ids):
        raise not_found("run")
    return [found[run_id] for run_id in run_ids]


@comparisons.post(
    "/v1/runs/{run_id}/tags",
    operation_id="tagRun",
    summary="Set a run's tags",
    status_code=202,
    response_model=Tagged,
    responses=answers(404),
)
async def tag_run(run_id: RunId, body: TagsBody, app: App, caller: Caller) -> Tagged:
    """Also of a run that ended. null removes a tag; other tags stay."""
    try:
        team = await asyncio.to_thread(team_of_job, app, caller, run_id)
    except ProblemError as error:
        raise (not_found("run of a job") if error.status == 404 else error) from None
    may_change(caller, team)
    event = RunTagged(job_id=run_id, team=team, tags=body.tags, user=caller.name)
    await app.publisher.publish(run_id, event)
    return Tagged(run_id=run_id, tags=body.tags)
