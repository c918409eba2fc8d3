"""Jobs of a trace: any CSV with submit time, duration and GPUs; maybe worker, team and priority.

Columns are found by their usual names (`SYNONYMS`) or named by the caller. Times are seconds, or
dates with a time; all of one file are of one kind. A file with `iterations` and `iteration_time`
is read as the Muri artifact's: its times are milliseconds and a job runs iterations times
iteration_time. Rows with 0 GPUs are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from gangline_simulator.errors import BadInputError
from gangline_simulator.rows import Row, Table

SYNONYMS: dict[str, tuple[str, ...]] = {
    "submit": (
        "submit",
        "submit_time",
        "timestamp",
        "submitted_at",
        "submission_time",
        "arrival_time",
    ),
    "duration": ("duration", "run_time", "runtime", "duration_s", "run_time_s", "execution_time"),
    "gpus": ("gpus", "num_gpus", "num_gpu", "gpu_num", "gpu_count", "gpu"),
    "gpus_per_worker": ("gpus_per_worker", "gpus_per_task"),
    "team": ("team", "vc", "cluster", "user", "queue", "group"),
    "priority": ("priority",),
    "job": ("job_id", "job", "jobname", "name", "id"),
    "model": ("model_name", "model"),
    "iterations": ("iterations", "num_iterations"),
    "iteration_time": ("iteration_time", "iteration_time_ms"),
}
DEFAULT_TEAM = "all"
_MOST_PRIORITY = 100
_MOST_GPUS = 16_384
_WAY_OUT = "or name it: --column {field}=COLUMN"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. `submit_s` counts from the first job; `duration_s` is what it runs undisturbed."""

    name: str
    submit_s: float
    duration_s: float
    gpus: int
    team: str = DEFAULT_TEAM
    priority: int = 50
    model: str = ""
    gpus_per_worker: int = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of submission; those of one moment in the order of the file.

    `start`: the moment of the first one, when the file tells dates. `without_gpus`: rows left out.
    """

    jobs: tuple[TraceJob, ...]
    start: datetime | None = None
    without_gpus: int = 0

    def of_teams(self, teams: Sequence[str]) -> Trace:
        """The jobs of these teams; times still count from this trace's first job."""
        wanted = frozenset(teams)
        return replace(self, jobs=tuple(job for job in self.jobs if job.team in wanted))


def read_trace(
    path: Path,
    columns: Mapping[str, str] | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Trace:
    """Read a trace (.csv, .csv.gz). `since` and `until` (not included) keep a window of dates.

    Raises BadInputError, which names file, row and field and says what is accepted.
    """
    chosen = dict(columns or {})
    unknown = sorted(chosen.keys() - SYNONYMS.keys())
    if unknown:
        raise BadInputError(
            path, f"{unknown[0]} is no field of a trace; fields: {', '.join(SYNONYMS)}"
        )
    table = Table(path, SYNONYMS, chosen)
    by_iterations = table.has("iterations", "iteration_time") and "duration" not in chosen
    table.require("submit", way_out=_WAY_OUT.format(field="submit"))
    if not by_iterations:
        table.require("duration", way_out=_WAY_OUT.format(field="duration"))
    table.require("gpus", way_out=_WAY_OUT.format(field="gpus"))
    return _collect(path, table, since, until, by_iterations=by_iterations)


def _collect(
    path: Path,
    table: Table,
    since: datetime | None,
    until: datetime | None,
    *,
    by_iterations: bool,
) -> Trace:
    found: list[tuple[float, TraceJob]] = []
    dated: bool | None = None
    left_out = 0
    for row in table.rows():
        moment, is_date = _moment(row, milliseconds=by_iterations)
        if dated is None:
            dated = is_date
        elif dated != is_date:
            raise row.bad("submit", "dates and numbers are mixed; accepted: one kind in one file")
        if is_date and not _within(moment, since, until):
            continue
        job = _job(row, by_iterations=by_iterations)
        if job is None:
            left_out += 1
        else:
            found.append((moment, job))
    if not found:
        raise BadInputError(path, "holds no job with GPUs in the window that was asked for")
    if (since or until) and not dated:
        raise BadInputError(path, "its submit times are numbers; a window needs dates")
    found.sort(key=lambda entry: entry[0])
    first = found[0][0]
    jobs = tuple(replace(job, submit_s=moment - first) for moment, job in found)
    start = datetime.fromtimestamp(first, UTC) if dated else None
    return Trace(jobs, start, left_out)


def _job(row: Row, *, by_iterations: bool) -> TraceJob | None:
    gpus = row.count("gpus")
    if gpus == 0:
        return None
    if gpus > _MOST_GPUS:
        raise row.bad("gpus", f"{gpus} is too many; accepted: up to {_MOST_GPUS}")
    each = row.count("gpus_per_worker", default=1)
    if each == 0 or gpus % each:
        raise row.bad("gpus_per_worker", f"{each} does not divide gpus ({gpus}); accepted: 1, ...")
    if by_iterations:
        duration = row.number_of("iterations") * row.number_of("iteration_time") / 1000.0
    else:
        duration = row.number_of("duration")
    priority = row.count("priority", default=50)
    if priority > _MOST_PRIORITY:
        raise row.bad("priority", f"{priority} is out of range; accepted: 0 (highest) to 100")
    return TraceJob(
        name=row.text("job", f"row-{row.number}"),
        submit_s=0.0,
        duration_s=duration,
        gpus=gpus,
        team=team_name(row.text("team", DEFAULT_TEAM)),
        priority=priority,
        model=row.text("model"),
        gpus_per_worker=each,
    )


def team_name(text: str) -> str:
    """The text as a team's name: lower case, '-' for what a name cannot hold."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name or DEFAULT_TEAM


def _moment(row: Row, *, milliseconds: bool) -> tuple[float, bool]:
    """Seconds, and whether the cell holds a date; a date without a zone counts as UTC."""
    text = row.text("submit")
    try:
        float(text)
    except ValueError:
        pass
    else:
        return row.number_of("submit") / (1000.0 if milliseconds else 1.0), False
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise row.bad(
            "submit",
            f"{text!r} is no time; accepted: seconds, or a date like 2017-10-01 12:30:00",
        ) from None
    return _utc(date).timestamp(), True


def _within(moment: float, since: datetime | None, until: datetime | None) -> bool:
    if since is not None and moment < _utc(since).timestamp():
        return False
    return until is None or moment < _utc(until).timestamp()


def _utc(date: datetime) -> datetime:
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date


def day(text: str, *, end: bool = False) -> datetime:
    """A day or moment of the command line; `end`: a day counts to its end. Raises ValueError."""
    found = _utc(datetime.fromisoformat(text))
    whole_day = end and found.time() == time() and len(text) <= len("2017-10-01")
    return found + timedelta(days=1) if whole_day else found
