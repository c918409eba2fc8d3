"""The newest steps of jobs at a past time, from the history of their metrics.

1. A roll-up has the last time of each 1,000 steps. It says which thousand was being worked on.
2. Of that one, the rows of one metric of each job are read: the one that has most of the steps.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gangline_gateway.sql_parts import Where
from gangline_schemas.system_metrics import PLATFORM, PREFIX

Rows = Callable[[str, dict[str, Any]], list[dict[str, Any]]]
MOST = 300
_AT = "{at:DateTime64(3)}"
# The keys and aggregates of the roll-up by_1000_steps.
_THOUSANDS = (
    "SELECT run_id, name, intDiv(step, 1000) AS part, attempt, rank, team, "
    "min(step) AS first_step, max(step) AS last_step, argMax(time, step) AS last_time "
    "FROM gangline.steps {where} GROUP BY run_id, name, part, attempt, rank, team"
)
_OWN_ATTEMPT = "attempt = {attempts:Array(UInt32)}[indexOf({jobs:Array(String)}, toString(run_id))]"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a team's job."""

    team: str
    number: int


def steps_at(ask: Rows, jobs: Mapping[str, Attempt], at: datetime) -> dict[str, int]:
    """The newest step of each of these attempts, by job; one that had none is left out."""
    if not jobs:
        return {}
    where = Where()
    where.runs({job: attempt.team for job, attempt in jobs.items()})
    where.add(
        "NOT startsWith(name, {system:String}) AND NOT startsWith(name, {platform:String})",
        system=PREFIX,
        platform=PLATFORM,
    )
    own = {"jobs": list(jobs), "attempts": [attempt.number for attempt in jobs.values()], "at": at}
    thousands = ask(
        f"SELECT run_id, name, maxIf(last_step, last_time <= {_AT}) AS step, "
        f"minIf(part, last_time > {_AT}) AS part, countIf(last_time <= {_AT}) AS whole, "
        f"countIf(last_time > {_AT}) AS begun FROM ({_THOUSANDS.format(where=where.sql)}) "
        f"WHERE {_OWN_ATTEMPT} GROUP BY run_id, name "
        "ORDER BY run_id, sum(last_step - first_step) / uniq(rank) DESC, name LIMIT 1 BY run_id",
        where.parameters | own,
    )
    found = {row["run_id"]: row["step"] for row in thousands if row["whole"]}
    begun = [(row["run_id"], row["name"], row["part"]) for row in thousands if row["begun"]]
    if begun:
        rows = ask(
            "SELECT run_id, max(s.step) AS newest FROM gangline.steps AS s WHERE "
            "(run_id, name, intDiv(step, 1000)) IN {parts:Array(Tuple(String, String, UInt64))} "
            f"AND time <= {_AT} AND {_OWN_ATTEMPT} GROUP BY run_id",
            own | {"parts": begun},
        )
        found |= {row["run_id"]: row["newest"] for row in rows}
    return {job: int(step) for job, step in found.items()}
