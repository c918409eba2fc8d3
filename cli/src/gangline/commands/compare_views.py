"""Other views of `gangline compare`: parallel axes, resources over time, uncommitted changes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.sdk import Gangline
from gangline.session import Session
from gangline_schemas.api.runs import Parallel, ResourceCurve, ResourcePoint

View = Literal["outcome", "parallel", "resources", "code"]
RESOURCES = (
    ("gpu utilization %", "gpu_utilization"),
    ("gpu SM activity %", "gpu_sm_activity"),
    ("gpu memory %", "gpu_memory"),
    ("gpu power W", "gpu_power_w"),
    ("cpu %", "cpu"),
    ("memory MB", "memory_mb"),
)
"""Measurements of nodes, by the names of fields."""
_OVER_TIME = (*RESOURCES, ("gpu-hours", "gpu_hours"), ("cost", "cost"))
_CURVE = 24
Row = tuple[str, list[str]]
"""A label, and the cell of each run."""


def parallel_rows(found: Parallel) -> list[Row]:
    """Each axis with the place of each run on it."""
    return [
        (axis.name, [_place(run.values[number]) for run in found.runs])
        for number, axis in enumerate(found.axes)
    ]


def _place(value: float | str | None) -> str:
    if value is None:
        return NONE
    return value if isinstance(value, str) else render.number(value)


def show_resources(session: Session, run_ids: Sequence[str]) -> None:
    """A line for each resource of each run: its last and highest value, and its curve."""
    found = session.client.resources(run_ids)
    rows = [
        (curve, label, values)
        for curve in found
        for label, field in _OVER_TIME
        if (values := _values(curve.points, field))
    ]
    columns: list[Column[tuple[ResourceCurve, str, list[float]]]] = [
        Column("RUN", lambda row: row[0].run_id, flexible=True),
        Column("RESOURCE", lambda row: row[1]),
        Column("LAST", lambda row: render.number(row[2][-1]), right=True),
        Column("HIGHEST", lambda row: render.number(max(row[2])), right=True),
        Column("CURVE", lambda row: render.sparkline(row[2], _CURVE)),
    ]
    session.out.listing(rows, columns, "no node has measured these runs", result=found)


def _values(points: Sequence[ResourcePoint], field: str) -> list[float]:
    values = (getattr(point, field) for point in points)
    return [value for value in values if value is not None]


def show_code(session: Session, run_ids: Sequence[str]) -> None:
    """How the changes differ that two runs had and no commit. Raises CliError for other runs."""
    if len(run_ids) != 2:
        raise CliError("--show code compares two runs", code=ExitCode.USAGE)
    first, second = run_ids
    before, after = (_uncommitted(session.client, run_id) for run_id in run_ids)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), first, second, lineterm=""
    )
    text = "\n".join(render.plain(line) for line in lines)
    same = "the uncommitted changes are the same" if before else "neither has uncommitted changes"
    if not text:
        session.out.note(same)
    session.out.show({"uncommitted": [before, after]}, text)


def _uncommitted(client: Gangline, run_id: str) -> str:
    """The changes that were sent with a job; the first event of a job has them."""
    first = next(client.job_events(run_id), None)
    spec = {} if first is None else first.data.get("spec", {})
    return str(spec.get("code_diff") or "")
