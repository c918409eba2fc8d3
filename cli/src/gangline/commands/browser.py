"""`gangline open`: a browser that is signed in."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from gangline.errors import CliError, ExitCode
from gangline.sdk.answers import path_id
from gangline.session import Session


def open_page(
    session: Session,
    job: Annotated[
        str | None, typer.Argument(help="The job whose page to open; none: the first page.")
    ] = None,
    *,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Open MLflow's pages of your team.")
    ] = False,
    team: Annotated[
        str | None,
        typer.Option(
            "--team", help="The team of the MLflow runs, if not the token's own or default."
        ),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the address, and open no browser.")
    ] = False,
) -> None:
    """Open the console in a browser, signed in with your token."""
    if job is not None and (mlflow or team):
        raise CliError(
            "a job has a page in the console: leave out --mlflow and --team", code=ExitCode.USAGE
        )
    url = session.client.sign_in_url(_page(session, job, team, mlflow=mlflow or team is not None))
    opened = not print_only and webbrowser.open(url)
    if not opened:
        session.out.note("open this address within a minute; it works once")
        session.out.show({"url": url}, url)


def _page(session: Session, job: str | None, team: str | None, *, mlflow: bool) -> str:
    if mlflow:
        return f"/mlflow/teams/{session.client.mlflow(team).team}/"
    if job is None:
        return "/console/"
    return f"/console/jobs/{path_id(session.client.get(job).job_id)}"
