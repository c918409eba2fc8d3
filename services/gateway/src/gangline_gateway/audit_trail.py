"""Reads the audit log from ClickHouse, where the tracker keeps its records.

A client belongs to one thread.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from clickhouse_connect.driver.client import Client

from gangline_gateway.sql_parts import Where, cursor_of, fetch, ms, number, read_cursor
from gangline_schemas.api.access import AuditEntry, AuditPage
from gangline_schemas.catalog import Topic
from gangline_schemas.events.access import AUDIT_SUBJECT

MAX_PAGE = 500
_TEXTS = ("user", "role", "via", "token", "action", "target", "outcome", "address", "trace")
_COLUMNS = ", ".join(
    [
        "time", "team", "offset",
        *(f"JSONExtractString(data, '{name}') AS {name}_" for name in _TEXTS),
        "toUInt16(JSONExtractUInt(data, 'status')) AS status",
    ]
)  # fmt: skip
_FIELDS = {f"{name}_": name for name in _TEXTS}


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; an empty field accepts all."""

    teams: frozenset[str] | None = None
    """None: of all teams and of none."""
    own: str = ""
    """With `teams`: also the entries of this user; "": of no user."""
    user: str = ""
    team: str = ""
    action: str = ""
    """An action, or the part before its dot."""
    outcome: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def where(self) -> Where:
        """Conditions for rows of `events`."""
        where = Where()
        where.add(
            "subject = {subject:String} AND topic = {topic:String}",
            subject=AUDIT_SUBJECT, topic=Topic.AUDIT.value,
        )  # fmt: skip
        user, action = (f"JSONExtractString(data, '{name}')" for name in ("user", "action"))
        if self.teams is not None:
            own = f"OR {user} = {{own:String}} " if self.own else ""
            where.add(
                f"(team IN {{teams:Array(String)}} {own})",
                teams=sorted(self.teams), **({"own": self.own} if own else {}),
            )  # fmt: skip
        if self.user:
            where.add(f"{user} = {{user:String}}", user=self.user)
        if self.team:
            where.add("team = {team:String}", team=self.team)
        if self.action:
            where.add(
                f"({action} = {{action:String}} OR startsWith({action}, {{family:String}}))",
                action=self.action, family=f"{self.action}.",
            )  # fmt: skip
        if self.outcome:
            where.add("JSONExtractString(data, 'outcome') = {outcome:String}", outcome=self.outcome)
        if self.since is not None:
            where.add("time >= {since:DateTime64(3)}", since=self.since)
        if self.until is not None:
            where.add("time < {until:DateTime64(3)}", until=self.until)
        return where


class AuditTrail:
    """Queries about the audit log."""

    def __init__(self, client: Client) -> None:
        self._rows = partial(fetch, client)

    def page(self, wanted: AuditFilter, *, limit: int = 50, cursor: str | None = None) -> AuditPage:
        """A page, newest first. Raises CursorError."""
        where = wanted.where()
        if cursor is not None:
            after_ms, after = map(number, read_cursor(cursor, 2))
            where.add(
                "(time, offset) < (fromUnixTimestamp64Milli({after_ms:Int64}), {after:UInt64})",
                after_ms=after_ms, after=after,
            )  # fmt: skip
        size = max(1, min(limit, MAX_PAGE))
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM gangline.events {where.sql} "
            f"ORDER BY time DESC, offset DESC LIMIT {size + 1}",
            where.parameters,
        )
        last = rows[size - 1] if len(rows) > size else None
        return AuditPage(
            entries=[
                AuditEntry(
                    **{_FIELDS.get(name, name): row[name] for name in row if name != "offset"}
                )
                for row in rows[:size]
            ],
            cursor=cursor_of(ms(last["time"]), last["offset"]) if last is not None else None,
        )
