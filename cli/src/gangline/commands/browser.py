"""`gangline open`: a browser that is signed in."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from gangline.session import Session


def open_page(
    session: Session,
    team: Annotated[
        str | None,
        typer.Option(
            "--team", help="The team of the MLflow runs, if not the token's own or default."
        ),
    ] = None,
    *,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the address, and open no browser.")
    ] = False,
) -> None:
    """Open MLflow's pages in a browser, signed in with your token."""
    team = session.client.mlflow(team).team
    url = session.client.sign_in_url(f"/mlflow/teams/{team}/")
    opened = not print_only and webbrowser.open(url)
    if not opened:
        session.out.note("open this address within a minute; it works once")
        session.out.show({"url": url}, url)
