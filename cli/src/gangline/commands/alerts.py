"""`gangline alerts` and `gangline notifications`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.list_options import Newest
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.alerts import Alert, SentNotification, Silence

IN_WORDS = 20
"""So many alerts are also explained in words."""


def alerts(
    session: Session,
    *,
    ended: Annotated[bool, typer.Option("--all", help="Also resolved alerts.")] = False,
    limit: Newest = 50,
) -> None:
    """Active alerts, newest first, each with its value and what to do."""
    found = session.client.alerts(ended=ended, limit=limit)
    session.out.listing(found, _alerts(datetime.now(UTC)), "no alerts")
    if found and not session.out.json:
        words = [render.wrap(f"{one.number}: {one.message}", "  ") for one in [*found][:IN_WORDS]]
        print("\n".join(["", *words]))


def silence(
    session: Session,
    number: Annotated[
        int | None, typer.Argument(metavar="ALERT", help="The number of an alert.")
    ] = None,
    *,
    rule: Annotated[str | None, typer.Option(help="Alerts of this rule.")] = None,
    team: Annotated[str | None, typer.Option(help="Alerts of this team's jobs and models.")] = None,
    job: Annotated[str | None, typer.Option(help="Alerts of this job.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL@ALIAS", help="Alerts about its data.")
    ] = None,
    hours: Annotated[float, typer.Option(min=0, help="How long, in hours.")] = 4.0,
    comment: Annotated[str, typer.Option(help="The reason, shown to others.")] = "",
) -> None:
    """Send no notifications of an alert, or of all alerts that match the options."""
    if number is None and rule is None and team is None and job is None and model is None:
        hint = "give a number, --rule, --team, --job or --model"
        raise CliError("which alerts?", hint, ExitCode.USAGE)
    if job is not None and model is not None:
        raise CliError("--job and --model: an alert is about one of them", "", ExitCode.USAGE)
    begun = session.client.silence(
        number, rule=rule, team=team, subject=job or model, hours=hours, comment=comment
    )
    text = f"silence {begun.number} holds until {begun.until:%Y-%m-%d %H:%M} UTC: {_scope(begun)}"
    session.out.show(begun, render.wrap(text))


def silences(session: Session) -> None:
    """Active silences."""
    session.out.listing(session.client.silences(), _silences(datetime.now(UTC)), "no silences")


def unsilence(
    session: Session,
    number: Annotated[
        int, typer.Argument(metavar="SILENCE", min=1, help="The number of a silence.")
    ],
) -> None:
    """End a silence; notifications of its active alerts are sent then."""
    ended = session.client.unsilence(number)
    session.out.show(ended, f"silence {ended.number} has ended: {_scope(ended)}")


def notifications(
    session: Session,
    *,
    limit: Newest = 50,
) -> None:
    """Notifications of alerts and of jobs, and the state of each delivery."""
    found = session.client.notifications(limit=limit)
    session.out.listing(found, _notifications(datetime.now(UTC)), "no notifications")
    failed = [one for one in found if one.text and one.state != "delivered"]
    if failed and not session.out.json:
        print("\n".join(["", *(_why(one) for one in failed[:IN_WORDS])]))


def _alerts(now: datetime) -> tuple[Column[Alert], ...]:
    return (
        Column("NO", lambda one: str(one.number), right=True),
        Column("SINCE", lambda one: render.short_age(one.raised_at, now), right=True),
        Column("SEVERITY", lambda one: str(one.severity)),
        Column("RULE", lambda one: f"{one.rule} {one.level}".rstrip()),
        Column("ABOUT", lambda one: one.subject, flexible=True),
        Column("TEAM", lambda one: one.team or NONE, flexible=True),
        Column("STATE", _state),
    )


def _state(one: Alert) -> str:
    if one.resolved_at is not None:
        return "resolved"
    return "holds" if one.silence is None else f"silenced by {one.silence}"


def _silences(now: datetime) -> tuple[Column[Silence], ...]:
    return (
        Column("NO", lambda one: str(one.number), right=True),
        Column("LEFT", lambda one: render.short_age(now, one.until), right=True),
        Column("RULE", lambda one: str(one.rule or "all")),
        Column("TEAM", lambda one: one.team or "all", flexible=True),
        Column("ABOUT", lambda one: one.subject or "all", flexible=True),
        Column("BY", lambda one: one.user, flexible=True),
        Column("COMMENT", lambda one: one.comment or NONE, flexible=True),
    )


def _notifications(now: datetime) -> tuple[Column[SentNotification], ...]:
    return (
        Column("ID", lambda one: one.notification),
        Column("AGE", lambda one: render.short_age(one.due_at, now), right=True),
        Column("RECEIVER", lambda one: one.target, flexible=True),
        Column("ABOUT", lambda one: one.about, flexible=True),
        Column("STATE", lambda one: str(one.state)),
        Column("TRIES", lambda one: str(one.tries), right=True),
        Column("ANSWER", lambda one: one.text or NONE, flexible=True),
    )


def _why(one: SentNotification) -> str:
    return render.wrap(f"{one.notification}: {one.text}", "  ")


def _scope(one: Silence) -> str:
    parts = [("rule", one.rule), ("team", one.team), ("about", one.subject)]
    named = [f"{name} {value}" for name, value in parts if value is not None]
    return ", ".join(named) or "all alerts"
