"""`gangline nodes, drain, teams, queue`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.cluster import Node, QueueEntry, Team
from gangline_schemas.team_limits import GpuTypeLimit, TeamConfig
from gangline_schemas.teams import walk

_CLEARED = "-"


def nodes(session: Session) -> None:
    """The cluster's nodes and the jobs on them."""
    found = session.client.nodes()
    now = datetime.now(UTC)
    columns = _nodes(now, images=any(node.runs_images for node in found))
    session.out.listing(found, columns, "no node has joined yet")
    for node in found:
        if node.why and not session.out.json:
            session.out.note(f"{node.node_id} is {node.status}: {node.why}")
        if node.straggler and not session.out.json:
            session.out.note(f"slow: {node.straggler}")


def _nodes(now: datetime, *, images: bool) -> tuple[Column[Node], ...]:
    return (
        Column("NODE", lambda node: node.node_id, whole=True),
        Column("STATUS", lambda node: node.status),
        Column("GPUS", lambda node: f"{node.gpus_used} of {len(node.gpus)}"),
        Column("MODEL", _models, flexible=True),
        Column("RACK", lambda node: node.rack, flexible=True),
        Column("ISOLATION", lambda node: node.isolation),
        *(_IMAGES if images else ()),
        Column("CPUS", lambda node: f"{node.cpus_used:g} of {node.cpus:g}"),
        Column("CPU", _cpu, right=True),
        Column("SEEN", lambda node: render.short_age(node.last_heartbeat, now), right=True),
        Column("JOBS", lambda node: ", ".join(node.jobs) or NONE, flexible=True),
    )


_IMAGES = (Column[Node]("IMAGES", lambda node: "yes" if node.runs_images else NONE),)


def _models(node: Node) -> str:
    return ", ".join(sorted({gpu.model for gpu in node.gpus})) or NONE


def _cpu(node: Node) -> str:
    return NONE if node.cpu_percent is None else f"{node.cpu_percent:.0f} %"


def drain(
    session: Session,
    node_id: Annotated[
        str, typer.Argument(metavar="NODE", help="The node's id, as `nodes` shows it.")
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Let new gangs start there again.")] = False,
    cordon: Annotated[
        bool, typer.Option("--cordon", help="Only keep new gangs off; those there continue.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; kept in the log of quota.")] = "",
) -> None:
    """Empty a node for maintenance: its gangs save and resume on other nodes."""
    done = session.client.drain(node_id, drain=not undo, move_jobs=not cordon, reason=reason)
    session.out.show(done, f"{done.node_id} is {done.status}")


def teams(session: Session) -> None:
    """The tree of teams: limits, what they use, and this month's GPU-hours."""
    found = session.client.teams()
    depths = dict(walk({team.team: team.parent for team in found}))
    with_cpus = any(team.cpu_hours_this_month or team.cpu_hours_per_month for team in found)
    columns = (*_teams(depths), *(_CPU_HOURS if with_cpus else ()))
    session.out.listing(found, columns, "no team is configured")
    if found and found[0].month and not session.out.json:
        session.out.note(f"GPU-HOURS are those of {found[0].month} (UTC)")


def _teams(depths: Mapping[str, int]) -> tuple[Column[Team], ...]:
    return (
        Column("TEAM", lambda team: "  " * depths.get(team.team, 0) + team.team, flexible=True),
        Column("USED", lambda team: str(team.gpus_used), right=True),
        Column("LIMIT", lambda team: str(team.gpu_limit), right=True),
        Column("GUARANTEE", lambda team: str(team.gpu_guarantee), right=True),
        Column("BORROWED", _borrowed, right=True),
        Column("RUN", lambda team: str(team.jobs_running), right=True),
        Column("WAIT", lambda team: str(team.jobs_pending), right=True),
        Column("GPU-HOURS", _gpu_hours, right=True),
    )


def _borrowed(team: Team) -> str:
    return _of(team.gpus_borrowed, team.borrow_limit) if team.borrow_limit else NONE


def _cpu_hours(team: Team) -> str:
    return _of(team.cpu_hours_this_month, team.cpu_hours_per_month)


_CPU_HOURS = (Column[Team]("CPU-HOURS", _cpu_hours, right=True),)


def _gpu_hours(team: Team) -> str:
    return _of(team.gpu_hours_this_month, team.gpu_hours_per_month)


def _of(amount: float, most: float | None) -> str:
    """As 2 of 16, or 0.5 where `most` is None."""
    shown = [f"{number:,.1f}".removesuffix(".0") for number in (amount, most) if number is not None]
    return " of ".join(shown)


def teams_set(
    session: Session,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="The team's name.")],
    *,
    limit: Annotated[int | None, typer.Option(min=0, help="GPUs that it may use at once.")] = None,
    guarantee: Annotated[
        int | None, typer.Option(min=0, help="GPUs that it is guaranteed.")
    ] = None,
    borrow: Annotated[
        int | None, typer.Option(min=0, help="GPUs above the limit that it may borrow.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="TEAM", help="The team above it; '-': none.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(min=0, help="Its part of the surplus; 0: no claim.")
    ] = None,
    surplus: Annotated[
        str | None,
        typer.Option(metavar="keep|reclaim_by_weight", help="Rule for GPUs above its part."),
    ] = None,
    gpu_types: Annotated[
        str | None, typer.Option(metavar="h100=32,a100", help="Models it may use; '-': any.")
    ] = None,
    gpu_hours: Annotated[
        float | None, typer.Option(min=0, help="Budget per UTC month; 0: none.")
    ] = None,
    cpu_limit: Annotated[
        str | None, typer.Option(metavar="CPUS", help="CPUs of jobs without GPUs; '-': all.")
    ] = None,
    cpu_hours: Annotated[
        float | None, typer.Option(min=0, help="Their budget per UTC month; 0: none.")
    ] = None,
    job_limit: Annotated[int | None, typer.Option(min=1, help="Unfinished jobs at once.")] = None,
) -> None:
    """Create a team, or change the limits that are given."""
    before = {item.team: item for item in session.client.teams()}.get(team)
    if before is None and limit is None:
        raise CliError(f"{team} is a new team", "give its --limit", ExitCode.USAGE)
    old = before or TeamConfig(team=team, gpu_limit=0)
    now = session.client.configure_team(
        team,
        gpu_limit=old.gpu_limit if limit is None else limit,
        gpu_guarantee=old.gpu_guarantee if guarantee is None else guarantee,
        borrow_limit=old.borrow_limit if borrow is None else borrow,
        parent=old.parent if parent is None else _unless_cleared(parent),
        weight=old.weight if weight is None else weight,
        surplus=old.surplus if surplus is None else _unless_cleared(surplus),
        gpu_types=old.gpu_types if gpu_types is None else _types(gpu_types),
        gpu_hours_per_month=old.gpu_hours_per_month if gpu_hours is None else gpu_hours or None,
        cpu_limit=old.cpu_limit if cpu_limit is None else _cpus(cpu_limit),
        cpu_hours_per_month=old.cpu_hours_per_month if cpu_hours is None else cpu_hours or None,
        job_limit=old.job_limit if job_limit is None else job_limit,
    )
    session.out.listing([now], _teams({}), "", result=now)


