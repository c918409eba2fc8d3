"""`gangline incidents`: what failed, what it cost, and when it was over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.replay import parse_time
from gangline.incident_models import Incident, IncidentPage, Share, Totals
from gangline.render import NONE, Column
from gangline.session import Session

_HOUR_S = 3600.0
_TABLE = (
    Column("AGE", right=True),
    Column("JOB", flexible=True),
    Column("TRY", right=True),
    Column("CLASS"),
    Column("NODE", flexible=True),
    Column("OUTCOME"),
    Column("BACK IN", right=True),
    Column("GPU-H", right=True),
)


def incidents(
    session: Session,
    job_id: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job.")] = None,
    *,
    team: Annotated[str | None, typer.Option(help="Only this team.")] = None,
    node: Annotated[str | None, typer.Option(help="Only failures that name this node.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="2026-11-20, or -2h, -7d.")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="The newest so many.")] = 20,
) -> None:
    """What failed, newest first, and what all of it cost. Of one job: each failure in words."""
    now = datetime.now(UTC)
    found = session.client.incidents(
        job_id,
        team=team,
        node=node,
        since=None if since is None else parse_time(since, now, "--since"),
        limit=limit,
    )
    if not found.incidents and not session.out.json:
        session.out.note("nothing has failed" if job_id is None else f"{job_id} has not failed")
        return
    session.out.show(found, incidents_text(found, now, in_words=job_id is not None))


def incidents_text(found: IncidentPage, now: datetime, *, in_words: bool = False) -> str:
    """The table, then each failure `in_words` if asked for, then the totals; 80 columns."""
    parts = [render.table(_TABLE, [_row(item, now) for item in found.incidents])]
    if in_words:
        parts += [_in_words(item) for item in found.incidents]
    return "\n\n".join([*parts, _totals(found.totals, len(found.incidents))])


def _row(item: Incident, now: datetime) -> list[str]:
    return [
        render.age(item.failed_at, now),
        item.job_id,
        str(item.attempt),
        item.failure_class,
        item.node_id or NONE,
        item.outcome,
        seconds(item.recover_s),
        f"{item.lost_gpu_s / _HOUR_S:,.2f}",
    ]


def _in_words(item: Incident) -> str:
    """What happened, where it went on, and how long each part took."""
    lines = [render.wrap(f"{item.failed_at:%Y-%m-%d %H:%M:%S}  {item.message}")]
    if item.review:
        lines.append("  flagged: a person shall look at the data")
    saved = "nothing was saved" if item.committed_step is None else f"{item.committed_step} saved"
    reached = "no step" if item.last_step is None else f"step {item.last_step}"
    lines.append(f"  {reached} reached, {saved}; {seconds(item.work_lost_s)} of work lost")
    after = [
        f"{name} {seconds((at - item.failed_at).total_seconds())}"
        for name, at in (
            ("GPUs after", item.allocated_at),
            ("ranks", item.running_at),
            ("a step", item.first_step_at),
        )
        if at is not None
    ]
    if item.next_attempt is not None:
        start = "the beginning" if item.resume_step is None else f"step {item.resume_step}"
        text = f"attempt {item.next_attempt} from {start}: {', '.join(after) or 'waits for GPUs'}"
        lines.append(render.wrap(text, "  "))
    if item.avoid_nodes:
        lines.append(render.wrap(f"avoided: {', '.join(item.avoid_nodes)}", "  "))
    return "\n".join(lines)


def _totals(totals: Totals, shown: int) -> str:
    of = "" if shown == totals.incidents else f" ({shown} shown)"
    count = f"{totals.incidents} incident{'' if totals.incidents == 1 else 's'}{of}"
    back = "none has recovered"
    if totals.recovered:
        median, p95 = seconds(totals.recover_median_s), seconds(totals.recover_p95_s)
        back = f"{totals.recovered} recovered, in {median} (median), {p95} (P95)"
    lines = [
        render.wrap(f"{count}; {back}; {totals.lost_gpu_s / _HOUR_S:,.2f} GPU-hours lost"),
        *(
            render.wrap(f"{title}: {_shares(shares)}")
            for title, shares in (("by class", totals.by_class), ("by node", totals.by_node))
            if shares
        ),
    ]
    return "\n".join(lines)


def _shares(shares: Sequence[Share]) -> str:
    return ", ".join(f"{share.name} {share.incidents}" for share in shares)


def seconds(value: float | None) -> str:
    """With a decimal below a minute."""
    if value is None:
        return NONE
    return f"{value:.1f} s" if value < 60 else render.duration(value)
