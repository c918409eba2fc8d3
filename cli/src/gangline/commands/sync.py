"""`gangline sync`: upload runs that were kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gangline.errors import CliError, ExitCode
from gangline.session import Session
from gangline.tracking.spool import FOLDER
from gangline.tracking.sync import RUNNING


def sync(
    session: Session,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help=f"Runs' folders, or what holds them [{FOLDER}]."),
    ] = None,
    team: Annotated[str | None, typer.Option(help="The team of runs that name none.")] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove folders once they are uploaded.")
    ] = False,
) -> None:
    """Upload runs that were kept on disk: offline ones, and those of processes that were killed."""
    running = 0
    for folder in folders or [Path(FOLDER)]:
        for run in session.client.sync(folder, team=team, remove=remove, notice=session.out.note):
            running += run.state == RUNNING
            what = f"{run.points:,} points  {run.url or ''}" if run.run_id else ""
            session.out.line(run, f"{run.folder.name}  {run.state}  {what}".rstrip())
    if running:
        raise CliError(
            f"{running} still running: nothing of it was sent",
            "run the command again after their processes have ended",
            ExitCode.NOT_FINISHED,
        )
