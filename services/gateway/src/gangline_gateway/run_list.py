"""Pages of runs: those of jobs from the tracker, and those of MLflow's clients from MLflow.

Each source gives its runs behind the cursor in the same order. The first ones of both are the page,
so no run is left out between two pages, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cmp_to_key

from gangline_gateway.app_context import AppContext
from gangline_gateway.history import RunFilter, page_size
from gangline_gateway.run_filter import RunQuery
from gangline_gateway.sql_parts import json_cursor, ms
from gangline_schemas.api.runs import RunKind, RunPage
from gangline_schemas.run_search import FoundRun, RunSearch, Value


def runs_page(
    app: AppContext,
    wanted: RunFilter,
    kind: RunKind | None = None,
    *,
    limit: int,
    cursor: str | None = None,
) -> RunPage:
    """A page of runs; by default of both sources if `wanted` has a filter or an order.

    Raises 422 and 503 problems. Blocks.
    """
    found = app.history.query(lambda q: q.history.runs(wanted, limit=limit, cursor=cursor))
    if kind is None:
        kind = "all" if wanted.where or wanted.order_by else "job"
    if kind == "all" and app.mlflow is not None:
        found += app.mlflow.search(search_of(wanted, limit=limit, cursor=cursor))
    return page_of(found, wanted, limit)


def search_of(wanted: RunFilter, *, limit: int, cursor: str | None) -> RunSearch:
    """The same for the MLflow server. Raises CursorError and FilterError."""
    query = RunQuery(wanted.where, wanted.order_by)
    since, until = wanted.submitted_from, wanted.submitted_before
    return RunSearch(
        teams=None if wanted.teams is None else tuple(sorted(wanted.teams)),
        states=wanted.states,
        users=wanted.users,
        projects=wanted.projects,
        name_contains=wanted.name_contains,
        submitted_from_ms=None if since is None else ms(since),
        submitted_before_ms=None if until is None else ms(until),
        tests=tuple(query.tests),
        order=tuple(query.order_keys),
        after=None if cursor is None else query.read(cursor),
        limit=page_size(limit) + 1,
    )


def page_of(found: Iterable[FoundRun], wanted: RunFilter, limit: int) -> RunPage:
    """The first of these runs in order, and the cursor of the next page if there are more."""
    down = [key.down for key in RunQuery(wanted.where, wanted.order_by).order_keys]
    rows = sorted(found, key=cmp_to_key(_before(down)))
    size = page_size(limit)
    after = json_cursor(rows[size - 1].order) if len(rows) > size else None
    return RunPage(runs=[row.run for row in rows[:size]], cursor=after)


def _before(down: Sequence[bool]) -> Callable[[FoundRun, FoundRun], int]:
    def compared(left: FoundRun, right: FoundRun) -> int:
        for one, other, is_down in zip(left.order, right.order, down, strict=True):
            if one != other:
                return _compared(one, other, is_down=is_down)
        return 0

    return compared


def _compared(one: Value | None, other: Value | None, *, is_down: bool) -> int:
    if one is None or other is None:  # missing values come last
        return 1 if one is None else -1
    is_less = one < other  # type: ignore[operator]  # of one key: both texts or both numbers
    return -1 if is_less != is_down else 1
