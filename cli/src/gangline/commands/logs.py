"""`gangline logs, ranks, restore`."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline import render
from gangline.commands.jobs import JobId
from gangline.errors import CliError, ExitCode
from gangline.output import Output
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.jobs import Job, RankRow
from gangline_schemas.api.logs import LogLine


def logs(
    session: Session,
    job_id: JobId,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new lines until the job ends.")
    ] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    contains: Annotated[
        str, typer.Option(metavar="TEXT", help="Only lines with this text, in any case.")
    ] = "",
    errors: Annotated[
        bool, typer.Option("--errors", help="Only lines that look like errors.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines.")] = None,
) -> None:
    """The output of the ranks; each line starts with its rank."""
    lines = session.client.logs(
        job_id, rank=rank, attempt=attempt, contains=contains, errors=errors, tail=tail,
        follow=follow,
    )  # fmt: skip
    printer = LogPrinter(session.out)
    try:
        for line in lines:
            printer.print(line)
    except KeyboardInterrupt:
        session.out.note("the job continues")
    if printer.printed:
        return
    reason = why_no_lines(session.client.get(job_id), rank, attempt)
    if contains or errors:
        reason = f"no line matches; all of them: gangline logs {job_id}"
    session.out.note(reason)


def ranks(
    session: Session,
    job_id: JobId,
) -> None:
    """Each rank of a running gang: its node, step, activity and last line."""
    found = list(session.client.ranks(job_id))
    session.out.listing(
        found, _RANK_COLUMNS, f"{job_id} has no ranks now; see: gangline show {job_id}"
    )


_RANK_COLUMNS: list[Column[RankRow]] = [
    Column("RANK", lambda row: str(row.rank), right=True),
    Column("NODE", lambda row: row.node_id),
    Column("GPU", lambda row: NONE if row.gpu is None else str(row.gpu), right=True),
    Column("STATE", lambda row: row.activity or row.status),
    Column("STEP", lambda row: NONE if row.step is None else f"{row.step:,}", right=True),
    Column("QUIET", lambda row: render.duration(row.quiet_s), right=True),
    Column(
        "BUSY",
        lambda row: NONE if row.gpu_utilization is None else f"{row.gpu_utilization:.0f} %",
        right=True,
    ),
    Column("NOTE", lambda row: row.trouble or NONE, flexible=True),
    Column(
        "LAST LINE",
        lambda row: NONE if row.last_line is None else render.log_text(row.last_line.text),
        flexible=True,
    ),
]


def why_no_lines(job: Job, rank: int | None, attempt: int | None) -> str:
    """Why nothing was printed. Raises CliError for a rank or an attempt that the job never had."""
    size = job.gpus or (job.spec.resources.ranks if job.spec is not None else 1)
    if rank is not None and rank >= size:
        ranks = f"0 to {size - 1}" if size > 1 else "0"
        raise CliError(f"{job.job_id} has no rank {rank}", f"its ranks are {ranks}", ExitCode.USAGE)
    if attempt is not None and attempt > job.attempt:
        raise CliError(
            f"{job.job_id} has had no attempt {attempt}",
            f"its newest is {job.attempt}",
            ExitCode.USAGE,
        )
    if not job.ended:
        return f"no lines yet; see: gangline show {job.job_id}"
    who = "its ranks" if rank is None else f"rank {rank}"
    return f"{who} wrote nothing; how it ended: gangline show {job.job_id}"


class LogPrinter:
    """Prints lines, and where another attempt begins."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._attempt = 0
        self.printed = 0

    def print(self, line: LogLine) -> None:
        """One line of one rank."""
        if line.attempt != self._attempt and (self._attempt or line.attempt > 1):
            self._out.note(f"-- attempt {line.attempt} --")
        self._attempt = line.attempt
        self.printed += 1
        self._out.line(line, f"[{line.rank}] {render.log_text(line.text)}")


def restore(
    session: Session,
    job_id: JobId,
    step: Annotated[
        int, typer.Argument(min=0, metavar="STEP", help="A step of `gangline checkpoints JOB`.")
    ],
) -> None:
    """Resume from a step's checkpoint: the same job, or a new one if it has ended."""
    done = session.client.restore(job_id, step)
    verb = "resumes" if done.run_id == job_id else "is a new run that starts"
    session.out.show(done, f"{done.run_id} {verb} from step {done.step}")
    session.out.note(f"follow it: gangline watch {done.run_id}")
