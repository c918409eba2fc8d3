"""Options that several commands with lists have: times, --since and --limit."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from gangline.errors import CliError, ExitCode

Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many.")]
Newest = Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many, the newest.")]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="Start: 2026-11-20, -2h or -7d.")]
_AGO = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def start_of(since: str | None) -> datetime | None:
    """The time of --since. Raises CliError."""
    return None if since is None else parse_time(since, datetime.now(UTC), "--since")


def parse_time(text: str, now: datetime, option: str = "--at") -> datetime:
    """A time of ISO 8601, or so long before `now` as in -90s, -15m, -2h, -1d. Raises CliError."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _UNITS_S[ago[2]])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CliError(
            f"{option}: {text!r} is no time",
            "give 2026-11-21T14:30, 2026-11-21T14:30:00+01:00, or -15m, -2h, -1d",
            ExitCode.USAGE,
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment > now:
        raise CliError(
            f"{option}: {text} has not come yet", "give a time in the past", ExitCode.USAGE
        )
    return moment.astimezone(UTC)
