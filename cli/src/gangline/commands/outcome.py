"""How a job ended, in words and as an exit code."""

from __future__ import annotations

import typer

from gangline import render
from gangline.errors import ExitCode
from gangline.output import Output
from gangline_schemas.api.jobs import Failure, Job

_LAST_WORDS = 8
_CODES = {
    "succeeded": ExitCode.DONE,
    "failed": ExitCode.JOB_FAILED,
    "rejected": ExitCode.JOB_FAILED,
    "cancelled": ExitCode.CANCELLED,
}


def exit_code(job: Job) -> ExitCode:
    """The exit code that stands for the job's state."""
    return _CODES.get(job.state, ExitCode.NOT_FINISHED)


def end_with(job: Job, out: Output) -> None:
    """Print how the job stands and end the command with its exit code."""
    out.note(ending(job))
    raise typer.Exit(int(exit_code(job)))


def ending(job: Job) -> str:
    """How the job ended; of a failure, the first rank that failed and where its log is."""
    if job.state == "succeeded":
        after = f" after {render.duration(job.elapsed_s)}" if job.elapsed_s is not None else ""
        restarts = f", {restarts_of(job)}" if job.restarts else ""
        return f"{job.job_id} succeeded{after}{restarts}"
    lines = [render.wrap(f"{job.job_id} {job.state}" + (f": {job.reason}" if job.reason else ""))]
    if job.state == "failed" and job.failure is not None:
        lines += failure_lines(job.job_id, job.failure, known=job.reason)
    lines += [f"  {item.field}: {render.plain(item.message)}" for item in job.errors]
    return "\n".join(lines)


def failure_lines(job_id: str, failure: Failure, known: str = "") -> list[str]:
    """The rank that failed first, its message unless `known` contains it, and its log's command."""
    who = "the gang" if failure.first_rank is None else f"rank {failure.first_rank}"
    where = f" on {failure.node_id}" if failure.node_id else ""
    how = ""
    if failure.signal is not None:
        how = f" by signal {failure.signal}"
    elif failure.exit_code is not None:
        how = f" with exit code {failure.exit_code}"
    cause = failure.cause.replace("_", " ")
    lines = [f"  {who}{where} failed first{how} ({cause}), in attempt {failure.attempt}"]
    words = [line for line in failure.message.splitlines() if line.strip()]
    if failure.message in known:
        words = []
    lines += [render.wrap(line, "    ") for line in words[-_LAST_WORDS:]]
    rank = "" if failure.first_rank is None else f" --rank {failure.first_rank}"
    lines.append(f"  its log: gangline logs {job_id}{rank} --attempt {failure.attempt}")
    return lines


def restarts_of(job: Job) -> str:
    """1 restart, 2 restarts."""
    return render.count(job.restarts, "restart")
