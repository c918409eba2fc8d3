"""Comparison: up to 50 runs, their curves over one another, and what differs between them.

The address is the whole view: `runs`, `tab`, `metric`, `x`, `smooth`, `log`, `band`, `first` and
`last` (the zoom), `hide`, `brush`, and the axes of the scatter plot `sx`, `sy`, `sc`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from gangline_console.client import ApiError
from gangline_console.page import Page, View
from gangline_console.pages.compare import grids
from gangline_console.pages.runs import by_ids, split
from gangline_console.pages.runs.columns import metric_names
from gangline_schemas.api.runs import MAX_COMPARED, Axis, Comparison, Run

TABS = (
    ("curves", "Curves"),
    ("config", "Differences"),
    ("metrics", "Metrics"),
    ("axes", "Parallel axes"),
    ("scatter", "Scatter"),
    ("resources", "Resources"),
)
PLOTS = 4
"""Metrics that are drawn if none is chosen."""
MOST_PLOTS = 24
FEW_RUNS, POINTS_OF_FEW, POINTS = 10, 600, 300
"""So many points of a curve; a zoom reads finer ones."""
_STATE = ("x", "smooth", "log", "band", "first", "last", "hide", "brush", "sx", "sy", "sc")


async def _show(view: View) -> Response:
    ids, dropped = _ids(view)
    if not ids:
        return view.render("compare/none.html", lost=[], found=[], most=MAX_COMPARED)
    try:
        found = await view.api.get("/v1/runs/compare", Comparison, {"run": ids, "curves": False})
    except ApiError as error:
        if error.status != 404:
            raise
        return await _lost(view, ids)
    return view.render("compare/page.html", dropped=dropped, **_page(view, found))


async def _lost(view: View, ids: list[str]) -> Response:
    """Which of the runs are not there; the others can be compared."""
    known = {run.run_id for run in (await by_ids(view, ids)).runs}
    return view.render(
        "compare/none.html",
        404,
        lost=[run_id for run_id in ids if run_id not in known],
        found=[run_id for run_id in ids if run_id in known],
        most=MAX_COMPARED,
    )


def _ids(view: View) -> tuple[list[str], int]:
    """The runs of the address, and how many more it names than a comparison takes."""
    given = ",".join([*view.query_all("runs"), *view.query_all("run")])
    ids = split(given)
    return ids, len({*filter(None, given.split(","))}) - len(ids)


def _page(view: View, found: Comparison) -> dict[str, Any]:
    ids = [run.run_id for run in found.runs]
    names = metric_names(found.metrics)
    chosen = [name for name in dict.fromkeys(view.query_all("metric")) if name][:MOST_PLOTS]
    tab = view.query("tab")
    tabs = {name for name, _ in TABS}
    kept = {name: view.query(name) for name in _STATE}
    kept |= {end: kept[end] if _is_number(kept[end]) else "" for end in ("first", "last")}
    address = {"runs": ",".join(ids), "metric": chosen, **kept}
    axes: tuple[str, ...] = get_args(Axis)
    plots = chosen or names[:PLOTS]
    axis = kept["x"] if kept["x"] in axes else "step"
    points = POINTS if len(ids) > FEW_RUNS else POINTS_OF_FEW
    return {
        "found": found,
        "lines": lines(found.runs),
        "names": names,
        "plots": plots,
        "first_read": _first_read(ids, plots[0], axis, points, kept) if plots else "",
        "chosen": chosen,
        "address": address,
        "tab": tab if tab in tabs else "curves",
        "tabs": TABS,
        "axes": axes if "tokens" in found.metrics else tuple(a for a in axes if a != "tokens"),
        "axis": axis,
        "points": points,
        "differences": grids.differences(found),
        "finals": grids.finals(found),
        "code": grids.code(found),
    }


def lines(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Each run with its name in plots: its id where others have the same name, or it has none."""
    count = Counter(run.name for run in runs)
    return [
        {"id": run.run_id, "name": run.name if run.name and count[run.name] == 1 else run.run_id}
        for run in runs
    ]


def _is_number(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


def _first_read(ids: list[str], name: str, axis: str, points: int, kept: Mapping[str, str]) -> str:
    """The address of the first plot's curves: the browser asks for it while it reads the page."""
    pairs = [("points", str(points)), ("axis", axis), *(("run", run_id) for run_id in ids)]
    ends = [(end, kept[end]) for end in ("first", "last") if kept[end]]
    return f"/v1/runs/overlay?{urlencode([*pairs, ('name', name), *ends])}"


PAGE = Page("compare", "Comparison", under="runs", get={"/compare": _show})
