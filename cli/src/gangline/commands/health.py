"""`gangline health` and `gangline search`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.health import DeadLetter, ServiceProcess
from gangline_schemas.api.search import Found


def health(
    session: Session,
    *,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Instead, records that services refused.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "-n", "--limit", min=1, max=200, help="At most this many dead letters, the newest."
        ),
    ] = 20,
) -> None:
    """Each process of the platform, with what it has still to read."""
    now = datetime.now(UTC)
    if dead_letters:
        page = session.client.dead_letters(limit=limit)
        session.out.listing(page.dead_letters, _letters(now), "no dead letters")
        return
    found = session.client.health()
    session.out.listing(found.services, _services(now), "no service reports")


def search(
    session: Session,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Words that all fit.")],
) -> None:
    """Find jobs, runs, nodes, teams and pages of the documentation."""
    found = session.client.search(" ".join(words))
    for note in found.notes:
        session.out.note(f"not searched: {note}")
    session.out.listing(found.found, _FOUND, "nothing found")


def _services(now: datetime) -> tuple[Column[ServiceProcess], ...]:
    return (
        Column("SERVICE", lambda one: one.service),
        Column("INSTANCE", lambda one: one.instance or NONE, flexible=True),
        Column("STATE", lambda one: str(one.state)),
        Column("VERSION", lambda one: one.version or NONE),
        Column("UNREAD", lambda one: _number(one.unread_records), right=True),
        Column("SNAPSHOT", lambda one: _snapshot(one, now), right=True),
        Column("HEARD", lambda one: render.short_age(one.reported_at, now), right=True),
    )


def _letters(now: datetime) -> tuple[Column[DeadLetter], ...]:
    return (
        Column("AGE", lambda one: render.short_age(one.refused_at, now), right=True),
        Column("RECORD", lambda one: f"{one.topic}/{one.partition}/{one.offset}"),
        Column("TYPE", lambda one: one.type or NONE, flexible=True),
        Column("REASON", lambda one: one.reason, flexible=True),
    )


_FOUND = (
    Column[Found]("KIND", lambda one: str(one.kind)),
    Column[Found]("ID", lambda one: one.id, whole=True),
    Column[Found]("NAME", lambda one: one.title, flexible=True),
    Column[Found]("DETAIL", lambda one: one.detail or NONE, flexible=True),
)


def _snapshot(one: ServiceProcess, now: datetime) -> str:
    newest = max((each.written_at for each in one.snapshots), default=None)
    return NONE if newest is None else render.short_age(newest, now)


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"
