"""`gangline node`: tokens for nodes; this machine joins, starts its agent, and leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gangline.errors import CliError, ExitCode
from gangline.node.agent import UNIT_FOLDER, become_agent, end_agent, write_unit
from gangline.node.checks import NodeChecks, check_node
from gangline.node.folder import NodeFolder, default_folder
from gangline.output import Output
from gangline.render import Column
from gangline.session import Session
from gangline_schemas.api.joining import ListedNodeToken

TOKEN_VARIABLE = "GANGLINE_NODE_TOKEN"  # noqa: S105 -- the variable's name

Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="The node's folder; for root /var/lib/gangline-node."),
]
Units = Annotated[Path, typer.Option("--unit-dir", help="Where systemd reads units.")]
Ca = Annotated[
    Path | None, typer.Option("--ca", help="PEM file of the authority of the gateway's TLS.")
]
Address = Annotated[str | None, typer.Option("--address", help="Where other nodes reach this one.")]
Slots = Annotated[
    int | None, typer.Option("--slots", min=0, help="Offer so many CPU slots instead of GPUs.")
]
_MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED"}
COLUMNS = (
    Column[dict[str, Any]]("CHECK", lambda check: check["name"]),
    Column[dict[str, Any]]("STATE", lambda check: _MARKS[check["state"]]),
    Column[dict[str, Any]]("DETAIL", lambda check: check["detail"], flexible=True),
)

_TOKENS = (
    Column[ListedNodeToken]("ID", lambda one: one.token_id, whole=True),
    Column[ListedNodeToken]("USED", lambda one: f"{one.used} of {one.nodes}"),
    Column[ListedNodeToken]("BY", lambda one: one.made_by, flexible=True),
    Column[ListedNodeToken]("UNTIL (UTC)", lambda one: f"{one.expires_at:%Y-%m-%d %H:%M}"),
)


def token(
    session: Session,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes may join with it.")] = 1,
    expires: Annotated[float, typer.Option(min=0.01, help="Hours until it expires.")] = 1.0,
) -> None:
    """Make a token by which machines join as nodes. Only admins can."""
    made = session.client.node_token(nodes=nodes, expires_s=max(1, round(expires * 3600)))
    many = "one node" if made.nodes == 1 else f"{made.nodes} nodes"
    session.out.show(
        made,
        f"{made.token}\n\nOn the machine:\n"
        f"  gangline node join --server {session.client.url} --token {made.token}\n"
        f"It is for {many}, until {made.expires_at:%Y-%m-%d %H:%M} UTC, and is not shown again.\n"
        f"To end it before: gangline node revoke {made.token_id}",
    )


def tokens(session: Session) -> None:
    """The tokens by which machines may still join, the first to expire first."""
    found = session.client.node_tokens()
    session.out.listing(found, _TOKENS, "there are no tokens")


def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `node tokens` shows it.")],
) -> None:
    """Let no further machine join with a token; those that have joined stay."""
    session.client.revoke_node_token(token_id)
    session.out.show({"token_id": token_id, "state": "revoked"}, f"{token_id} is revoked")


def join(
    server: Annotated[str, typer.Option("--server", metavar="URL", help="The gateway's URL.")],
    token: Annotated[
        str | None,
        typer.Option("--token", help=f"Of `gangline node token`; default: {TOKEN_VARIABLE}."),
    ] = None,
    *,
    node_id: Annotated[
        str | None, typer.Option("--node-id", help="Its name in the cluster [host name].")
    ] = None,
    folder: Folder = None,
    address: Address = None,
    slots: Slots = None,
    rack: Annotated[str | None, typer.Option(help="Its rack.")] = None,
    block: Annotated[str | None, typer.Option(help="Its block of racks.")] = None,
    ca: Ca = None,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Write a systemd unit instead of starting the agent.")
    ] = False,
    unit_dir: Units = UNIT_FOLDER,
    skip_checks: Annotated[
        bool, typer.Option("--skip-checks", help="Join although a check failed.")
    ] = False,
) -> None:
    """Make this machine a node: get its settings from the gateway, and start its agent."""
    from gangline.sdk import Gangline
    from gangline.transport import Transport

    given = token or os.environ.get(TOKEN_VARIABLE, "")
    if not given:
        raise CliError("no token is given", "an admin makes one: gangline node token",
                       ExitCode.USAGE)  # fmt: skip
    place, out = NodeFolder((folder or default_folder()).absolute()), Output()
    if place.joined:
        raise CliError(
            f"{place.path} has joined already", "gangline node start, or gangline node leave"
        )
    found = check_node(place.path, server=server, ca=ca, address=address, slots=slots)
    _show_troubles(out, found)
    if found.failed and not skip_checks:
        raise _failed(found)
    # Before the token is used: a unit that cannot be written would cost it.
    unit = write_unit(place, unit_dir) if systemd else None
    try:
        with Gangline(Transport(server, given, notice=out.note, ca=ca)) as gateway:
            joined = gateway.join_node(node_id or found.node_id)
    except CliError:
        if unit is not None:
            unit.unlink(missing_ok=True)
        raise
    own = {"address": found.address, "slots": slots, "rack": rack, "block": block}
    place.write(joined, {name: value for name, value in own.items() if value is not None})
    out.note(f"{joined.node_id} has joined {server}; its files are in {place.path}")
    if unit is None:
        become_agent(place)
    out.show(None, f"{unit} is written; start it with:\n"
             f"  systemctl daemon-reload && systemctl enable --now {unit.name}")  # fmt: skip


def start(folder: Folder = None) -> None:
    """Start the agent of a machine that has joined, in the foreground."""
    become_agent(NodeFolder((folder or default_folder()).absolute()))


def leave(folder: Folder = None, unit_dir: Units = UNIT_FOLDER) -> None:
    """Stop the agent and delete its credentials. Its gangs save, and resume on other nodes."""
    place, out = NodeFolder((folder or default_folder()).absolute()), Output()
    if not place.joined and place.pid() is None:
        raise CliError(f"{place.path} has not joined", "give its folder: --dir")
    end_agent(place, unit_dir)
    place.forget()
    out.show(None, f"left; {place.data} has copies of checkpoints, and may be deleted")


def examine(
    out: Output,
    folder: Path | None,
    *,
    server: str | None,
    ca: Path | None,
    address: str | None,
    slots: int | None,
) -> None:
    """Show the checks of a node. Raises CliError if one failed."""
    place = (folder or default_folder()).absolute()
    found = check_node(place, server=server, ca=ca, address=address, slots=slots)
    out.listing(found.checks, COLUMNS, "")
    if not out.json:
        _show_troubles(out, found)
    if found.failed:
        raise _failed(found)


def _show_troubles(out: Output, found: NodeChecks) -> None:
    for check in found.checks:
        if check["state"] != "ok":
            out.note(f"{_MARKS[check['state']]}: {check['name']}: {check['detail']}")
            out.note(f"  {check['fix']}")


def _failed(found: NodeChecks) -> CliError:
    count = f"{len(found.failed)} of {len(found.checks)} checks failed"
    names = ", ".join(check["name"] for check in found.failed)
    return CliError(f"{count}: {names}", "do what is said above, then try again")
