"""`gangline data profile`: the profile of a snapshot or a table, sent for the watch on drift."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gangline.commands.data import profile_at
from gangline.commands.list_options import parse_time
from gangline.commands.rows_file import read_rows
from gangline.errors import CliError, ExitCode
from gangline.session import Session
from gangline_schemas.base import field_errors

_TABLES = {".csv", ".jsonl"}


def profile(
    session: Session,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A snapshot's folder or URL, .csv or .jsonl.")
    ],
    *,
    team: Annotated[str, typer.Option(help="The team whose data it is.")],
    snapshot: Annotated[
        str | None,
        typer.Option(help="The snapshot's name; default: the manifest's, or of the file's bytes."),
    ] = None,
    made_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When the data were made: 2026-11-20, -7d."),
    ] = None,
    serving: Annotated[
        bool, typer.Option("--serving", help="The data were seen by a system that serves.")
    ] = False,
) -> None:
    """Send the profile of data: quantiles, categories, lengths, token shares."""
    now = datetime.now(UTC)
    given = None if made_at is None else parse_time(made_at, now, "--made-at")
    path = Path(place)
    known: datetime | None
    if path.suffix in _TABLES and path.is_file():
        name, profiled, known = _of_table(path)
    else:
        found = profile_at(place)
        name, profiled, known = found.snapshot, found.profile, found.made_at
    when = given or known
    if when is None:
        raise CliError(f"{place}: does not say when it was made", "give --made-at", ExitCode.USAGE)
    sent = session.client.send_profile(team, snapshot or name, profiled, when, serving=serving)
    share = profiled["share"]
    text = f"{sent.snapshot}: {sent.rows:,} rows, {sent.columns} columns"
    session.out.show(sent, text + (f", a sample of {share:.1%}" if share < 1 else ""))


def _of_table(path: Path) -> tuple[str, dict[str, Any], datetime]:
    """The name, profile and time of a file."""
    from gangline_registry.core.profiling import profile_of

    columns, rows = _table(path)
    try:
        made = profile_of(columns, rows).model_dump(mode="json")
    except ValidationError as error:
        first = field_errors(error)[0]
        text = f"{path}: has no profile: {first.field}: {first.message}"
        raise CliError(text, code=ExitCode.USAGE) from None
    name = f"{_plain(path.stem)}@sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    return name, made, datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _table(path: Path) -> tuple[dict[str, Sequence[Any]], int]:
    """Columns by name: numbers where all values are numbers, else texts; None where missing."""
    from gangline_registry.core.profiling import numbers_of

    rows: list[dict[str, Any]] = []
    for number, row in read_rows(path):
        if not isinstance(row, dict):
            raise CliError(f"{path}:{number}: is not an object", code=ExitCode.USAGE)
        rows.append(row)
    if not rows:
        raise CliError(f"{path}: has no rows", code=ExitCode.USAGE)
    columns: dict[str, Sequence[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row if name):
        values = [row.get(name) for row in rows]
        if path.suffix == ".csv":
            texts = [one or None for one in values]
            columns[name] = numbers_of(texts) or texts
        else:
            columns[name] = values
    return columns, len(rows)


def _plain(stem: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in stem.lower())
    return kept.strip("-")[:63] or "table"
