"""Runs by a filter and an order: the filter language as SQL. Values are never in the SQL text.

A run has a parameter's text, a metric's last value, tags and attributes. A comparison with what a
run does not have is false, and by an order such runs come last.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from gangline_gateway import curve_sql
from gangline_gateway.filter_words import Comparison, FilterError, Key, Value, order_of, read_filter
from gangline_gateway.prices import COST
from gangline_gateway.sql_parts import CursorError, read_json_cursor
from gangline_schemas.run_search import RunKey, RunOrder, RunTest

Kind = Literal["text", "number", "time"]
_TEXTS = (
    "team", "project", "name", "user", "state", "reason", "strategy", "code_ref", "data_snapshot",
)  # fmt: skip
ATTRIBUTES: dict[str, tuple[str, Kind]] = {
    "run_id": ("r.job_id", "text"),
    **{name: (f"r.{name}", "text") for name in _TEXTS},
    "image": ("JSONExtractString(r.spec, 'image')", "text"),
    "code_diff": ("JSONExtractString(r.spec, 'code_diff_digest')", "text"),
    "attempts": ("toFloat64(r.attempt)", "number"),
    "restarts": ("toFloat64(r.restarts)", "number"),
    "gpus": ("toFloat64(r.gpus)", "number"),
    "priority": ("toFloat64(r.priority)", "number"),
    "gpu_hours": ("r.gpu_seconds / 3600", "number"),
    "cost": (COST, "number"),
    "gpu_model": ("r.gpu_model", "text"),
    "hours": ("dateDiff('second', r.started_at, r.ended_at) / 3600", "number"),
    "submitted_at": ("toFloat64(toUnixTimestamp64Milli(r.submitted_at))", "time"),
    "started_at": ("toFloat64(toUnixTimestamp64Milli(r.started_at))", "time"),
    "ended_at": ("toFloat64(toUnixTimestamp64Milli(r.ended_at))", "time"),
}
"""Each attribute's expression; times are Unix milliseconds."""
_OTHER_NAMES = {
    "run_name": "name", "user_id": "user", "start_time": "started_at", "end_time": "ended_at",
    "created": "submitted_at",
}  # fmt: skip
"""MLflow's names; not `status`, as its words differ from those of `state`."""
TAGS = {
    "mlflow.runName": "name",
    "mlflow.user": "user",
    "mlflow.source.git.commit": "code_ref",
    "gangline.code_diff": "code_diff",
    "gangline.image": "image",
    "gangline.data_snapshot": "data_snapshot",
    "gangline.strategy": "strategy",
    "gangline.job": "run_id",
    "gangline.name": "name",
    "gangline.team": "team",
    "gangline.project": "project",
}
"""Tags that hold attributes of a job's run."""
_SPEC_TAGS = {
    "gangline.study": "JSONExtractString(r.spec, 'trial', 'study_id')",
    "gangline.trial": "JSONExtractRaw(r.spec, 'trial', 'number')",
    "gangline.code_bundle": "JSONExtractString(r.spec, 'code_bundle')",
    "gangline.purpose": "JSONExtractString(r.spec, 'purpose')",
    "gangline.resume_from": "JSONExtractString(r.spec, 'resume_from')",
}
"""Tags that hold a field of a job's spec. All other tags are those that users set."""
_NEWEST_FIRST = ((Key("attribute", "submitted_at"), True), (Key("attribute", "run_id"), True))
"""The order of runs that are the same in all others."""


