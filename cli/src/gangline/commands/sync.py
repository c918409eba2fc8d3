"""`gangline sync`: upload runs that were kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gangline.errors import CliError, ExitCode
from gangline.session import Session
from gangline.tracking.spool import FOLDER
from gangline.tracking.sync import IN_USE


def sync(
    session: Session,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR", help=f"Runs' folders, or what holds them; default: {FOLDER}."
        ),
    ] = None,
    team: Annotated[str | None, typer.Option(help="The team of runs that name none.")] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove folders once they are uploaded.")
    ] = False,
) -> None:
    """Upload runs that were kept on disk: offline ones, and those of processes that were killed."""
    in_use = 0
    places = folders or [Path(FOLDER)]
    for run in session.client.sync(*places, team=team, remove=remove, notice=session.out.note):
        in_use += run.state == IN_USE
        text = f"{run.folder.name}  {run.state}"
        if run.run_id is not None:
            text += f", {run.points:,} points\n  run {run.run_id}"
        session.out.line(run, text)
    if in_use:
        raise CliError(
            f"{in_use} in use by another process: nothing was sent",
            "run the command again after that process has ended",
            ExitCode.NOT_FINISHED,
        )
