"""Searches of runs by one statement and plain rows; what is not known here is MLflow's to answer.

MLflow joins a subquery for each condition, for which SQLite has no plan without statistics, and
makes an object of each metric, parameter and tag: together 90 % of its time. Here a condition is an
EXISTS by primary key, an order an outer join by primary key, and rows become JSON at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from mlflow.entities import LifecycleStage, ViewType
from mlflow.store.tracking.dbmodels.models import (
    SqlInput,
    SqlLatestMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.utils.search_utils import SearchUtils
from pydantic_core import to_json

from gangline_mlflow.plain import Odd, RunsQuery

_RUNS, _LINKS = SqlRun.__table__, SqlInput.__table__
_CHILDREN = {
    "metric": SqlLatestMetric.__table__,
    "parameter": SqlParam.__table__,
    "tag": SqlTag.__table__,
}
_ATTRIBUTES = {name: _RUNS.c[name] for name in ("status", "start_time", "end_time")}
_COMPARATORS = frozenset({"=", "!=", "<", "<=", ">", ">=", "LIKE", "ILIKE"})
_CHUNK = 1000


def found_runs(session: Any, asked: RunsQuery, experiments: Sequence[int]) -> bytes:
    """The answer to runs/search, in these experiments.

    Raises Odd when MLflow must answer, and MlflowException when it would refuse.
    """
    offset = SearchUtils.parse_start_offset_from_page_token(asked.page_token)
    statement = _statement(asked, experiments, session.get_bind().dialect.name)
    rows = session.execute(statement.limit(asked.limit + 1).offset(offset)).all()
    answer: dict[str, Any] = {}
    if rows:
        answer["runs"] = _as_json(session, rows[: asked.limit])
    if len(rows) > asked.limit:
        token = SearchUtils.create_page_token(offset + asked.limit)
        answer["next_page_token"] = token.decode() if isinstance(token, bytes) else token
    return to_json(answer)


def _statement(asked: RunsQuery, experiments: Sequence[int], dialect: str) -> Any:
    source: Any = _RUNS
    ordering: list[Any] = []
    seen = set()
    for clause in asked.order_by:
        kind, key, ascending = SearchUtils.parse_order_by_for_search_runs(clause)
        if (kind, key) in seen:
            raise Odd
        seen.add((kind, key))
        absent = 1
        cases = []
        if kind in _CHILDREN:
            table = _CHILDREN[kind].alias()
            source = source.outerjoin(table, of_run(table, key))
            value = table.c.value
            if kind == "metric":
                absent = 2
                cases = [(table.c.is_nan == sa.true(), 1)]
        elif kind == "attribute" and key in _ATTRIBUTES:
            value = _ATTRIBUTES[key]
        else:
            raise Odd
        ordering.append(sa.case(*cases, (value.is_(None), absent), else_=0))
        ordering.append(value if ascending else value.desc())
    if ("attribute", "start_time") not in seen:
        ordering.append(_RUNS.c.start_time.desc())
    stages = LifecycleStage.view_type_to_stages(ViewType.from_string(asked.view.lower()))
    parsed = SearchUtils.parse_search_filter(asked.filter)
    tests = [_condition(part, dialect) for part in parsed]
    within = [_RUNS.c.experiment_id.in_(experiments), _RUNS.c.lifecycle_stage.in_(stages)]
    chosen = sa.select(_RUNS).select_from(source).where(*within, *tests)
    return chosen.order_by(*ordering, _RUNS.c.run_uuid)


def of_run(table: Any, key: str) -> Any:
    """The condition for a run's metric, parameter or tag of this name."""
    return sa.and_(table.c.run_uuid == _RUNS.c.run_uuid, table.c.key == key)


def _condition(part: dict[str, Any], dialect: str) -> Any:
    kind, key, comparator, value = part["type"], part["key"], part["comparator"], part["value"]
    if comparator not in _COMPARATORS:
        raise Odd
    compare = SearchUtils.get_sql_comparison_func(comparator, dialect)
    if kind == "attribute":
        if key not in _ATTRIBUTES or (key == "status" and comparator not in {"=", "!="}):
            raise Odd
        return compare(_ATTRIBUTES[key], value)
    if kind not in _CHILDREN:
        raise Odd
    table = _CHILDREN[kind]
    if kind != "metric":
        return sa.exists().where(of_run(table, key), compare(table.c.value, value))
    test = compare(table.c.value, float(value))
    is_nan = table.c.is_nan == sa.true()  # a NaN differs from every number, and compares to none
    test = sa.or_(is_nan, test) if comparator == "!=" else sa.and_(sa.not_(is_nan), test)
    return sa.exists().where(of_run(table, key), test)


def _as_json(session: Any, runs: Sequence[Any]) -> list[dict[str, Any]]:
    ids = [run.run_uuid for run in runs]
    for part in _parts(ids):
        linked = sa.or_(_LINKS.c.source_id.in_(part), _LINKS.c.destination_id.in_(part))
        if session.execute(sa.select(_LINKS.c.input_uuid).where(linked).limit(1)).first():
            raise Odd  # data sets and models of a run
    columns = ("key", "value", "timestamp", "step", "is_nan")
    metrics = children(session, _CHILDREN["metric"], ids, columns)
    params, tags = (children(session, _CHILDREN[kind], ids) for kind in ("parameter", "tag"))
    return [
        _run(run, metrics[run.run_uuid], params[run.run_uuid], tags[run.run_uuid]) for run in runs
    ]


def _parts(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))


def children(
    session: Any, table: Any, ids: Sequence[str], names: Sequence[str] = ("key", "value")
) -> dict[str, list[tuple[Any, ...]]]:
    """The metrics, parameters or tags of these runs, by run."""
    columns = [table.c.run_uuid, *(table.c[name] for name in names)]
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for part in _parts(ids):
        for run_id, *values in session.execute(
            sa.select(*columns).where(table.c.run_uuid.in_(part))
        ):
            found[run_id].append(tuple(values))
    return found


def _run(
    run: Any,
    metrics: Iterable[tuple[Any, ...]],
    params: Iterable[tuple[Any, ...]],
    tags: Iterable[tuple[Any, ...]],
) -> dict[str, Any]:
    if not run.name or not run.user_id or not run.start_time:
        raise Odd  # of an old release
    info = {
        "run_uuid": run.run_uuid,
        "run_id": run.run_uuid,
        "experiment_id": str(run.experiment_id),
        "run_name": run.name,
        "user_id": run.user_id,
        "status": run.status,
        "start_time": run.start_time,
        "lifecycle_stage": run.lifecycle_stage,
    }
    for name in ("end_time", "artifact_uri"):
        if getattr(run, name):
            info[name] = getattr(run, name)
    data = {
        "metrics": [
            {"key": key, "value": "NaN" if nan else value, "timestamp": time_ms, "step": step}
            for key, value, time_ms, step, nan in metrics
        ],
        "params": [{"key": key, "value": value} for key, value in params],
        "tags": [{"key": key, "value": value} for key, value in tags],
    }
    shown = {name: rows for name, rows in data.items() if rows}
    return {"info": info, "data": shown, "inputs": {}, "outputs": {}}
