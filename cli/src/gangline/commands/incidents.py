"""`gangline incidents`: what failed, what it cost, when it was over, and what was noticed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.list_options import Newest, Since, start_of
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.incidents import (
    Incident,
    IncidentDetail,
    IncidentPage,
    Notice,
    Share,
    Stacks,
    Totals,
)

_HOUR_S = 3600.0
_HANG = "hang"


def incidents(
    session: Session,
    job_id: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job.")] = None,
    *,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Only the failure of this attempt, with its ranks' stacks."),
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only this team.")] = None,
    node: Annotated[str | None, typer.Option(help="Only failures that name this node.")] = None,
    since: Since = None,
    limit: Newest = 20,
) -> None:
    """Failures, newest first, and their total cost; of one job, each in words."""
    now = datetime.now(UTC)
    if attempt is not None:
        if job_id is None:
            raise CliError("--attempt is of a job", "give its id too", ExitCode.USAGE)
        detail = session.client.incident(job_id, attempt)
        session.out.show(detail, detail_text(detail))
        return
    found = session.client.incidents(
        job_id,
        team=team,
        node=node,
        since=start_of(since),
        limit=limit,
    )
    if job_id is not None and not (found.incidents or found.notices):
        session.client.get(job_id)  # a job that there is not has not "not failed"
    if not (found.incidents or found.notices or session.out.json):
        session.out.note("nothing has failed" if job_id is None else f"{job_id} has not failed")
        return
    session.out.show(found, incidents_text(found, now, in_words=job_id is not None))


def incidents_text(found: IncidentPage, now: datetime, *, in_words: bool = False) -> str:
    """The table, notices and the totals; of one job each failure `in_words` instead of its id."""
    parts = []
    if found.incidents:
        columns = [column for column in _columns(now) if not (in_words and column.whole)]
        parts.append(render.listing(columns, found.incidents))
    if in_words:
        parts += [_in_words(item) for item in found.incidents]
    if found.notices:
        noticed = [_noticed(item, now) for item in found.notices]
        parts.append("\n".join(["noticed of gangs that kept running:", *noticed]))
    return "\n\n".join([*parts, _totals(found.totals, len(found.incidents))])


def detail_text(found: IncidentDetail) -> str:
    """One failure in words, then what each of its ranks was doing, as it was read."""
    parts = [_in_words(found.incident), *(_stacks(item) for item in found.stacks)]
    return "\n\n".join(parts)


def _noticed(item: Notice, now: datetime) -> str:
    text = f"{item.job_id} (attempt {item.attempt}) {item.kind}: {item.message}"
    return render.wrap(f"{render.age(item.noted_at, now)} ago  {text}", "  ")


def _stacks(item: Stacks) -> str:
    at = "before its first step" if item.last_step is None else f"after step {item.last_step}"
    lines = [f"rank {item.rank} on {item.node_id}, {item.state}, {at}"]
    if item.missing:
        lines.append(f"  {render.log_text(item.missing)}")
    lines += [f"  {render.log_text(line)}" for line in item.stacks.splitlines()]
    return "\n".join(lines)


def _columns(now: datetime) -> tuple[Column[Incident], ...]:
    return (
        Column("AGE", lambda item: render.short_age(item.failed_at, now), right=True),
        Column("JOB", lambda item: item.job_id, whole=True),
        Column("TRY", lambda item: str(item.attempt), right=True),
        Column("CLASS", lambda item: item.failure_class),
        Column("NODE", lambda item: item.node_id or NONE, flexible=True),
        Column("OUTCOME", lambda item: item.outcome),
        Column("RECOVERY", lambda item: seconds(item.recover_s), right=True),
        Column("GPU-H", lambda item: f"{item.lost_gpu_s / _HOUR_S:,.2f}", right=True),
    )


def _in_words(item: Incident) -> str:
    """A failure, the node and step of the next attempt, and how long each part took."""
    lines = [render.wrap(f"{item.failed_at:%Y-%m-%d %H:%M:%S}  {item.message}")]
    if item.review:
        lines.append("  flagged: check the data")
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
    if item.failure_class == _HANG:
        lines.append(f"  what its ranks did: --attempt {item.attempt}")
    return "\n".join(lines)


def _totals(totals: Totals, shown: int) -> str:
    of = "" if shown == totals.incidents else f" ({shown} shown)"
    count = f"{render.count(totals.incidents, 'incident')}{of}"
    back = "none has recovered"
    if totals.recovered:
        median, p95 = seconds(totals.recover_median_s), seconds(totals.recover_p95_s)
        back = f"{totals.recovered} recovered, in {median} (median), {p95} (P95)"
    lines = [
        render.wrap(f"{count}; {back}; {totals.lost_gpu_s / _HOUR_S:,.2f} GPU-hours lost"),
        *(
            render.wrap(f"{title}: {_shares(shares)}")
            for title, shares in (
                ("by class", totals.by_class),
                ("by node", totals.by_node),
                ("by job", totals.by_job),
                ("blocks of data left out, by shard", totals.by_shard),
            )
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
