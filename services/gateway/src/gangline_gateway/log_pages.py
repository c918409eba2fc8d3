"""Pages of a job's log lines, in the order of the table, so that only a page is read."""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gangline_gateway.sql_parts import Where, cursor_of, ms, number, read_cursor
from gangline_schemas.api.logs import ERROR_LINE, LogLine, LogPage
from gangline_schemas.events.logs import WorkerLog

Rows = Callable[[str, dict[str, Any]], list[dict[str, Any]]]
_Place = tuple[int, int, int, int]
"""Attempt, milliseconds, rank and line: the order of lines and the content of a cursor."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines of a team's job; None accepts all."""

    job_id: str
    team: str
    rank: int | None = None
    attempt: int | None = None
    contains: str = ""
    """Part of the text, in any case."""
    errors: bool = False
    """Only lines that look like errors (`api.logs.ERROR_LINE`)."""

    def takes(self, event: WorkerLog) -> bool:
        """Whether the filter accepts the lines of this event, by its job, rank and attempt."""
        ours = (event.job_id, event.team) == (self.job_id, self.team)
        return ours and self.rank in {None, event.rank} and self.attempt in {None, event.attempt}

    def takes_line(self, text: str) -> bool:
        """Whether the filter accepts a line of such an event, by its text."""
        if self.errors and ERROR_LINE.search(text) is None:
            return False
        return self.contains.casefold() in text.casefold()


_COLUMNS = ", ".join(LogLine.model_fields)


def log_page(
    ask: Rows, wanted: LogFilter, *, size: int, cursor: str | None = None, tail: bool = False
) -> LogPage:
    """`size` lines after `cursor`; with `tail` the last ones before it. Raises CursorError."""
    where = _where(wanted)
    after = None if cursor is None else _read(cursor)
    lines: dict[_Place, LogLine] = {}
    while len(lines) < size:
        # A line may come twice: an agent sends it again if it does not know whether it arrived.
        rows = _rows(ask, where, after, size, tail=tail)
        for row in rows:
            lines.setdefault(_place(row), row)
        if len(rows) < size:
            break
        after = _place(rows[-1])
    page = list(lines.values())[:size]
    if not page:
        return LogPage(lines=[], cursor=cursor, start=cursor)
    if tail:
        page.reverse()
    ends = (cursor_of(*_place(page[-1])), cursor_of(*_place(page[0])))
    return LogPage(lines=page, cursor=ends[0], start=ends[1])


def last_lines(
    ask: Rows, job: tuple[str, str], attempt: int, ranks: tuple[int, int]
) -> dict[int, LogLine]:
    """The last line of each rank from the first up to the second; `job`: its id and team."""
    where = _where(LogFilter(*job, attempt=attempt))
    where.add("rank >= {r0:UInt32} AND rank < {r1:UInt32}", r0=ranks[0], r1=ranks[1])
    # Places first: without texts, a scan of all lines is cheap.
    newest = f"SELECT max((time, rank, line)) FROM gangline.logs {where.sql} GROUP BY rank"
    rows = ask(
        f"SELECT {_COLUMNS} FROM gangline.logs {where.sql} AND (time, rank, line) IN ({newest})",
        where.parameters,
    )
    return {row["rank"]: LogLine(**row) for row in rows}


def _where(wanted: LogFilter) -> Where:
    where = Where()
    where.add("job_id = {job:String}", job=wanted.job_id)
    where.add("team = {team:String}", team=wanted.team)
    if wanted.rank is not None:
        where.add("rank = {rank:UInt32}", rank=wanted.rank)
    if wanted.attempt is not None:
        where.add("attempt = {attempt:UInt32}", attempt=wanted.attempt)
    if wanted.contains:
        where.add("positionCaseInsensitiveUTF8(text, {part:String}) > 0", part=wanted.contains)
    if wanted.errors:
        where.add("match(text, {error:String})", error=ERROR_LINE.pattern)
    return where


def _rows(ask: Rows, where: Where, after: _Place | None, size: int, *, tail: bool) -> list[LogLine]:
    """Rows after a place in the order of the table; `tail`: backwards."""
    sql, parameters = where.sql, where.parameters
    if after is not None:
        way, or_at = ("<", "<=") if tail else (">", ">=")
        # The first two conditions are for the table's index, the last one is exact.
        sql += (
            f" AND attempt {or_at} {{c0:UInt32}}"
            f" AND (attempt {way} {{c0:UInt32}} OR"
            f" time {or_at} fromUnixTimestamp64Milli({{c1:Int64}}))"
            f" AND (attempt, time, rank, line) {way} ({{c0:UInt32}}, "
            "fromUnixTimestamp64Milli({c1:Int64}), {c2:UInt32}, {c3:UInt64})"
        )
        parameters = parameters | {f"c{index}": value for index, value in enumerate(after)}
    order = " DESC" if tail else ""
    rows = ask(
        f"SELECT {_COLUMNS} FROM gangline.logs {sql} "
        f"ORDER BY attempt{order}, time{order}, rank{order}, line{order} LIMIT {size}",
        parameters,
    )
    return [LogLine(**row) for row in rows]


def _place(row: LogLine) -> _Place:
    return row.attempt, ms(row.time), row.rank, row.line


def _read(cursor: str) -> _Place:
    attempt, at_ms, rank, line = (number(part) for part in read_cursor(cursor, 4))
    return attempt, at_ms, rank, line
