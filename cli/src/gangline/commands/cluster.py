"""`gangline nodes, drain, teams, queue`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.api_models import Node, Team
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session

_NODES = (
    Column("NODE", flexible=True),
    Column("STATUS"),
    Column("GPUS"),
    Column("MODEL", flexible=True),
    Column("RACK", flexible=True),
    Column("CPU", right=True),
    Column("HEARD", right=True),
    Column("JOBS", flexible=True),
)
_TEAMS = (
    Column("TEAM", flexible=True),
    Column("USED", right=True),
    Column("LIMIT", right=True),
    Column("GUARANTEE", right=True),
    Column("BORROW", right=True),
    Column("RUNNING", right=True),
    Column("PENDING", right=True),
    Column("GPU TIME", right=True),
)
_QUEUE = (
    Column("#", right=True),
    Column("JOB", flexible=True),
    Column("TEAM", flexible=True),
    Column("GPUS", right=True),
    Column("PRIO", right=True),
    Column("SCORE", right=True),
    Column("WAITED", right=True),
    Column("WHY"),
)


def nodes(session: Session) -> None:
    """The cluster's nodes and who runs there."""
    found = session.client.nodes()
    now = datetime.now(UTC)
    session.out.table(found, _NODES, [_node(node, now) for node in found], "no node has joined yet")


def _node(node: Node, now: datetime) -> list[str]:
    models = Counter(gpu.model for gpu in node.gpus)
    return [
        node.node_id,
        node.status,
        f"{node.gpus_used} of {len(node.gpus)}",
        ", ".join(sorted(models)) or NONE,
        node.rack,
        NONE if node.cpu_percent is None else f"{node.cpu_percent:.0f} %",
        render.age(node.last_heartbeat, now),
        ", ".join(node.jobs) or NONE,
    ]


def drain(
    session: Session,
    node_id: Annotated[str, typer.Argument(metavar="NODE", help="As `nodes` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let gangs there again.")] = False,
) -> None:
    """Keep new gangs off a node, for maintenance."""
    done = session.client.drain(node_id, drain=not undo)
    session.out.show(done, f"{done.node_id} is {done.status}")


def teams(session: Session) -> None:
    """Teams, their limits and what they use."""
    found = session.client.teams()
    session.out.table(found, _TEAMS, [_team(team) for team in found], "no team is configured")


def _team(team: Team) -> list[str]:
    return [
        team.team,
        str(team.gpus_used),
        str(team.gpu_limit),
        str(team.gpu_guarantee),
        str(team.borrow_limit),
        str(team.jobs_running),
        str(team.jobs_pending),
        render.duration(team.gpu_seconds),
    ]


def teams_set(
    session: Session,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="The team's name.")],
    limit: Annotated[int | None, typer.Option(min=0, help="GPUs it may hold at once.")] = None,
    guarantee: Annotated[int | None, typer.Option(min=0, help="GPUs that it is owed.")] = None,
    borrow: Annotated[
        int | None, typer.Option(min=0, help="GPUs above the limit while others idle.")
    ] = None,
) -> None:
    """Create a team, or change the limits that are given."""
    before = {item.team: item for item in session.client.teams()}.get(team)
    if before is None and limit is None:
        raise CliError(f"{team} is a new team", "give its --limit", ExitCode.USAGE)
    old = before or Team(team=team, gpu_limit=0)
    now = session.client.configure_team(
        team,
        gpu_limit=old.gpu_limit if limit is None else limit,
        gpu_guarantee=old.gpu_guarantee if guarantee is None else guarantee,
        borrow_limit=old.borrow_limit if borrow is None else borrow,
    )
    session.out.table(now, _TEAMS, [_team(now)], "")


def queue(session: Session) -> None:
    """Pending jobs in the order in which they start, with each one's reason."""
    found = session.client.queue()
    rows = [
        [
            str(entry.position),
            entry.job_id,
            entry.team,
            str(entry.gpus),
            str(entry.priority),
            f"{entry.score:.1f}",
            render.duration(entry.waited_s),
            entry.waiting.code if entry.waiting else NONE,
        ]
        for entry in found.queue
    ]
    session.out.table(found, _QUEUE, rows, "nothing waits")
    if rows and not session.out.json:
        session.out.note("why one waits: gangline explain JOB")
