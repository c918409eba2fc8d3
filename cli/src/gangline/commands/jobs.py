"""`gangline list, show, cancel, priority`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.list_options import Limit
from gangline.commands.outcome import failure_lines, restarts_of
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.jobs import Job, JobSummary

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `list` shows it.")]

_FRESH_S = 15.0
"""The age of a running job's step is shown from here on."""
_QUIET_S = 10.0
"""A rank that progressed later is not mentioned."""


def list_jobs(  # noqa: PLR0917 - options of a command are keywords
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only this state; may be repeated.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only this team.")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user.")] = None,
    name: Annotated[str | None, typer.Option(help="Only names that start with this.")] = None,
    project: Annotated[str | None, typer.Option(help="Only this project.")] = None,
    text: Annotated[
        str | None, typer.Option(help="Only with this in name, id, user or command.")
    ] = None,
    order_by: Annotated[str, typer.Option(help="created, started, priority or gpus.")] = "created",
    limit: Limit = 50,
) -> None:
    """Jobs, by default the newest first."""
    found = session.client.list(
        states=state or (), team=team, project=project, user=user, name=name, text=text,
        order_by=order_by, limit=limit,
    )  # fmt: skip
    jobs = [*found]
    columns = _columns(datetime.now(UTC))
    session.out.listing(jobs, columns, "no jobs; see: gangline submit --help")


def _columns(now: datetime) -> tuple[Column[JobSummary], ...]:
    return (
        Column("JOB", lambda job: job.job_id, whole=True),
        Column("TEAM", lambda job: job.team, flexible=True),
        Column("STATE", lambda job: job.state),
        Column("GPUS", gpus, right=True),
        Column("STEP", lambda job: aged_steps(job, now), right=True),
        Column("LOSS", lambda job: render.number(job.loss), right=True),
        Column("AGE", lambda job: render.short_age(job.submitted_at, now), right=True),
    )


def gpus(job: JobSummary) -> str:
    """4, or 2 of 4 where an elastic gang has not all that it asks for; CPUs if it has no GPUs."""
    if job.cpus is not None:
        return f"{job.cpus:g} CPU"
    return (
        f"{job.gpus_allocated} of {job.gpus}"
        if 0 < job.gpus_allocated < job.gpus
        else str(job.gpus)
    )


def _asks_for(job: Job) -> str:
    if job.cpus is None:
        return render.count(job.gpus, "GPU")
    nodes = job.spec.resources.ranks if job.spec is not None else 1
    return f"{job.cpus:g} CPUs on {render.count(nodes, 'node')}"


def steps(job: JobSummary) -> str:
    """18/30, or 18 where the end is not known."""
    if job.step is None:
        return NONE
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


def aged_steps(job: JobSummary, now: datetime) -> str:
    """The steps of a running job, with the age of what is known if that is not fresh."""
    if job.state != "running" or job.progress_at is None:
        return steps(job)
    age_s = (now - job.progress_at).total_seconds()
    if age_s < _FRESH_S:
        return steps(job)
    return f"{steps(job)} ({render.duration(age_s)} ago)"


def stall_text(job: JobSummary, now: datetime) -> str:
    """For how long a running job reported no step."""
    since = job.stalled_since
    return NONE if since is None else f"no step for {render.age(since, now)}"


def show(session: Session, job_id: JobId) -> None:
    """Everything known about a job."""
    job = session.client.get(job_id)
    session.out.show(job, description(job, datetime.now(UTC)))