@dataclass
class RunQuery:
    """SQL of a filter and an order over run_list AS r: a join, conditions, and their parameters.

    Raises FilterError for a filter or an order that cannot be.
    """

    where: str = ""
    order_by: Sequence[str] = ()
    conditions: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._metrics: dict[str, str] = {}  # the parameter of each one's name
        self._tags: dict[str, str] = {}
        self.tests: list[RunTest] = []
        for comparison in read_filter(self.where):
            self.conditions.append(self._condition(comparison))
        try:
            keys = [*order_of(self.order_by), *_NEWEST_FIRST]
            self._terms = [(*self._value(key), down) for key, down in keys]
        except FilterError as error:
            error.field = "order_by"
            raise
        self.order_keys = [
            RunOrder(key=_asked(key), is_number=False, down=down) for key, down in keys
        ]

    @property
    def join(self) -> str:
        """The joins with the last values of all metrics, and with all tags, that are named."""
        return f"{self._metric_join()} {self._tag_join()}".strip()

    def _tag_join(self) -> str:
        if not self._tags:
            return ""
        values = ", ".join(
            f"max(if(g.name = {given}, toNullable(g.value), NULL)) AS t{n}"
            for n, given in enumerate(self._tags.values())
        )
        names = ", ".join(self._tags.values())
        return (
            f"LEFT JOIN (SELECT g.job_id AS run, g.team AS owner, {values} "
            f"FROM gangline.run_tags AS g FINAL WHERE g.name IN ({names}) AND NOT g.removed "
            "GROUP BY run, owner) AS t ON t.run = r.job_id AND t.owner = r.team"
        )

    def _metric_join(self) -> str:
        if not self._metrics:
            return ""
        values = ", ".join(
            f"max(if(l.name = {given}, toNullable(l.value), NULL)) AS m{n}"
            for n, given in enumerate(self._metrics.values())
        )
        rows = curve_sql.latest(f"WHERE name IN ({', '.join(self._metrics.values())})")
        return (
            f"LEFT JOIN (SELECT l.run_id AS run, l.team AS owner, {values} FROM ({rows}) AS l "
            "GROUP BY run, owner) AS m ON m.run = r.job_id AND m.owner = r.team"
        )

    @property
    def columns(self) -> str:
        """The values by which rows are ordered, as o0, o1, ..."""
        return ", ".join(f"{sql} AS o{n}" for n, (sql, _, _) in enumerate(self._terms))

    def values(self, row: dict[str, Any]) -> tuple[Value | None, ...]:
        """The values by which a row is ordered."""
        return tuple(row[f"o{n}"] for n in range(len(self._terms)))

    @property
    def order(self) -> str:
        """The clause after ORDER BY; what is missing comes last."""
        return ", ".join(
            f"isNull({sql}), {sql} {'DESC' if down else 'ASC'}" for sql, _, down in self._terms
        )

    def after(self, values: Sequence[Value | None]) -> None:
        """Only rows behind the one with these values."""
        ways, same = [], []
        for (sql, kind, down), value in zip(self._terms, values, strict=True):
            if value is None:
                same.append(f"isNull({sql})")
                continue
            given = self._parameter(value, kind)
            ways.append(
                " AND ".join([*same, f"(isNull({sql}) OR {sql} {'<' if down else '>'} {given})"])
            )
            same.append(f"{sql} = {given}")
        self.conditions.append(f"({' OR '.join(f'({way})' for way in ways)})")

    def read(self, cursor: str) -> tuple[Value | None, ...]:
        """The values of the last row before a page. Raises CursorError."""
        values = read_json_cursor(cursor)
        if len(values) != len(self._terms):
            raise CursorError
        for (_, kind, _), value in zip(self._terms, values, strict=True):
            if isinstance(value, bool) or not (
                value is None
                or (kind == "text" and isinstance(value, str))
                or (kind != "text" and isinstance(value, int | float) and math.isfinite(value))
            ):
                raise CursorError
        if values[-1] is None:
            raise CursorError
        return tuple(values)

    def _condition(self, comparison: Comparison) -> str:
        sql, kind = self._value(comparison.key)
        operator, value = comparison.operator, comparison.value
        if value is None:
            self._keep(comparison, None)
            return f"{'isNull' if operator == '=' else 'isNotNull'}({sql})"
        values = value if isinstance(value, tuple) else (value,)
        numbers = all(isinstance(item, float) for item in values)
        if comparison.key.kind in {"param", "tag"} and numbers:
            sql, kind = f"toFloat64OrNull({sql})", "number"
        self._check(comparison, kind, values)
        plains = tuple(self._plain(item, kind) for item in values)
        is_list = operator in {"IN", "NOT IN"}
        self._keep(comparison, plains if is_list else plains[0], is_number=numbers)
        if is_list:
            listed = self._parameter([*plains], kind)
            return f"ifNull({'NOT ' if operator == 'NOT IN' else ''}has({listed}, {sql}), 0)"
        plain = plains[0]
        if operator in {"LIKE", "ILIKE"} and isinstance(plain, str):
            plain = plain.replace("\\", "\\\\")  # plain in the filter language
        return f"ifNull({sql} {operator} {self._parameter(plain, kind)}, 0)"

    def _keep(
        self,
        comparison: Comparison,
        value: Value | tuple[Value, ...] | None,
        *,
        is_number: bool = False,
    ) -> None:
        """Note a comparison for the MLflow server."""
        key = _asked(comparison.key)
        test = RunTest(key=key, operator=comparison.operator, value=value, is_number=is_number)
        self.tests.append(test)

    def _check(self, comparison: Comparison, kind: Kind, values: Sequence[Value]) -> None:
        key, operator = comparison.key, comparison.operator
        place = f"at character {key.at}: {key.kind} {key.name[:60]}"
        if kind == "number" and not all(isinstance(item, float) for item in values):
            raise FilterError(f"{place} is a number; compare it with a number without quotes")
        if kind == "text" and not all(isinstance(item, str) for item in values):
            raise FilterError(f"{place} is a text; compare it with a text in quotes")
        known = ("=", "!=", "LIKE", "ILIKE", "IN", "NOT IN")
        if kind == "text" and operator not in known:
            raise FilterError(f"{place} is a text; its operators are {', '.join(known)}")
        if kind != "text" and operator in {"LIKE", "ILIKE"}:
            raise FilterError(f"{place} is a {kind}; {operator} compares texts")

    @staticmethod
    def _plain(value: Value, kind: Kind) -> Value:
        if kind != "time" or isinstance(value, float):
            return value
        try:
            at = datetime.fromisoformat(value)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000
        except (ValueError, OverflowError):
            raise FilterError(
                f"{value[:40]!r} is no time; write '2026-11-21', '2026-11-21T08:00:00Z' or Unix "
                "milliseconds"
            ) from None

    def _value(self, key: Key) -> tuple[str, Kind]:
        """The expression of a key, NULL where a run has none, and its kind."""
        if key.kind == "metric":
            return self._metric(key.name), "number"
        if key.kind == "param":
            name = self._parameter(key.name, "text")
            params = "r.hyperparameters"
            return f"if(mapContains({params}, {name}), toNullable({params}[{name}]), NULL)", "text"
        if key.kind == "tag" and key.name in _SPEC_TAGS:
            return f"nullIf({_SPEC_TAGS[key.name]}, '')", "text"
        if key.kind == "tag" and key.name not in TAGS:
            if key.name not in self._tags:
                self._tags[key.name] = self._parameter(key.name, "text")
            return f"t.t{[*self._tags].index(key.name)}", "text"
        name = TAGS[key.name] if key.kind == "tag" else _asked(key).name
        if name not in ATTRIBUTES:
            raise FilterError(
                f"at character {key.at}: there is no attribute {key.name[:60]!r}; known are "
                f"{', '.join(sorted(ATTRIBUTES))}, params.NAME, metrics.NAME and tags.NAME"
            )
        sql, kind = ATTRIBUTES[name]
        return (f"nullIf({sql}, '')", "text") if kind == "text" else (sql, kind)

    def _metric(self, name: str) -> str:
        """The column of the join that holds a metric's last values."""
        if name not in self._metrics:
            self._metrics[name] = self._parameter(name, "text")
        return f"m.m{[*self._metrics].index(name)}"

    def _parameter(self, value: Any, kind: Kind) -> str:
        name = f"w{len(self.parameters)}"
        self.parameters[name] = value
        plain = "String" if kind == "text" else "Float64"
        return f"{{{name}:{f'Array({plain})' if isinstance(value, list) else plain}}}"


def _asked(key: Key) -> RunKey:
    name = _OTHER_NAMES.get(key.name, key.name) if key.kind == "attribute" else key.name
    return RunKey(kind=key.kind, name=name)
