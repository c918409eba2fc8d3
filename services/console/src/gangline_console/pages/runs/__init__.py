"""Runs: all runs of history in a table over parameters, metrics, attributes and tags."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from starlette.responses import Response

from gangline_console.client import ApiError, Query
from gangline_console.page import Page, View
from gangline_console.pages.runs import columns as of
from gangline_schemas.api.jobs import KnownState
from gangline_schemas.api.runs import MAX_COMPARED, Final, Run, RunPage

PATH = "/v1/runs"
SIZES = (25, 50, 100, 200)
CSV_RUNS = 2000
MOST_COLUMNS = 40
PAGES_BACK = 20
_PAGE = 200
_FILTERS = ("state", "team", "name", "where", "order")


@dataclass(frozen=True)
class Wrong:
    """A filter or an order that REST refused."""

    field: str
    text: str
    message: str

    @property
    def mark(self) -> str:
        """The text with a mark below the place that the message names; empty: it names none."""
        place = re.search(r"at character (\d+)", self.message)
        if place is None or "\n" in self.text:
            return ""
        return f"{self.text}\n{' ' * (int(place[1]) - 1)}^"


async def _show(view: View) -> Response:
    wanted = _wanted(view)
    (page, wrong), pins, teams = await asyncio.gather(
        _page(view, wanted), by_ids(view, split(view.query("pin")), metrics=True), view.teams()
    )
    metrics = {
        name: {**page.metrics.get(name, {}), **pins.metrics.get(name, {})}
        for name in {**page.metrics, **pins.metrics}
    }
    pinned = [run.run_id for run in pins.runs]
    rows = [*pins.runs, *(run for run in page.runs if run.run_id not in pinned)]
    chosen = [key for key in wanted["col"] if of.column(key)]
    keys = chosen or of.usual(rows, metrics)
    shown = [found for key in keys if (found := of.column(key))]
    return view.render(
        "runs/page.html",
        rows=rows,
        pinned=pinned,
        metrics=metrics,
        columns=shown,
        best=of.bests(shown, metrics),
        choices=_choices(rows, metrics, keys),
        wanted=wanted,
        place=_place(view),
        next_cursor=page.cursor,
        filtered=any(wanted[name] for name in _FILTERS[:-1]),
        wrong=wrong,
        states=get_args(KnownState),
        teams=teams,
        sizes=SIZES,
        most=MAX_COMPARED,
        csv_runs=CSV_RUNS,
    )


async def _page(view: View, wanted: dict[str, Any]) -> tuple[RunPage, Wrong | None]:
    """The runs of the page; none of them where the filter or the order is wrong."""
    try:
        query = {**_asked(wanted), "cursor": view.query("cursor") or None}
        return await view.api.get(PATH, RunPage, query), None
    except ApiError as error:
        wrong = _wrong(error, wanted)
        if wrong is None:
            raise
        return RunPage(runs=[], cursor=None), wrong


async def _csv(view: View) -> Response:
    """All runs of the filter, with all their parameters and metrics."""
    wanted = _wanted(view)
    runs: list[Run] = []
    metrics: dict[str, dict[str, Final]] = {}
    cursor: str | None = None
    while len(runs) < CSV_RUNS:
        page = await view.api.get(
            PATH, RunPage, {**_asked(wanted), "limit": _PAGE, "cursor": cursor}
        )
        runs += page.runs
        for name, by_run in page.metrics.items():
            metrics.setdefault(name, {}).update(by_run)
        cursor = page.cursor
        if cursor is None:
            break
    headers = {"content-disposition": 'attachment; filename="runs.csv"'}
    # Other pages do not wait for it.
    text = await asyncio.to_thread(table, runs, metrics)
    return Response(text, headers=headers, media_type="text/csv; charset=utf-8")


def table(runs: Sequence[Run], metrics: of.Finals) -> str:
    """Runs as CSV: ids and names, then each attribute, parameter, tag and metric."""
    keys = [
        *of.ATTRIBUTES,
        *(f"params.{name}" for name in of.param_names(runs)),
        *(f"tags.{name}" for name in of.tag_names(runs)),
        *(f"metrics.{name}" for name in sorted(metrics)),
    ]
    places = {key: at for at, key in enumerate(filter(of.column, keys), 2)}
    finals: dict[str, dict[str, float]] = defaultdict(dict)
    for name, by_run in metrics.items():
        for run_id, final in by_run.items():
            finals[run_id][f"metrics.{name}"] = final.value
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["run_id", "name", *map(of.plain, places)])
    for run in runs:  # cells that a run has: together, the runs may have very many columns
        row = [run.run_id, of.plain(run.name), *[""] * len(places)]
        cells: dict[str, of.Value] = {key: of.attribute(run, key) for key in of.ATTRIBUTES}
        cells |= {f"params.{name}": value for name, value in run.hyperparameters.items()}
        cells |= {f"tags.{name}": value for name, value in run.tags.items()}
        for key, value in (cells | finals[run.run_id]).items():
            if key in places:
                row[places[key]] = of.plain(value)
        writer.writerow(row)
    return text.getvalue()


def split(text: str) -> list[str]:
    """Ids with commas between them, each once, at most as many as a comparison takes."""
    return list(dict.fromkeys(filter(None, text.replace(" ", "").split(","))))[:MAX_COMPARED]


@dataclass(frozen=True)
class Place:
    """Where among the pages this one is, in the address; `before`: cursors of the pages before."""

    number: int
    cursor: str
    before: list[str]

    def after(self, cursor: str) -> dict[str, Any]:
        """The query of the next page."""
        before = [*self.before, self.cursor][-PAGES_BACK:] if self.cursor else []
        return {"page": self.number + 1, "cursor": cursor, "before": before}

    @property
    def here(self) -> dict[str, Any]:
        """The query of this page."""
        number = self.number if self.cursor else None
        return {"page": number, "cursor": self.cursor, "before": self.before}

    @property
    def previous(self) -> dict[str, Any] | None:
        """The query of the page before; None: it is not known, as too many pages lie between."""
        if self.number <= 2:
            return {}
        if not self.before:
            return None
        *before, cursor = self.before
        return {"page": self.number - 1, "cursor": cursor, "before": before}


def _place(view: View) -> Place:
    cursor, number = view.query("cursor"), view.query("page")
    if not cursor:
        return Place(1, "", [])
    known = number.isascii() and number.isdigit() and len(number) < 7
    before = view.query_all("before")[-PAGES_BACK:]
    return Place(max(2, int(number)) if known else len(before) + 2, cursor, before)


def _wanted(view: View) -> dict[str, Any]:
    """The view that the address holds, without its place among the pages."""
    size = view.query("size")
    return {
        **{name: view.query(name) for name in _FILTERS},
        "col": view.query_all("col")[:MOST_COLUMNS],
        "size": size if size in map(str, SIZES) else "",
        "pin": view.query("pin"),
        "sel": view.query("sel"),
    }


def _asked(wanted: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: wanted[name] or None for name in ("state", "team", "name", "where")},
        "order_by": wanted["order"] or None,
        "limit": int(wanted["size"] or 50),
        "metrics": True,
    }


def _wrong(error: ApiError, wanted: dict[str, Any]) -> Wrong | None:
    fields = {"where": "where", "order_by": "order"}
    for item in error.errors:
        if error.status == 422 and item.field in fields:
            text = wanted[fields[item.field]]
            return Wrong(item.field, text, item.message)
    return None


async def by_ids(view: View, ids: list[str], *, metrics: bool = False) -> RunPage:
    """These runs in this order; those that are not there are left out."""
    if not ids:
        return RunPage(runs=[], cursor=None)
    quoted = ", ".join("'" + run_id.replace("'", "''") + "'" for run_id in ids)
    query: Query = {"where": f"run_id IN ({quoted})", "limit": len(ids), "metrics": metrics}
    page = await view.api.get(PATH, RunPage, query)
    place = {run_id: number for number, run_id in enumerate(ids)}
    runs = sorted(page.runs, key=lambda run: place.get(run.run_id, 0))
    return page.model_copy(update={"runs": runs})


def _choices(
    rows: Sequence[Run], metrics: of.Finals, keys: Sequence[str]
) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Groups of columns to choose from: key, title, whether it is shown."""
    groups = (
        ("Attributes", list(of.ATTRIBUTES)),
        ("Metrics", [f"metrics.{name}" for name in of.metric_names(metrics)]),
        ("Parameters", [f"params.{name}" for name in of.param_names(rows)]),
        ("Tags", [f"tags.{name}" for name in of.tag_names(rows)]),
    )
    known = {key for _, listed in groups for key in listed}
    others = [key for key in keys if key not in known]
    made = []
    for title, listed in (*groups, ("Chosen, and on no run of this page", others)):
        found = [of.column(key) for key in listed]
        made.append((title, [(item.key, item.title, item.key in keys) for item in found if item]))
    return [(title, listed) for title, listed in made if listed]


PAGE = Page("runs", "Runs", nav="/runs", icon="runs", get={"/runs": _show, "/runs.csv": _csv})
