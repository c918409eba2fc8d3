"""The period of a report: from and to, or a week. Pure; `now` is an argument.

A period never ends after `now`: future time does not count as idle.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from gangline_gateway.reports.facts import Period

DAY, WEEK = timedelta(days=1), timedelta(days=7)
LONGEST = timedelta(days=92)
WEEK_PATTERN = r"^[0-9]{4}-W[0-9]{2}$"


class PeriodError(ValueError):
    """The period is invalid. `field` is the wrong parameter."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def span(since: datetime | None, until: datetime | None, now: datetime) -> Period:
    """From `since` to `until`, 24 hours if one is missing. Raises PeriodError."""
    for field, moment in (("from", since), ("to", until)):
        _check(field, moment)
    end = now if until is None else min(until, now)
    start = end - DAY if since is None else since
    if start >= end:
        raise PeriodError("from", "must be before `to` and before now")
    if end - start > LONGEST:
        raise PeriodError("from", f"must be at most {LONGEST.days} days before `to`")
    return Period(start.astimezone(UTC), end.astimezone(UTC))


def week_of(text: str | None, now: datetime) -> Period:
    """The ISO week (Monday 00:00 UTC to Monday), so far; None: the last 7 days.

    Raises PeriodError.
    """
    if text is None:
        return Period(now - WEEK, now)
    if not re.fullmatch(WEEK_PATTERN, text):
        raise PeriodError("week", "must be an ISO week such as 2026-W47")
    year, week = int(text[:4]), int(text[6:])
    try:
        first = datetime.fromisocalendar(year, week, 1).replace(tzinfo=UTC)
    except ValueError:
        raise PeriodError("week", f"{year} has no week {week}; weeks are 01 to 52 or 53") from None
    _check("week", first)
    if first >= now:
        raise PeriodError("week", "has not begun yet")
    return Period(first, min(first + WEEK, now))


def _check(field: str, moment: datetime | None) -> None:
    if moment is None:
        return
    if moment.tzinfo is None:
        raise PeriodError(field, "must have a zone, such as 2026-11-21T08:00:00Z")
    if not 1970 < moment.year < 2200:
        raise PeriodError(field, "must lie between 1971 and 2200")
