"""The list of jobs: filters, orders, and cursors that hold while jobs change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Literal

from gangline_gateway.live_model import LiveJob
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import invalid
from gangline_service.tokens import Principal

OrderBy = Literal["created", "started", "priority", "gpus"]
_CURSOR = re.compile(r"(-?\d{1,16})\.(\d{1,16})\.([a-z0-9-]{1,63})", re.ASCII)
_NEVER = 1 << 53
_VALUES: dict[OrderBy, Callable[[LiveJob], int]] = {
    "created": lambda _: 0,
    "started": lambda job: _NEVER if job.started_at is None else -_ms(job.started_at),
    "priority": lambda job: job.priority,
    "gpus": lambda job: -job.gpus,
}
_Key = tuple[int, int, str]
"""A job's place: the value of the order, then the newest first, then the id."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are listed; None: all."""

    states: frozenset[str] = frozenset()
    team: str | None = None
    project: str | None = None
    user: str | None = None
    name: str | None = None
    """A prefix of the name."""
    text: str | None = None
    """A part of name, id, user or command, in any case."""

    def matches(self, job: LiveJob, *, any_state: bool = False) -> bool:
        """Whether a job is listed."""
        return (
            (any_state or not self.states or job.state in self.states)
            and self.team in {None, job.team}
            and self.user in {None, job.user}
            and self.project in {None, job.spec.project if job.spec is not None else ""}
            and job.name.startswith(self.name or "")
            and (not self.text or self.text.casefold() in _words(job))
        )


def _words(job: LiveJob) -> str:
    spec = job.spec
    command = (*spec.command, spec.run or "") if spec is not None else ()
    return "\n".join((job.name, job.job_id, job.user, *command)).casefold()


def counts(view: LiveView, caller: Principal, wanted: JobFilter) -> Counter[str]:
    """The caller's jobs by state; the filter's states do not matter."""
    return Counter(
        job.state
        for job in view.jobs.values()
        if caller.reads(job.team) and wanted.matches(job, any_state=True)
    )


def page(
    view: LiveView,
    caller: Principal,
    wanted: JobFilter,
    *,
    order_by: OrderBy = "created",
    reverse: bool = False,
    limit: int,
    cursor: str | None = None,
) -> tuple[list[LiveJob], str | None]:
    """Jobs of a page, and the cursor of the next one. Raises a 422 problem.

    A job that moves in the order between two pages may be on both of them, or on neither.
    """
    after = _read(cursor)
    value = _VALUES[order_by]

    def key(job: LiveJob) -> _Key:
        ms, job_id = job.place
        return value(job), -ms, job_id

    def is_next(job: LiveJob) -> bool:
        return after is None or (key(job) < after if reverse else key(job) > after)

    def listed(jobs: Iterator[LiveJob]) -> Iterator[LiveJob]:
        return (job for job in jobs if caller.reads(job.team) and wanted.matches(job))

    if order_by == "created" and not reverse:  # the view has this order
        before = None if after is None else (-after[1], after[2])
        found = list(islice(listed(view.newest_first(before)), limit + 1))
    else:
        rest = (job for job in listed(iter(view.jobs.values())) if is_next(job))
        found = (nlargest if reverse else nsmallest)(limit + 1, rest, key=key)
    if len(found) <= limit:
        return found, None
    last = key(found[limit - 1])
    return found[:limit], f"{last[0]}.{-last[1]}.{last[2]}"


def _read(cursor: str | None) -> _Key | None:
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise invalid("cursor", "must be the cursor of an earlier page")
    return int(found[1]), -int(found[2]), found[3]


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
