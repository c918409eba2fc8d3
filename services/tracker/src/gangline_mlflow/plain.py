"""Requests about metrics in their plain form. Pure: what is odd in any way is `Odd`, not judged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, UnsetType
from pydantic_core import from_json

from gangline_mlflow.values import published
from gangline_schemas.limits import INT64_MAX

Point = tuple[str, int, int, float]
"""(name, step, Unix time in ms, value)."""

MOST_METRICS = 1000
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_HISTORY = frozenset({"run_id", "run_uuid", "metric_key", "max_results", "page_token"})
_SAMPLE = frozenset({"run_ids", "metric_key", "max_results", "start_step", "end_step"})
_SEARCH: dict[str, type] = {
    "experiment_ids": list, "filter": str, "run_view_type": str, "max_results": int,
    "order_by": list, "page_token": str,
}  # fmt: skip
_VIEWS = frozenset({"ACTIVE_ONLY", "DELETED_ONLY", "ALL"})
_MOST_FOUND = 50_000
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_MOST_RUNS, _MOST_POINTS = 100, 2500


class Odd(Exception):
    """MLflow must judge the request."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Points to log to one run, by column; run and names are not checked.

    The other columns fit a `MetricLogged`: its check would take longer than reading them.
    """

    run_id: str
    names: tuple[str, ...]
    steps: tuple[int, ...]
    times_ms: tuple[int, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A page of a metric's history."""

    run_id: str
    name: str
    limit: int | None
    page_token: str | None


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """A sample of the histories of several runs."""

    run_ids: list[str]
    name: str
    size: int
    steps: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """A search of runs; its filter and order are not checked."""

    experiments: list[int]
    filter: str
    view: str
    limit: int
    order_by: list[str]
    page_token: str | None


_Text = Annotated[str, Meta(min_length=1)]


class _Point(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    key: _Text
    value: float | str
    timestamp: Annotated[int, Meta(ge=0, le=INT64_MAX)]
    step: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] = 0


class _One(_Point, kw_only=True):
    run_id: _Text
    run_uuid: str | UnsetType = UNSET


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    run_id: _Text
    metrics: Annotated[list[_Point], Meta(min_length=1, max_length=MOST_METRICS)]
    params: Annotated[list[Any], Meta(max_length=0)] = []
    tags: Annotated[list[Any], Meta(max_length=0)] = []


_READ_ONE, _READ_BATCH = msgspec.json.Decoder(_One), msgspec.json.Decoder(_Batch)


def log_metric(body: bytes) -> Logged:
    """The body of log-metric. Raises Odd."""
    try:
        one = _READ_ONE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Odd from None
    if one.run_uuid is not UNSET and one.run_uuid != one.run_id:
        raise Odd
    return _logged(one.run_id, [one])


def log_batch(body: bytes) -> Logged:
    """The body of log-batch, with metrics alone. Raises Odd."""
    try:
        batch = _READ_BATCH.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Odd from None
    return _logged(batch.run_id, batch.metrics)


def history(query: bytes) -> HistoryQuery:
    """The query of metrics/get-history. Raises Odd."""
    asked = _only(_query(query, _HISTORY))
    run_id = _text(asked.get("run_id"))
    if asked.get("run_uuid", run_id) != run_id:
        raise Odd
    limit = _integer(asked["max_results"]) if "max_results" in asked else None
    if limit is not None and limit < 1:
        raise Odd
    token = asked.get("page_token") or None
    return HistoryQuery(run_id, _text(asked.get("metric_key")), limit, token)


def sample(query: bytes) -> SampleQuery:
    """The query of metrics/get-history-bulk-interval. Raises Odd."""
    asked = _query(query, _SAMPLE)
    run_ids = asked.pop("run_ids", [])
    if not 0 < len(run_ids) <= _MOST_RUNS or len(set(run_ids)) < len(run_ids):
        raise Odd
    only = _only(asked)
    name = _text(only.pop("metric_key", None))
    numbers = {field: _integer(text) for field, text in only.items()}
    size = numbers.get("max_results", _MOST_POINTS)
    low, high = numbers.get("start_step"), numbers.get("end_step")
    if not 0 < size <= _MOST_POINTS or (low is None) != (high is None):
        raise Odd
    if low is None or high is None:
        return SampleQuery(run_ids, name, size, None)
    if low > high:
        raise Odd
    return SampleQuery(run_ids, name, size, (low, high))


def search_runs(body: bytes) -> RunsQuery:
    """The body of runs/search. Raises Odd."""
    asked = _object(body, frozenset(_SEARCH))
    if any(type(value) is not _SEARCH[name] for name, value in asked.items()):
        raise Odd
    experiments, order = asked.get("experiment_ids", []), asked.get("order_by", [])
    limit, view = asked.get("max_results", 1000), asked.get("run_view_type", "ACTIVE_ONLY")
    if not all(type(one) is str for one in (*experiments, *order)):
        raise Odd
    if not 0 < limit <= _MOST_FOUND or view not in _VIEWS:
        raise Odd
    token = asked.get("page_token") or None
    ids = [_integer(one) for one in experiments]
    return RunsQuery(ids, asked.get("filter", ""), view, limit, order, token)


def _logged(run_id: str, points: Sequence[_Point]) -> Logged:
    given = [point.value for point in points]
    finite = str not in set(map(type, given))
    values = cast("list[float]", given) if finite else [_value(value) for value in given]
    return Logged(
        run_id,
        tuple([point.key for point in points]),
        tuple([point.step for point in points]),
        tuple([point.timestamp for point in points]),
        tuple(values),
    )


def _value(given: float | str) -> float | None:
    """JSON has no numbers that are not finite: these are texts."""
    value = _NOT_FINITE.get(given) if isinstance(given, str) else given
    if value is None:
        raise Odd
    return published(value)


def _text(value: object) -> str:
    if type(value) is not str or not value:
        raise Odd
    return value


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise Odd
    return int(text)


def _object(body: bytes, known: frozenset[str]) -> dict[str, Any]:
    try:
        read = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise Odd from None
    if type(read) is not dict or not read.keys() <= known:
        raise Odd
    return read


def _query(query: bytes, known: frozenset[str]) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Odd from None
    read: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            raise Odd
        read.setdefault(name, []).append(value)
    return read


def _only(asked: Mapping[str, list[str]]) -> dict[str, str]:
    if any(len(values) > 1 for values in asked.values()):
        raise Odd
    return {name: values[0] for name, values in asked.items()}
