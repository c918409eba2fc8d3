"""One study: its best trial, curves with rungs, importance, parallel axes, and all trials."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.client import Query
from gangline_console.ordering import Ways
from gangline_console.page import Page, View
from gangline_console.pages.studies import REASONS, STATES
from gangline_schemas.api.studies import (
    ENOUGH_TRIALS,
    ParetoFront,
    StudyDetail,
    StudyImportance,
    Trial,
    TrialPage,
)
from gangline_schemas.job_file import write_yaml

TRIAL_STATES: dict[str, tuple[str, str]] = {
    "waiting": ("wait", "◌"),
    "running": ("run", "▶"),
    "paused": ("warn", "‖"),
    "completed": ("good", "✓"),
    "pruned": ("off", "✂"),
    "failed": ("bad", "✕"),
}
"""Kind and icon of each state of a trial."""
TRIAL_REASONS = {
    "rung": "others were better at its rung",
    "median": "worse than the median",
    "replaced": "replaced by a better one",
    "not_finite": "its value was not finite",
    "ended": "its study ended",
}
"""Why a trial was pruned."""
_ORDERS = ("number", "newest", "gpu_hours")
"""Orders of the table besides the best first."""
TABS = (
    ("overview", "Overview"),
    ("axes", "Parallel axes"),
    ("trials", "Trials"),
    ("config", "Configuration"),
)
PARAMETERS = 12
"""Columns of parameters in the table of trials."""
BEST, PAGE_OF_TRIALS = 8, 100


def study_path(study_id: str) -> str:
    """REST's path of a study, whatever the id is."""
    return f"/v1/studies/{quote(study_id, safe='')}"


async def _show(view: View) -> Response:
    study_id = view.path("study_id")
    path = study_path(study_id)
    study = await view.api.get(path, StudyDetail)
    wanted = view.query("tab")
    tab = wanted if wanted in dict(TABS) else "overview"
    values = await _LOADED[tab](view, path, study)
    here = f"/console/studies/{quote(study_id, safe='')}"
    return view.render(
        "study/page.html",
        study=study,
        here=here,
        tab=tab,
        tabs=[
            (name, title, here if name == "overview" else f"{here}?tab={name}")
            for name, title in TABS
        ],
        states=STATES,
        trial_states=TRIAL_STATES,
        reasons=REASONS,
        trial_reasons=TRIAL_REASONS,
        **values,
    )


async def _overview(view: View, path: str, study: StudyDetail) -> dict[str, Any]:
    query: Query = {"order_by": "value", "limit": BEST}
    found, importance, front = await asyncio.gather(
        view.api.get(f"{path}/trials", TrialPage, query),
        view.api.part(f"{path}/importance", StudyImportance),
        view.api.part(f"{path}/pareto", ParetoFront) if len(study.objectives) > 1 else _nothing(),
    )
    trials = front.trials if front is not None else found.trials
    return {
        "trials": trials,
        "names": parameter_names(trials),
        "importance": importance,
        "enough": ENOUGH_TRIALS,
    }


async def _nothing() -> None:
    return None


async def _axes(_view: View, _path: str, _study: StudyDetail) -> dict[str, Any]:
    return {}


async def _trials(view: View, path: str, study: StudyDetail) -> dict[str, Any]:
    wanted = {name: view.query(name) for name in ("state", "order")}
    if wanted["order"] not in _ORDERS:
        wanted["order"] = ""
    cursor = view.query("cursor")
    query = {
        "state": wanted["state"] or None,
        "order_by": wanted["order"] or "value",
        "limit": PAGE_OF_TRIALS,
        "cursor": cursor or None,
    }
    page = await view.api.get(f"{path}/trials", TrialPage, query)
    return {
        "trials": page.trials,
        "names": parameter_names(page.trials),
        "wanted": {"tab": "trials", **wanted},
        "cursor": cursor,
        "next_cursor": page.cursor,
        "ways": ways(study),
    }


def ways(study: StudyDetail) -> dict[str, Ways]:
    """The orders of the table of trials by column."""
    least = study.objectives[0].direction == "minimize"
    return {
        "number": {"number": "ascending", "newest": "descending"},
        "value": {"": "ascending" if least else "descending"},
        "gpu_hours": {"gpu_hours": "descending"},
    }


async def _config(_view: View, _path: str, study: StudyDetail) -> dict[str, Any]:
    spec = study.spec
    content = None if spec is None else spec.model_dump(mode="json", exclude_defaults=True)
    return {"text": None if content is None else write_yaml({"version": 1, **content})}


_LOADED = {"overview": _overview, "axes": _axes, "trials": _trials, "config": _config}


def parameter_names(trials: list[Trial]) -> list[str]:
    """The parameters that a table of these trials shows."""
    names = dict.fromkeys(name for trial in trials for name in trial.parameters)
    return [*names][:PARAMETERS]


async def _stop(view: View) -> Response:
    study_id = view.path("study_id")
    await view.api.post(f"{study_path(study_id)}/stop", StudyDetail)
    return view.go(f"/studies/{quote(study_id, safe='')}")


PAGE = Page(
    "study",
    "Study",
    under="studies",
    get={"/studies/{study_id}": _show},
    post={"/studies/{study_id}/stop": _stop},
)
