"""The options of commands that take a job file, and may replace parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gangline.job_file import read_overrides

JobPath = Annotated[Path, typer.Argument(metavar="FILE", help="The job file (YAML).")]
Fields = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field; may be repeated."),
]
OtherTeam = Annotated[str | None, typer.Option("--team", help="Replace the file's team.")]


def overrides_of(fields: Sequence[str] | None, team: str | None) -> dict[str, Any]:
    """The replaced parts of the file; the team's own option wins. Raises CliError."""
    found = read_overrides(fields or [])
    return found if team is None else found | {"team": team}
