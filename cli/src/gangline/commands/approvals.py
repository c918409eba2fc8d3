"""`gangline data approve` and `gangline data approvals`: what data may be used for."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.render import Column
from gangline.session import Session
from gangline_schemas.api.data import Approval
from gangline_schemas.data_use import named_by_content

_TABLE: tuple[Column[Approval], ...] = (
    Column("SNAPSHOT", lambda use: use.snapshot),
    Column("PROJECT", lambda use: use.project, flexible=True),
    Column("PURPOSE", lambda use: render.plain(use.purpose)),
    Column("BY", lambda use: use.user, flexible=True),
)
_Name = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Its whole name, as `data show` prints it.")
]


def approve(
    session: Session,
    snapshot: _Name,
    *,
    project: Annotated[str, typer.Option(help="The project whose jobs may use it.")],
    purpose: Annotated[str, typer.Option(help="The purpose, as jobs name it.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw the approval; admitted jobs continue.")
    ] = False,
) -> None:
    """Approve a snapshot for a project and a purpose. Needs an admin's token."""
    if not named_by_content(snapshot):
        raise CliError(
            f"{snapshot} is not the whole name of a snapshot",
            "it ends in its digest; `gangline data show PLACE` prints it",
            ExitCode.USAGE,
        )
    use = session.client.approve_data(snapshot, project, purpose, approve=not withdraw)
    state = "approved" if use.approved else "not approved"
    text = f"{use.snapshot} is {state} for {use.project}: {render.plain(use.purpose)}"
    session.out.show(use, render.wrap(text))


def approvals(
    session: Session,
    snapshot: Annotated[
        str | None, typer.Argument(metavar="[SNAPSHOT]", help="Only approvals of this snapshot.")
    ] = None,
) -> None:
    """The approved uses of data, each with the admin that approved it. Needs an admin's token."""
    session.out.listing(session.client.data_approvals(snapshot), _TABLE, "nothing is approved")
