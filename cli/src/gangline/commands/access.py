"""`gangline audit` and `gangline token`: who did what, and personal access tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline.commands.list_options import Newest, Since, start_of
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.access import MOST_DAYS
from gangline_schemas.api.access import AccessToken, AuditEntry


def audit(
    session: Session,
    *,
    user: Annotated[str | None, typer.Option(help="Only what this user did.")] = None,
    team: Annotated[str | None, typer.Option(help="Only this team's work.")] = None,
    action: Annotated[
        str | None,
        typer.Option(metavar="ACTION", help="Such as job.submit, or job for all of them."),
    ] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Only what users had no right to.")
    ] = False,
    since: Since = None,
    limit: Newest = 50,
) -> None:
    """List who did what, newest first: in your teams and yourself, or all for admins."""
    found = session.client.audit(
        user=user,
        team=team,
        action=action,
        outcome="refused" if refused else None,
        since=start_of(since),
        limit=limit,
    )
    session.out.listing(list(found), _ENTRIES, "nothing is recorded")


def _outcome(entry: AuditEntry) -> str:
    return entry.outcome if entry.outcome == "done" else f"{entry.outcome} ({entry.status})"


_ENTRIES = (
    Column[AuditEntry]("TIME (UTC)", lambda entry: f"{entry.time:%Y-%m-%d %H:%M:%S}"),
    Column[AuditEntry]("USER", lambda entry: entry.user or NONE, flexible=True),
    Column[AuditEntry]("ACTION", lambda entry: entry.action),
    Column[AuditEntry]("TARGET", lambda entry: entry.target or NONE, flexible=True),
    Column[AuditEntry]("TEAM", lambda entry: entry.team or NONE, flexible=True),
    Column[AuditEntry]("OUTCOME", _outcome),
    Column[AuditEntry]("VIA", lambda entry: entry.via),
)


def token_create(
    session: Session,
    name: Annotated[str, typer.Argument(help="Its purpose, such as nightly.")],
    *,
    scope: Annotated[
        str, typer.Option(metavar="read|submit|admin", help="The changes that it allows.")
    ] = "read",
    days: Annotated[int, typer.Option(min=1, max=MOST_DAYS, help="Until it expires.")] = 90,
    team: Annotated[
        list[str] | None, typer.Option(help="Only for this team; may be repeated.")
    ] = None,
) -> None:
    """Make a personal access token, and print it this once."""
    made = session.client.create_token(name, scope=scope, days=days, teams=team or ())
    if not session.out.json:
        session.out.note(f"{made.token_id}: scope {made.scope}, until {made.expires_at:%Y-%m-%d}")
        session.out.note("keep it safe: it is not shown again")
    session.out.show(made, made.token)


def token_list(
    session: Session,
    *,
    user: Annotated[str | None, typer.Option(help="Of this user; needs an admin.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Of all users; needs an admin.")] = False,
) -> None:
    """Your personal access tokens, newest first."""
    found = session.client.tokens(user, everybody=everybody)
    session.out.listing(found, _TOKENS, "there are no tokens")


def token_revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],
) -> None:
    """End a personal access token now, with its open streams."""
    session.client.revoke_token(token_id)
    session.out.show({"token_id": token_id, "state": "revoked"}, f"{token_id} is revoked")


_TOKENS = (
    Column[AccessToken]("ID", lambda one: one.token_id, whole=True),
    Column[AccessToken]("NAME", lambda one: one.name, flexible=True),
    Column[AccessToken]("OWNER", lambda one: one.owner, flexible=True),
    Column[AccessToken]("SCOPE", lambda one: one.scope),
    Column[AccessToken]("TEAMS", lambda one: ", ".join(one.teams) or "all", flexible=True),
    Column[AccessToken]("UNTIL", lambda one: f"{one.expires_at:%Y-%m-%d}"),
    Column[AccessToken]("STATE", lambda one: one.state),
)
