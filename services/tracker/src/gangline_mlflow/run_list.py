"""Lists runs of all teams by the gateway's filter: one statement over MLflow's tables.

The own runs of jobs are left out: the gateway has these from the tracker, with all attributes.
MLflow's search has neither pages by value nor these operators, and knows one team at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa
from mlflow.store.tracking.dbmodels.models import (
    SqlExperiment,
    SqlLatestMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)

from gangline_mlflow.search import children, of_run
from gangline_schemas.api.runs import MAX_TAGS, Run
from gangline_schemas.mlflow_workspace import PREFIX
from gangline_schemas.run_search import FoundRun, RunKey, RunSearch, RunTest, Value

_RUNS, _EXPERIMENTS = SqlRun.__table__, SqlExperiment.__table__
_CHILDREN = {
    "metric": SqlLatestMetric.__table__,
    "param": SqlParam.__table__,
    "tag": SqlTag.__table__,
}
_STATES = {
    "RUNNING": "running", "SCHEDULED": "pending", "FINISHED": "succeeded", "FAILED": "failed",
    "KILLED": "cancelled",
}  # fmt: skip
_OWN_OF_JOBS = "JOB"
_USER, _COMMIT = (
    RunKey(kind="tag", name=f"mlflow.{name}") for name in ("user", "source.git.commit")
)
_NUMBERS = frozenset({"attempts", "restarts", "gpus", "priority", "gpu_hours", "cost"})
_NO_NUMBER, _NO_TEXT = (sa.cast(sa.null(), kind) for kind in (sa.Double, sa.String))
"""Attributes of jobs alone."""
_IS_NUMBER = r"^[+-]?([0-9]{1,200}\.?[0-9]{0,200}|\.[0-9]{1,200})([eE][+-]?[0-9]{1,2})?$"
"""Within what a double can hold: PostgreSQL refuses to convert others."""
_HOUR_MS = 3_600_000.0
Dialect = Literal["sqlite", "postgresql"]


def found(session: Any, asked: RunSearch) -> list[FoundRun]:
    """The runs of a page, in order."""
    statement = _Statement(session.get_bind().dialect.name)
    rows = session.execute(statement.select(asked)).all()
    ids = [row.run_uuid for row in rows]
    params, tags = (children(session, _CHILDREN[kind], ids) for kind in ("param", "tag"))
    return [
        FoundRun(
            run=_run(row, dict(params[row.run_uuid]), dict(tags[row.run_uuid])),
            order=tuple(row[-len(asked.order) :]) if asked.order else (),
        )
        for row in rows
    ]


class _Statement:
    """Builds one statement, and the joins that its keys need."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._source: Any = _RUNS.join(
            _EXPERIMENTS, _EXPERIMENTS.c.experiment_id == _RUNS.c.experiment_id
        )
        self._joined: dict[tuple[str, str], Any] = {}
        workspace = _EXPERIMENTS.c.workspace
        self._team = _text(
            sa.case(
                (workspace.like(f"{PREFIX}%"), sa.func.substr(workspace, len(PREFIX) + 1)),
                else_=workspace,
            )
        )

        started, ended = _RUNS.c.start_time, _RUNS.c.end_time
        self._attributes = {
            "run_id": _RUNS.c.run_uuid,
            "team": self._team,
            "project": self._project(),
            "name": _text(sa.func.nullif(_RUNS.c.name, "")),
            "state": _text(sa.case(_STATES, value=_RUNS.c.status, else_="running")),
            "submitted_at": sa.cast(started, sa.Double),
            "started_at": sa.cast(started, sa.Double),
            "ended_at": sa.cast(ended, sa.Double),
            "hours": sa.cast(ended - started, sa.Double) / _HOUR_MS,
        }

    def select(self, asked: RunSearch) -> Any:
        """The statement: columns of `_run`, then the values of the order."""
        terms = [(self._value(key.key, number=key.is_number), key.down) for key in asked.order]
        terms = [(self._sorted(value), down) for value, down in terms]
        tests = [*self._within(asked), *(self._test(test) for test in asked.tests)]
        if asked.after is not None:
            tests.append(_behind(terms, [self._plain(value) for value in asked.after]))
        shown = [self._attribute(name).label(name) for name in ("team", "project", "user", "state")]
        values = [value.label(f"order_{index}") for index, (value, _) in enumerate(terms)]
        ordering = [
            part
            for value, down in terms
            for part in (value.is_(None), value.desc() if down else value.asc())
        ]
        chosen = sa.select(_RUNS, *shown, *values).select_from(self._source)
        return chosen.where(*tests).order_by(*ordering).limit(asked.limit)

    def _within(self, asked: RunSearch) -> list[Any]:
        tests = [
            _RUNS.c.lifecycle_stage == "active",
            _EXPERIMENTS.c.lifecycle_stage == "active",
            _RUNS.c.run_uuid.in_(asked.run_ids)
            if asked.run_ids
            else sa.func.coalesce(_RUNS.c.source_type, "") != _OWN_OF_JOBS,
        ]
        if asked.teams is not None:
            tests.append(self._team.in_(asked.teams))
        for name, values in (
            ("state", asked.states), ("user", asked.users), ("project", asked.projects),
        ):  # fmt: skip
            if values:
                tests.append(self._attribute(name).in_([self._plain(value) for value in values]))
        if asked.name_contains:
            place = sa.func.strpos if self._dialect == "postgresql" else sa.func.instr
            tests.append(place(_RUNS.c.name, self._plain(asked.name_contains)) > 0)
        if asked.submitted_from_ms is not None:
            tests.append(_RUNS.c.start_time >= asked.submitted_from_ms)
        if asked.submitted_before_ms is not None:
            tests.append(_RUNS.c.start_time < asked.submitted_before_ms)
        return tests

    def _test(self, test: RunTest) -> Any:
        column = self._value(test.key, number=test.is_number)
        given = test.value
        if given is None:
            return column.is_(None) if test.operator == "=" else column.is_not(None)
        if isinstance(given, tuple):
            values = [self._plain(value) for value in given]
            return column.in_(values) if test.operator == "IN" else column.not_in(values)
        value = self._plain(given)
        if test.operator in {"LIKE", "ILIKE"}:
            return self._like(column, str(value), any_case=test.operator == "ILIKE")
        return column.op(test.operator, is_comparison=True)(value)

    def _like(self, column: Any, pattern: str, *, any_case: bool) -> Any:
        """`%` and `_` have a meaning, a backslash has none."""
        if self._dialect == "postgresql":
            pattern = pattern.replace("\\", "\\\\")
            return column.ilike(pattern) if any_case else column.like(pattern)
        if any_case:
            return column.like(pattern)
        meanings = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
        return column.op("GLOB", is_comparison=True)(
            "".join(meanings.get(letter, letter) for letter in pattern)
        )

    def _value(self, key: RunKey, *, number: bool) -> Any:
        if key.kind == "attribute":
            return self._attribute(key.name)
        table = self._child(key)
        if key.kind == "metric":
            return sa.case((table.c.is_nan == sa.true(), None), else_=table.c.value)
        if not number:
            return table.c.value
        is_number = table.c.value.regexp_match(_IS_NUMBER)
        return sa.case((is_number, sa.cast(table.c.value, sa.Double)), else_=None)

    def _child(self, key: RunKey) -> Any:
        known = self._joined.get((key.kind, key.name))
        if known is not None:
            return known
        table = _CHILDREN[key.kind].alias()
        self._source = self._source.outerjoin(table, of_run(table, self._plain(key.name)))
        self._joined[key.kind, key.name] = table
        return table

    def _attribute(self, name: str) -> Any:
        """NULL for one that jobs alone have."""
        if name in {"user", "code_ref"}:
            tag = self._child(_USER if name == "user" else _COMMIT).c.value
            named = sa.func.nullif(_RUNS.c.user_id, "")
            return _text(sa.func.coalesce(named, tag)) if name == "user" else tag
        return self._attributes.get(name, _NO_NUMBER if name in _NUMBERS else _NO_TEXT)

    def _project(self) -> Any:
        """The project of an experiment TEAM/PROJECT; else the experiment's name."""
        name, own = _EXPERIMENTS.c.name, self._team.concat("/")
        length = sa.func.length(own)
        within = sa.func.substr(name, 1, length) == own
        without = name == own.concat("default")
        return _text(
            sa.case((without, None), (within, sa.func.substr(name, length + 1)), else_=name)
        )

    def _sorted(self, value: Any) -> Any:
        """As it is ordered: texts by their code points, as in ClickHouse."""
        is_text = isinstance(value.type, sa.String)
        return sa.collate(value, "C") if is_text and self._dialect == "postgresql" else value

    def _plain(self, value: Value | None) -> Any:
        """PostgreSQL holds no NUL, and refuses one in a value."""
        return value.replace("\0", "\uffff") if isinstance(value, str) else value


