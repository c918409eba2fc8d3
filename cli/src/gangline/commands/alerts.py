"""`gangline alerts` and `gangline notifications`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.alerts import Alert, SentNotification, Silence

_ALERTS = (
    Column("NO", right=True),
    Column("SINCE", right=True),
    Column("SEVERITY"),
    Column("RULE"),
    Column("ABOUT", flexible=True),
    Column("TEAM", flexible=True),
    Column("STATE"),
)
_SILENCES = (
    Column("NO", right=True),
    Column("LEFT", right=True),
    Column("RULE"),
    Column("TEAM", flexible=True),
    Column("ABOUT", flexible=True),
    Column("BY", flexible=True),
    Column("COMMENT", flexible=True),
)
_NOTIFICATIONS = (
    Column("ID"),
    Column("AGE", right=True),
    Column("RECEIVER", flexible=True),
    Column("ABOUT", flexible=True),
    Column("STATE"),
    Column("TRIES", right=True),
    Column("ANSWER", flexible=True),
)


def alerts(
    context: typer.Context,
    session: Session,
    *,
    ended: Annotated[bool, typer.Option("--all", help="Resolved ones too.")] = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="The newest so many.")] = 50,
) -> None:
    """Alerts that hold, the newest first, each with its value and the way out."""
    if context.invoked_subcommand is not None:
        return
    now = datetime.now(UTC)
    found = session.client.alerts(ended=ended, limit=limit)
    if not found or session.out.json:
        session.out.table(found, _ALERTS, [], "no alerts")
        return
    words = "\n".join(
        render.wrap(f"{one.number}: {one.message}", "  ") for one in reversed([*found][:20])
    )
    table = render.table(_ALERTS, [_alert(one, now) for one in found])
    session.out.show(found, f"{table}\n\n{words}")


def silence(
    session: Session,
    number: Annotated[
        int | None, typer.Argument(metavar="[ALERT]", help="The number of an alert.")
    ] = None,
    *,
    rule: Annotated[str | None, typer.Option(help="Alerts of this rule.")] = None,
    team: Annotated[str | None, typer.Option(help="Alerts of this team's jobs.")] = None,
    job: Annotated[str | None, typer.Option(help="Alerts of this job.")] = None,
    hours: Annotated[float, typer.Option(min=0, help="For so long.")] = 4.0,
    comment: Annotated[str, typer.Option(help="Why, for others.")] = "",
) -> None:
    """Send no notifications of an alert, or of all that fit the options."""
    if number is None and rule is None and team is None and job is None:
        raise CliError("which alerts?", "give a number, --rule, --team or --job", ExitCode.USAGE)
    begun = session.client.silence(
        number, rule=rule, team=team, subject=job, hours=hours, comment=comment
    )
    text = f"silence {begun.number} holds until {begun.until:%Y-%m-%d %H:%M} UTC: {_scope(begun)}"
    session.out.show(begun, render.wrap(text))


def silences(session: Session) -> None:
    """Silences that hold."""
    now = datetime.now(UTC)
    found = session.client.silences()
    session.out.table(found, _SILENCES, [_silence(one, now) for one in found], "no silences")


def unsilence(
    session: Session, number: Annotated[int, typer.Argument(metavar="SILENCE", min=1)]
) -> None:
    """End a silence. Its alerts that still hold are notified then."""
    ended = session.client.unsilence(number)
    session.out.show(ended, f"silence {ended.number} has ended: {_scope(ended)}")


def notifications(
    session: Session,
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="The newest so many.")] = 50,
) -> None:
    """Notifications of alerts and of jobs, and how far their deliveries are."""
    now = datetime.now(UTC)
    found = session.client.notifications(limit=limit)
    rows = [_notification(one, now) for one in found]
    session.out.table(found, _NOTIFICATIONS, rows, "no notifications")


def _alert(one: Alert, now: datetime) -> list[str]:
    state = "resolved" if one.resolved_at is not None else "holds"
    if one.silence is not None and one.resolved_at is None:
        state = f"silenced by {one.silence}"
    return [
        str(one.number),
        render.short_age(one.raised_at, now),
        str(one.severity),
        str(one.rule),
        one.subject,
        one.team or NONE,
        state,
    ]


def _silence(one: Silence, now: datetime) -> list[str]:
    return [
        str(one.number),
        render.duration((one.until - now).total_seconds()),
        str(one.rule or "all"),
        one.team or "all",
        one.subject or "all",
        one.user,
        one.comment or NONE,
    ]


def _scope(one: Silence) -> str:
    parts = [("rule", one.rule), ("team", one.team), ("about", one.subject)]
    named = [f"{name} {value}" for name, value in parts if value is not None]
    return ", ".join(named) or "all alerts"


def _notification(one: SentNotification, now: datetime) -> list[str]:
    return [
        one.notification,
        render.short_age(one.due_at, now),
        one.target,
        one.about,
        str(one.state),
        str(one.tries),
        one.text or NONE,
    ]