def description(job: Job, now: datetime) -> str:
    """A job on several lines of at most 80 columns."""
    rows = [
        ("state", job.state + (f" ({render.plain(job.reason)})" if job.reason else "")),
        ("team", f"{job.team}, user {job.user or NONE}, project {job.project or NONE}"),
        ("asks for", f"{_asks_for(job)}, priority {job.priority}"),
        ("attempt", f"{job.attempt}, {restarts_of(job)}"),
        ("submitted", moment(job.submitted_at, now)),
        ("started", moment(job.started_at, now)),
        ("ended", moment(job.ended_at, now)),
        ("elapsed", render.duration(job.elapsed_s)),
        ("remaining", render.duration(job.estimated_remaining_s)),
        ("step", aged_steps(job, now)),
        ("stalled", stall_text(job, now)),
        ("loss", f"{render.number(job.loss)}, lr {render.number(job.lr)}"),
        ("mfu", f"{render.percent(job.mfu)}, GPUs busy {_busy(job)}"),
        ("tokens/s", f"{render.number(job.tokens_per_s)}{_waiting(job)}"),
        ("checkpoint", checkpoint_text(job, now)),
        ("runs on", _places(job)),
        ("ranks", ranks(job)),
    ]
    lines = [job.job_id]
    for name, text in rows:
        if not text.startswith(NONE):
            lines.append(render.labelled(f"  {name}", text, 14))
    if job.waiting is not None:
        lines += ["  waits because", render.wrap(job.waiting.message, indent=" " * 4)]
    if job.stopping is not None:
        until = (job.stopping.deadline - now).total_seconds()
        lines.append(f"  stopping: {job.stopping.reason}; saves for up to {render.duration(until)}")
    if job.failure is not None:
        lines += ["  newest failure:", *failure_lines(job.job_id, job.failure, job.reason)]
    if job.review:
        lines.append("  for review: it trains without damaged data, see docs/runbooks/data.md")
        lines += [
            render.wrap(f"{flag.shard} block {flag.block}: {render.plain(flag.reason)}", "    ")
            for flag in job.review
        ]
    lines += [f"  {item.field}: {render.plain(item.message)}" for item in job.errors]
    return "\n".join(lines)


def moment(at: datetime | None, now: datetime) -> str:
    """A time in UTC and how long ago it was."""
    return NONE if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC, {render.age(at, now)} ago"


def checkpoint_text(job: JobSummary, now: datetime) -> str:
    """The newest committed checkpoint."""
    last = job.last_checkpoint
    if last is None:
        return NONE
    return (
        f"step {last.step}, {render.size(last.size_bytes)}, "
        f"{render.age(last.committed_at, now)} ago"
    )


def ranks(job: Job) -> str:
    """The ranks' activities, as `7 training, 1 waiting; rank 3 on node-1 quiet for 42 s`."""
    found = job.ranks
    if found is None:
        return NONE
    text = ", ".join(f"{count} {activity}" for activity, count in found.doing.items())
    quiet = found.quietest
    if quiet is None or quiet.quiet_s < _QUIET_S:
        return text
    since = render.duration(quiet.quiet_s)
    return f"{text}; rank {quiet.rank} on {quiet.node_id} quiet for {since}"


def _waiting(job: JobSummary) -> str:
    share = job.data_wait_share
    return "" if share is None else f", {render.percent(share)} of the time waits for data"


def _busy(job: Job) -> str:
    return NONE if job.gpu_utilization is None else f"{job.gpu_utilization:.0f} %"


def _places(job: Job) -> str:
    parts = [
        f"{place.node_id} (GPUs {', '.join(map(str, place.gpus))})" if place.gpus else place.node_id
        for place in job.nodes
    ]
    return ", ".join(parts) or NONE


def cancel(session: Session, job_id: JobId) -> None:
    """End a job; its gang saves a checkpoint first."""
    job = session.client.cancel(job_id)
    text = f"{job.job_id} is {job.state}" if job.ended else f"{job.job_id} will be cancelled"
    session.out.show(job, text)


def priority(
    session: Session,
    job_id: JobId,
    value: Annotated[
        int, typer.Argument(min=0, max=100, metavar="PRIORITY", help="0 (highest) to 100.")
    ],
) -> None:
    """Change a job's priority."""
    job = session.client.set_priority(job_id, value)
    session.out.show(job, f"{job.job_id} has priority {value}")
