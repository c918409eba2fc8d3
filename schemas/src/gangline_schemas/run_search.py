"""A search of runs as the gateway asks the MLflow server for it: a filter that is read already."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .api.runs import Run
from .base import Model

RUNS_PATH = "/gangline/runs"
"""The route of the MLflow server."""
Kind = Literal["param", "metric", "tag", "attribute"]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "LIKE", "ILIKE", "IN", "NOT IN"]
Value = float | str


class RunKey(Model):
    """A thing that a run may have. `name` of an attribute is one of the gateway's filter."""

    kind: Kind
    name: str


class RunTest(Model):
    """A comparison. It is false for a run without the key, except `IS NULL`."""

    key: RunKey
    operator: Operator
    value: Value | tuple[Value, ...] | None
    """Several for IN and NOT IN; None with = is IS NULL, and with != IS NOT NULL."""
    is_number: bool
    """Parameters and tags are compared as numbers; a text that is none counts as missing."""


class RunOrder(Model):
    """A key of the order; runs without it come last."""

    key: RunKey
    is_number: bool
    down: bool


class RunSearch(Model):
    """A page of runs. An empty field accepts all; times are Unix milliseconds."""

    teams: tuple[str, ...] | None = None
    """None: of all teams."""
    states: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    name_contains: str = ""
    submitted_from_ms: int | None = None
    submitted_before_ms: int | None = None
    run_ids: tuple[str, ...] = ()
    """By id, also the own runs of jobs, which other searches leave out."""
    tests: tuple[RunTest, ...] = ()
    order: tuple[RunOrder, ...] = ()
    """The last one differs for each two runs."""
    after: tuple[Value | None, ...] | None = None
    """The values of `order` of the last run before this page."""
    limit: Annotated[int, Field(ge=1, le=2000)]


class FoundRun(Model):
    """A run, and its values of the order."""

    run: Run
    order: tuple[Value | None, ...]


class FoundRuns(Model):
    """The answer."""

    runs: tuple[FoundRun, ...]