def _text(value: Any) -> Any:
    return sa.type_coerce(value, sa.String)


def _behind(terms: Sequence[tuple[Any, bool]], after: Sequence[Any]) -> Any:
    """Only rows behind the one with these values."""
    ways, same = [], []
    for (column, down), value in zip(terms, after, strict=True):
        if value is None:
            same.append(column.is_(None))
            continue
        beyond = column < value if down else column > value
        ways.append(sa.and_(*same, sa.or_(column.is_(None), beyond)))
        same.append(column == value)
    return sa.or_(*ways)


def _run(row: Any, params: dict[str, str], tags: dict[str, str]) -> Run:
    """A run of history. GPUs and attempts are those of jobs alone: 0."""
    started = _time(row.start_time) or datetime.fromtimestamp(0, tz=UTC)
    own = sorted(name for name in tags if not name.startswith("mlflow."))[:MAX_TAGS]
    return Run(
        run_id=row.run_uuid,
        team=row.team,
        project=row.project or "",
        name=row.name or "",
        user=row.user or "",
        state=row.state,
        reason="",
        attempt=0,
        restarts=0,
        gpus=0,
        priority=0,
        submitted_at=started,
        started_at=started,
        ended_at=_time(row.end_time),
        gpu_seconds=0.0,
        gpu_model="",
        cost=None,
        strategy="",
        code_ref=tags.get(_COMMIT.name, ""),
        data_snapshot="",
        hyperparameters=params,
        tags={name: tags[name] for name in own},
    )


def _time(milliseconds: int | None) -> datetime | None:
    """None also for one that no datetime can hold: MLflow stores any number."""
    if not milliseconds:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None