def _unless_cleared(text: str) -> str | None:
    return None if text == _CLEARED else text


def _cpus(text: str) -> float | None:
    """A number of CPUs; None if it is cleared. Raises CliError."""
    if text == _CLEARED:
        return None
    try:
        return float(text)
    except ValueError:
        message = f"--cpu-limit: {text!r} is no number of CPUs"
        raise CliError(message, "write a number, or '-' for all", ExitCode.USAGE) from None


def _types(text: str) -> list[GpuTypeLimit]:
    """`h100=32,a100` as limits. Raises CliError."""
    found: list[GpuTypeLimit] = []
    for part in text.split(",") if text != _CLEARED else ():
        name, given, limit = part.partition("=")
        if not name or (given and not limit.isdigit()):
            raise CliError(
                f"--gpu-types: {part!r} is no GPU model with a limit",
                "write models with or without a limit, such as h100=32,a100",
                ExitCode.USAGE,
            )
        found.append(GpuTypeLimit(gpu_type=name, gpu_limit=int(limit) if given else None))
    return found


def queue(session: Session) -> None:
    """Pending jobs in the order in which they start, with each one's reason."""
    found = session.client.queue()
    starts = {} if session.out.json or not found.queue else _starts(session)
    columns = _queue(starts, datetime.now(UTC))
    session.out.listing(found.queue, columns, "nothing waits", result=found)
    if found.queue and not session.out.json:
        session.out.note("why one waits: gangline explain JOB")


def _asked(entry: QueueEntry) -> str:
    return str(entry.gpus) if entry.cpus is None else f"{entry.cpus:g} CPU"


def _queue(
    starts: Mapping[str | None, datetime | None], now: datetime
) -> tuple[Column[QueueEntry], ...]:
    return (
        Column("#", lambda entry: str(entry.position), right=True),
        Column("JOB", lambda entry: entry.job_id, whole=True),
        Column("TEAM", lambda entry: entry.team, flexible=True),
        Column("GPUS", _asked, right=True),
        Column("PRIO", lambda entry: str(entry.priority), right=True),
        Column("SCORE", lambda entry: f"{entry.score:.1f}", right=True),
        Column("WAITED", lambda entry: render.duration(entry.waited_s), right=True),
        Column("STARTS IN", lambda entry: _until(starts.get(entry.job_id), now), right=True),
        Column("WHY", lambda entry: entry.waiting.code if entry.waiting else NONE),
    )


def _starts(session: Session) -> dict[str | None, datetime | None]:
    """Expected starts by job; none while the gateway cannot say."""
    try:
        shards = session.client.queue_outlook().shards
    except CliError:
        return {}
    return {item.job_id: item.start for shard in shards for item in shard.starts}


def _until(start: datetime | None, now: datetime) -> str:
    """Until then, in its largest unit."""
    if start is None:
        return NONE
    return " ".join(render.duration(max(0.0, (start - now).total_seconds())).split()[:2])
